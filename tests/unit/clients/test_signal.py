"""Tests of the signal.

The tests cover waiting, waking, and the exclusive waiter.
"""

from __future__ import annotations

import threading

import pytest

from millrace.clients.signal import Signal
from millrace.errors import ConcurrentUseError, WakeupError

from ...integration.waiting import AN_HOUR_MS, STALL_S


def test_a_signal_since_the_last_check_is_not_missed() -> None:
    signal = Signal()
    serial = signal.serial
    signal.ring()
    signal.wait(serial, AN_HOUR_MS / 1000)


def test_a_wake_up_ends_one_wait() -> None:
    signal = Signal()
    signal.wakeup()
    with pytest.raises(WakeupError):
        signal.wait(signal.serial, STALL_S)
    signal.wait(signal.serial, 0)
    signal.wakeup()
    signal.forget_wakeup()
    signal.check()
    signal.ignore_wakeups()
    signal.wakeup()
    signal.check()


def test_one_thread_at_a_time_and_again_from_within() -> None:
    signal = Signal()
    refused: list[Exception] = []

    def other() -> None:
        try:
            signal.enter()
        except ConcurrentUseError as error:
            refused.append(error)

    with signal.in_use(), signal.in_use():
        assert signal.is_mine
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(refused) == 1
    assert not signal.is_mine
    with signal.in_use():
        pass
