"""Tests of renamed options and of unknown ones.

A renamed option is read with a warning, and an unknown one is refused with a hint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest
from pydantic import Field

from millrace.config.base import Config
from millrace.config.broker import BrokerConfig
from millrace.config.client import ConsumerConfig
from millrace.errors import InvalidConfigError


class Example(Config):
    """A configuration whose option ``segment.bytes`` had the earlier name ``segment.size``."""

    renamed: ClassVar[Mapping[str, str]] = {"segment.size": "segment.bytes"}
    segment_bytes: int = Field(7, ge=1)


@pytest.mark.parametrize("earlier", ["segment.size", "segment_size"])
def test_an_earlier_name_is_read_with_a_warning_that_has_the_new_name(earlier: str) -> None:
    with pytest.warns(FutureWarning, match=r"option segment.size is now called segment\.bytes"):
        assert Example.load({earlier: "9"}).segment_bytes == 9


def test_the_new_name_is_read_without_a_warning() -> None:
    assert Example.load({"segment.bytes": "9"}).segment_bytes == 9


def test_both_names_together_are_refused() -> None:
    with pytest.raises(
        InvalidConfigError, match=r"segment\.size is the earlier name of segment\.bytes, and both are set"
    ):
        Example.load({"segment.size": "9", "segment.bytes": "9"})


def test_a_wrong_value_under_an_earlier_name_is_refused() -> None:
    with pytest.warns(FutureWarning), pytest.raises(InvalidConfigError, match=r"segment\.bytes='0': "):
        Example.load({"segment.size": "0"})


def test_an_unknown_option_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(
        InvalidConfigError, match=r"unknown option log\.retention\.mss: did you mean log\.retention\.ms"
    ):
        BrokerConfig.load({"log.retention.mss": "1"})
    with pytest.raises(InvalidConfigError, match=r"unknown option group\.di: did you mean group\.id"):
        ConsumerConfig.load({"group.di": "x"})


def _configurations(base: type[Config] = Config) -> list[type[Config]]:
    return [each for kind in base.__subclasses__() for each in (kind, *_configurations(kind)) if each is not Example]


@pytest.mark.parametrize("config", _configurations(), ids=lambda each: each.__name__)
def test_earlier_names_lead_to_options_that_exist_and_are_no_options_themselves(config: type[Config]) -> None:
    names = set(config.option_names())
    assert set(config.renamed.values()) <= names
    assert not set(config.renamed) & names
