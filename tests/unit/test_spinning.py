"""Tests of threads that spin for an answer, or sleep."""

import pytest

from millrace.spinning import Spinning

EVENT = [(7, 1)]
SPIN_S = 0.0006
LOOK_S = 0.00001


class World:
    """A clock that spinning and sleeping advance.

    There is one event at a time.
    """

    def __init__(self):
        self.now_s, self.due_s, self.looks, self.sleeps = 100.0, 0.0, 0, 0

    def monotonic(self):
        return self.now_s

    def poll(self, timeout_ms):
        if timeout_ms:
            self.sleeps += 1
            self.now_s = min(max(self.due_s, self.now_s), self.now_s + timeout_ms / 1000)
        else:
            self.looks += 1
            self.now_s += LOOK_S
        return EVENT if self.now_s >= self.due_s else []

    def wait(self, spinning, after_s, timeout_s=30.0):
        """Wait for the events, and return how often the thread spun and slept."""
        self.due_s, self.looks, self.sleeps = self.now_s + after_s, 0, 0
        return spinning.wait(self.poll, timeout_s), self.looks, self.sleeps


@pytest.fixture
def world():
    return World()


def test_a_thread_with_immediate_answers_never_sleeps(world):
    spinning = Spinning(SPIN_S, world.monotonic, has_processors=True)
    for _ in range(100):
        events, looks, sleeps = world.wait(spinning, SPIN_S * 0.7)
        assert (events, sleeps) == (EVENT, 0)
        assert looks > 2


def test_a_thread_with_slow_answers_sleeps_and_soon_stops_spinning(world):
    spinning = Spinning(SPIN_S, world.monotonic, has_processors=True)
    events, looks, sleeps = world.wait(spinning, SPIN_S * 4)
    assert (events, sleeps) == (EVENT, 1)
    assert looks > 2
    for _ in range(4):
        world.wait(spinning, SPIN_S * 4)
    assert world.wait(spinning, SPIN_S * 4) == (EVENT, 1, 1)
    # Until answers are fast again.
    for _ in range(10):
        world.wait(spinning, SPIN_S / 4)
    assert world.wait(spinning, SPIN_S / 4)[2] == 0


def test_one_long_wait_among_short_ones_changes_nothing(world):
    spinning = Spinning(SPIN_S, world.monotonic, has_processors=True)
    for _ in range(10):
        world.wait(spinning, SPIN_S / 4)
    assert world.wait(spinning, 5.0)[2] == 1
    assert world.wait(spinning, SPIN_S / 2)[2] == 0


def test_one_processor_is_left_to_the_answering_thread(world):
    spinning = Spinning(SPIN_S, world.monotonic, has_processors=False)
    assert world.wait(spinning, SPIN_S / 2) == (EVENT, 1, 1)


def test_one_thread_of_a_process_looks_at_a_time(world):
    other = World()
    first, second = (
        Spinning(SPIN_S, world.monotonic, has_processors=True),
        Spinning(SPIN_S, other.monotonic, has_processors=True),
    )
    looks = []

    def poll(timeout_ms):
        looks.append(timeout_ms)
        if len(looks) == 2:  # the first event occurs before the thread takes its turn
            assert other.wait(second, SPIN_S / 2) == (EVENT, 1, 1)
        return world.poll(timeout_ms)

    world.due_s = world.now_s + SPIN_S / 2
    assert first.wait(poll, 30.0) == EVENT
    assert len(looks) > 2
    assert other.wait(second, SPIN_S / 2)[2] == 0


def test_no_event_in_time_is_none(world):
    spinning = Spinning(SPIN_S, world.monotonic, has_processors=True)
    assert world.wait(spinning, 9.0, timeout_s=1.0)[0] == []
    assert world.wait(spinning, 9.0, timeout_s=0.0)[0] == []
