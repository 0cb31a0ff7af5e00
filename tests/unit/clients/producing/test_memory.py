"""Tests of the producer's memory.

The memory is bounded, and is granted in the order of the requests.
"""

import threading
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.clients.producing.memory import BufferMemory, Waiter
from millrace.errors import BufferExhaustedError

from ....integration.waiting import STALL_S


def test_memory_blocks_until_there_is_room() -> None:
    memory = BufferMemory(100)
    memory.acquire(80, 0)
    with pytest.raises(BufferExhaustedError, match=r"80 bytes are not acknowledged yet .*buffer\.memory=100"):
        memory.acquire(30, 0.01)
    taken = threading.Event()

    def take() -> None:
        memory.acquire(30, 30)
        taken.set()

    thread = threading.Thread(target=take)
    thread.start()
    memory.release(80)
    thread.join(STALL_S)
    assert taken.is_set()
    assert memory.used_bytes == 30


def test_a_request_larger_than_the_memory_is_granted_alone() -> None:
    memory = BufferMemory(100)
    memory.acquire(500, 0)
    memory.release(500)
    memory.acquire(1, 0)
    with pytest.raises(BufferExhaustedError):
        memory.acquire(500, 0)


def test_a_waiting_request_causes_a_send_of_held_records() -> None:
    told: list[bool] = []
    memory = BufferMemory(100, on_wait=lambda: told.append(memory.is_exhausted))
    memory.acquire(100, 0)
    with pytest.raises(BufferExhaustedError):
        memory.acquire(1, 0)
    assert not told  # the call did not wait
    with pytest.raises(BufferExhaustedError):
        memory.acquire(1, 0.01)
    assert told == [True]
    assert not memory.is_exhausted


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(1, 150)),
        st.tuples(st.just("try"), st.integers(1, 150)),
        st.tuples(st.just("release"), st.integers(0, 10)),
        st.tuples(st.just("withdraw"), st.integers(0, 10)),
    ),
    max_size=60,
)


@given(_steps)
def test_waiting_requests_are_granted_in_order_and_within_the_limit(steps: list[tuple[str, int]]) -> None:
    # The model is a queue of sizes and the granted bytes.
    memory = BufferMemory(100)
    woken: list[int] = []
    waiting: deque[tuple[int, Waiter]] = deque()  # as the model expects
    held: list[int] = []

    def fits(size: int) -> bool:
        return not held or sum(held) + size <= 100

    def serve() -> None:
        while waiting and fits(waiting[0][1].size_bytes):
            number, waiter = waiting.popleft()
            held.append(waiter.size_bytes)
            expected.append(number)

    expected: list[int] = []
    for number, (step, argument) in enumerate(steps):
        if step == "wait":
            waiter = memory.acquire_later(argument, lambda number=number: woken.append(number))  # type: ignore[misc]
            waiting.append((number, waiter))
        elif step == "try":
            may = not waiting and fits(argument)
            assert memory.try_acquire(argument) == may
            if may:
                held.append(argument)
        elif step == "release" and held:
            memory.release(held.pop(argument % len(held)))
        elif step == "withdraw" and waiting:
            entry = waiting[argument % len(waiting)]
            waiting.remove(entry)
            assert not memory.withdraw(entry[1])
        serve()
        assert woken == expected
        assert memory.used_bytes == sum(held)
        assert sum(held) <= 100 or len(held) == 1
        assert memory.is_exhausted == bool(waiting)
