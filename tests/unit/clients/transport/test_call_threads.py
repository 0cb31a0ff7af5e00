"""Tests of the call threads.

Work begins at once, and idle threads are used again.
"""

from __future__ import annotations

import threading

import pytest

from millrace.clients.transport.call_threads import CallThreads

from ....integration.waiting import STALL_S


def _run(threads: CallThreads) -> threading.Thread:
    """Return the thread in which a call runs."""
    found: list[threading.Thread] = []
    is_done = threading.Event()

    def work() -> None:
        found.append(threading.current_thread())
        is_done.set()

    assert threads.start(work)
    assert is_done.wait(STALL_S)
    return found[0]


def test_work_that_waits_keeps_no_other_waiting() -> None:
    threads = CallThreads("test")
    release = threading.Event()
    begun = [threading.Event() for _ in range(5)]
    for event in begun:

        def work(event: threading.Event = event) -> None:
            event.set()
            release.wait(STALL_S)

        assert threads.start(work)
    assert all(event.wait(STALL_S) for event in begun)
    release.set()
    threads.close()


def test_few_threads_do_what_comes_one_after_the_other() -> None:
    threads = CallThreads("test")
    # A thread becomes idle a moment after its work, so one more thread may be started.
    assert len({_run(threads) for _ in range(200)}) < 20
    threads.close()


def test_a_failure_is_logged_and_its_thread_continues(caplog: pytest.LogCaptureFixture) -> None:
    threads = CallThreads("test")

    def fail() -> None:
        raise ValueError("a defect")

    assert threads.start(fail)
    _run(threads)
    threads.close()
    for thread in threading.enumerate():
        if thread.name.startswith("test-"):
            thread.join(STALL_S)
    assert "a defect" in caplog.text


def test_nothing_is_started_once_closed_and_threads_end() -> None:
    threads = CallThreads("test")
    thread = _run(threads)
    threads.close()
    threads.close()
    thread.join(STALL_S)
    assert not thread.is_alive()
    assert not threads.start(lambda: None)
