"""Tests of futures that share a condition.

The first outcome counts, and all waits end.
"""

import pytest

from millrace.clients.producing.futures import Outcomes, ValueFuture
from millrace.errors import MessageTooLargeError, RequestTimedOutError


def test_only_the_first_outcome_counts() -> None:
    future: ValueFuture[int] = ValueFuture(Outcomes())
    called: list[int] = []
    future.add_done_callback(lambda done: called.append(done.result()))
    future.complete(1)
    future.complete(2)
    future.complete(error=MessageTooLargeError("late"))
    assert (future.result(), future.exception(), called) == (1, None, [1])
    future.add_done_callback(lambda done: called.append(2))
    assert called == [1, 2]


def test_errors_are_raised_and_waiting_ends() -> None:
    future: ValueFuture[int] = ValueFuture(Outcomes())
    with pytest.raises(RequestTimedOutError, match=r"within 0\.01 s"):
        future.result(0.01)
    future.complete(error=MessageTooLargeError("too large"))
    assert future.done()
    with pytest.raises(MessageTooLargeError):
        future.result()


def test_a_failing_callback_delays_no_waiter(caplog: pytest.LogCaptureFixture) -> None:
    future: ValueFuture[int] = ValueFuture(Outcomes())
    called: list[int] = []
    future.add_done_callback(lambda done: 1 / 0)
    future.add_done_callback(lambda done: called.append(done.result()))
    future.complete(1)
    assert called == [1]
    assert "a callback of a producer failed" in caplog.text
