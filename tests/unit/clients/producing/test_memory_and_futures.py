"""The buffer's bound, and futures that share a condition."""

import threading

import pytest

from millrace.clients.producing.futures import ValueFuture
from millrace.clients.producing.memory import BufferMemory
from millrace.errors import BufferExhaustedError, MessageTooLargeError, RequestTimedOutError


def test_memory_blocks_until_there_is_room() -> None:
    memory = BufferMemory(100)
    memory.acquire(80, 0)
    with pytest.raises(BufferExhaustedError, match=r"80 bytes still wait .*buffer\.memory=100"):
        memory.acquire(30, 0.01)
    taken = threading.Event()

    def take() -> None:
        memory.acquire(30, 30)
        taken.set()

    thread = threading.Thread(target=take)
    thread.start()
    memory.release(80)
    thread.join(30)
    assert taken.is_set()
    assert memory.used_bytes == 30


def test_what_is_larger_than_all_memory_passes_alone() -> None:
    memory = BufferMemory(100)
    memory.acquire(500, 0)
    memory.release(500)
    memory.acquire(1, 0)
    with pytest.raises(BufferExhaustedError):
        memory.acquire(500, 0)


def test_only_the_first_outcome_counts() -> None:
    condition = threading.Condition()
    future: ValueFuture[int] = ValueFuture(condition)
    called: list[int] = []
    future.add_done_callback(lambda done: called.append(done.result()))
    future.complete(1)
    future.complete(2)
    future.complete(error=MessageTooLargeError("late"))
    assert (future.result(), future.exception(), called) == (1, None, [1])


def test_errors_are_raised_and_waiting_ends() -> None:
    condition = threading.Condition()
    future: ValueFuture[int] = ValueFuture(condition)
    with pytest.raises(RequestTimedOutError, match=r"within 0\.01 s"):
        future.result(0.01)
    future.complete(error=MessageTooLargeError("too large"))
    assert future.done()
    with pytest.raises(MessageTooLargeError):
        future.result()
