"""Tests of values that are computed in a thread."""

from __future__ import annotations

import pickle
from threading import Event

import pytest

from millrace.errors import UsageError
from pyspark_millrace.eventually import Eventually

from ...integration.waiting import STALL_S


def test_a_value_is_created_in_the_background_and_get_waits_for_it() -> None:
    may_go_on, made = Event(), []

    def make() -> list[str]:
        assert may_go_on.wait(STALL_S)
        made.append("value")
        return made

    value = Eventually(make)
    assert not made
    may_go_on.set()
    assert value.get() is value.get() is made == ["value"]


def test_each_caller_gets_the_error_of_the_creation() -> None:
    def fail() -> str:
        raise UsageError("no such topic")

    value = Eventually(fail)
    for ask in (value.get, value.get, lambda: pickle.dumps(value)):
        with pytest.raises(UsageError, match="no such topic"):
            ask()


def test_a_pickled_value_is_the_created_value() -> None:
    assert pickle.loads(pickle.dumps(Eventually(lambda: {"orders": 4}))).get() == {"orders": 4}
