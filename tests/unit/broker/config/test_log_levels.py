"""Tests of the levels of loggers, which change while a process runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from millrace.errors import InvalidConfigError, InvalidRequestError
from millrace_broker.config.log_levels import LEVELS, alter_log_levels, log_levels

PACKAGE, LOGGER = "levels_of_tests.part", "levels_of_tests.part.module"


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    root = logging.getLogger().level
    logger = logging.getLogger(LOGGER)
    yield logger
    for name in (PACKAGE, LOGGER):
        logging.getLogger(name).setLevel(logging.NOTSET)
    logging.getLogger().setLevel(root)


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_set_and_described_by_kafkas_name(logger: logging.Logger, level: str) -> None:
    alter_log_levels({LOGGER: level.lower()}, ())
    assert log_levels()[LOGGER] == level
    assert logger.getEffectiveLevel() == LEVELS[level]


def test_a_logger_without_a_level_has_that_of_its_package_and_this_that_of_the_root(logger: logging.Logger) -> None:
    alter_log_levels({"root": "ERROR", PACKAGE: "DEBUG"}, ())
    assert (log_levels()["root"], log_levels()[PACKAGE], log_levels()[LOGGER]) == ("ERROR", "DEBUG", "DEBUG")
    alter_log_levels({}, {PACKAGE})
    assert log_levels()[LOGGER] == "ERROR"
    assert not logger.isEnabledFor(logging.INFO)


@pytest.mark.parametrize(
    ("values", "removals", "message"),
    [
        ({"no.such.logger": "INFO"}, (), r"no logger no\.such\.logger: .*describe broker-loggers"),
        ({}, ("no.such.logger",), "no logger"),
        ({LOGGER: "LOUD"}, (), f"{LOGGER}=LOUD: expected one of TRACE, DEBUG"),
        ({}, ("root",), "root logger cannot be deleted"),
        ({LOGGER: "INFO"}, (LOGGER,), "both set and deleted"),
    ],
)
def test_a_wrong_change_is_refused_as_a_whole(values: dict[str, str], removals: tuple[str, ...], message: str) -> None:
    with pytest.raises((InvalidConfigError, InvalidRequestError), match=message):
        alter_log_levels({PACKAGE: "FATAL", **values}, removals)
    assert log_levels()[PACKAGE] != "FATAL"


def test_a_validation_changes_nothing() -> None:
    alter_log_levels({LOGGER: "FATAL"}, (), validate_only=True)
    assert log_levels()[LOGGER] != "FATAL"
