"""Tests of the delay of signals."""

import signal
import threading
from collections.abc import Iterator

import pytest

from millrace.interrupts import Uninterrupted


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def number(request: pytest.FixtureRequest) -> Iterator[int]:
    """A signal whose handler raises an exception."""
    before = signal.signal(request.param, signal.default_int_handler)
    yield request.param
    assert signal.getsignal(request.param) is signal.default_int_handler
    signal.signal(request.param, before)


def test_a_signal_is_handled_at_the_end_of_the_block(number: int) -> None:
    steps = []

    def work() -> None:
        with Uninterrupted():
            signal.raise_signal(number)
            steps.append("after the signal")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps


def test_a_signal_ends_a_wait_in_the_block(number: int) -> None:
    steps = []

    def wait() -> None:
        signal.raise_signal(number)
        steps.append("the wait went on")

    def work(*, comes_before: bool) -> None:
        with Uninterrupted() as block:
            if comes_before:
                signal.raise_signal(number)
            block.wait(wait)

    for comes_before in (False, True):
        with pytest.raises(KeyboardInterrupt):
            work(comes_before=comes_before)
    assert not steps


def test_signals_are_handled_in_their_order_also_after_an_error() -> None:
    handled: list[int] = []

    def handle(number: int, _: object) -> None:
        handled.append(number)
        raise KeyboardInterrupt

    def work() -> None:
        with Uninterrupted():
            for number in both:
                signal.raise_signal(number)

    for both in ([signal.SIGINT, signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]):
        before = {number: signal.signal(number, handle) for number in both}
        try:
            with pytest.raises(KeyboardInterrupt):
                work()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        assert handled == both
        handled.clear()


def test_blocks_can_be_nested(number: int) -> None:
    steps = []

    def work() -> None:
        with Uninterrupted():
            with Uninterrupted():
                signal.raise_signal(number)
            steps.append("after the inner block")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps


def test_a_wait_in_a_nested_block_is_not_interrupted(number: int) -> None:
    steps = []

    def work() -> None:
        with Uninterrupted():
            with Uninterrupted() as inner:
                inner.wait(lambda: signal.raise_signal(number))
                steps.append("after the wait")
            steps.append("after the inner block")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["after the wait", "after the inner block"]


def test_work_of_a_handler_is_not_interrupted(number: int) -> None:
    steps = []

    def handle(*_: object) -> None:
        signal.signal(other, signal.default_int_handler)
        with Uninterrupted():
            signal.raise_signal(other)
            steps.append("in the handler")

    other = signal.SIGTERM if number == signal.SIGINT else signal.SIGINT
    before = {each: signal.getsignal(each) for each in (number, other)}
    signal.signal(number, handle)
    try:
        with Uninterrupted() as block, pytest.raises(KeyboardInterrupt):
            block.wait(lambda: signal.raise_signal(number))
        assert steps == ["in the handler"]
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_a_handler_can_set_another_one() -> None:
    def handle(*arguments: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    before = signal.signal(signal.SIGINT, handle)
    try:
        with Uninterrupted() as block:
            block.wait(lambda: signal.raise_signal(signal.SIGINT))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_without_a_handler_of_python_is_left_alone() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Uninterrupted():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_have_no_signals() -> None:
    results = []

    def work() -> None:
        with Uninterrupted() as block:
            results.append(block.wait(lambda: 7))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [7]
