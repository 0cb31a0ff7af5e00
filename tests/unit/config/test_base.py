"""Tests of the base of all configurations."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import Field

from millrace.config.base import Config
from millrace.config.broker import BrokerConfig
from millrace.config.topic import TopicConfig
from millrace.errors import InvalidConfigError

_THREADS = 8


class Forms(Config):
    """One option of each kind whose texts are checked."""

    enabled: bool = False
    size_bytes: int = 0
    ratio: float = 0.5


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Let threads take turns as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty_threads")
def test_threads_that_use_a_configuration_for_the_first_time_each_get_its_values() -> None:
    for number in range(20):

        class Parent(Config):
            linger_ms: int = Field(0, ge=0)

        class Child(Parent):
            batch_size: int = Field(1, ge=1)

        together = threading.Barrier(_THREADS)

        def load(kind: type[Config] = Child, value: int = number, together: threading.Barrier = together) -> Config:
            together.wait()
            return kind.load({"linger.ms": str(value), "batch.size": "7"})

        with ThreadPoolExecutor(_THREADS) as threads:
            found = [future.result() for future in [threads.submit(load) for _ in range(_THREADS)]]
        assert found == [Child(linger_ms=number, batch_size=7)] * _THREADS


@pytest.mark.parametrize("text", ["yes", "1", "on", "t", "0", ""])
def test_a_boolean_is_true_or_false(text: str) -> None:
    assert Forms.load({"enabled": "TRUE"}).enabled is Forms.load({"enabled": True}).enabled is True
    with pytest.raises(InvalidConfigError, match=f"^enabled='{text}': "):
        Forms.load({"enabled": text})


@pytest.mark.parametrize("text", ["1_000", "1000.0", "1e3", "٣", "", "0x10"])
def test_an_integer_has_digits_only(text: str) -> None:
    assert Forms.load({"size.bytes": " +1000 "}).size_bytes == Forms.load({"size_bytes": "1000"}).size_bytes == 1000
    with pytest.raises(InvalidConfigError, match=r"^size\.bytes="):
        Forms.load({"size.bytes": text})


def test_a_number_has_no_underscores() -> None:
    assert Forms.load({"ratio": "5e-1"}).ratio == Forms.load({"ratio": ".5"}).ratio
    with pytest.raises(InvalidConfigError, match=r"^ratio='0_1': "):
        Forms.load({"ratio": "0_1"})


def test_hours_are_integers_as_other_options_are() -> None:
    assert BrokerConfig.load({"log.retention.hours": "2"}).topic_defaults.retention_ms == 7_200_000
    for text in ("1_0", "2.0", "soon"):
        with pytest.raises(InvalidConfigError, match=r"log\.retention\.hours"):
            BrokerConfig.load({"log.retention.hours": text})


def test_any_negative_retention_in_bytes_is_none() -> None:
    assert TopicConfig.load({"retention.bytes": "-2"}).disk_retention_bytes < 0
