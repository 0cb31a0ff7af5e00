"""Tests of the timing wheel.

Every timer expires once, at its deadline and in order, whatever is started, cancelled and skipped meanwhile.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace_broker.purgatory import TimerEntry, TimingWheel


def entry(deadline_ms):
    return TimerEntry(deadline_ms, lambda: None)


class WheelMachine(RuleBasedStateMachine):
    """Model test of the wheel against a list of deadlines.

    Wheels have 4 slots, so that there are many levels.
    """

    def __init__(self):
        super().__init__()
        self.now = 1_000_003
        self.wheel = TimingWheel(self.now, wheel_size=4)
        self.pending = []

    @rule(delay=st.one_of(st.integers(-3, 20), st.integers(0, 5000)))
    def start(self, delay):
        started = entry(self.now + delay)
        assert self.wheel.add(started) == (delay > 0)
        if delay > 0:
            self.pending.append(started)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def cancel(self, data):
        chosen = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        assert chosen.cancel()
        assert not chosen.cancel()

    @rule(by=st.one_of(st.integers(0, 20), st.integers(0, 3000)))
    def advance(self, by):
        self.now += by
        expired = self.wheel.advance(self.now)
        due = [each for each in self.pending if each.deadline_ms <= self.now]
        assert set(expired) == set(due)
        assert len(expired) == len(due)
        deadlines = [each.deadline_ms for each in expired]
        assert deadlines == sorted(deadlines)
        assert not any(each.is_pending for each in expired)
        self.pending = [each for each in self.pending if each not in due]

    @rule()
    def advance_to_when_it_says(self):
        if (due := self.wheel.next_due_ms()) is not None:
            self.advance(due - self.now)

    @invariant()
    def counts_and_the_next_time_agree(self):
        assert len(self.wheel) == len(self.pending)
        due = self.wheel.next_due_ms()
        if self.pending:
            assert self.now < due <= min(each.deadline_ms for each in self.pending)
        else:
            assert due is None


TestWheel = WheelMachine.TestCase


@given(st.integers(1, 10**9), st.sampled_from([2, 3, 256]))
def test_a_timer_far_away_is_reached_in_few_steps(delay, wheel_size):
    wheel, steps = TimingWheel(0, wheel_size=wheel_size), 0
    far = entry(delay)
    wheel.add(far)
    expired = []
    while (due := wheel.next_due_ms()) is not None:
        steps += 1
        expired += wheel.advance(due)
    assert expired == [far]
    assert wheel.now_ms == delay
    # At most once for every wheel.
    levels = next(level for level in range(1, 40) if wheel_size**level > delay)
    assert steps <= levels


@pytest.mark.parametrize("start_ms", [0, 1_000_003])
@pytest.mark.parametrize("step_ms", [1, 7])
def test_timers_of_all_wheels_expire_at_their_deadlines(start_ms, step_ms):
    wheel = TimingWheel(start_ms, wheel_size=4)
    started = [entry(start_ms + delay) for delay in range(300, 0, -1)]
    assert all(wheel.add(each) for each in started)
    assert not any(wheel.add(entry(start_ms - delay)) for delay in (0, 1))
    assert (len(wheel), wheel.next_due_ms()) == (300, start_ms + 1)
    for now_ms in range(start_ms, start_ms + 310, step_ms):
        expired = [each.deadline_ms for each in wheel.advance(now_ms)]
        assert expired == [each for each in range(now_ms - step_ms + 1, now_ms + 1) if 0 < each - start_ms <= 300]
        assert len(wheel) == max(0, 300 - (now_ms - start_ms))
    assert wheel.next_due_ms() is None
    assert not any(each.is_pending for each in started)


def test_cancelled_timers_do_not_expire_and_their_slot_is_used_again():
    wheel = TimingWheel(0, wheel_size=4)
    first, second = entry(3), entry(3)
    for each in (first, second):
        wheel.add(each)
    assert wheel.next_due_ms() == 3
    assert first.cancel()
    assert len(wheel) == 1
    assert second.cancel()
    assert (len(wheel), wheel.next_due_ms()) == (0, None)
    again = entry(3)
    wheel.add(again)
    assert wheel.next_due_ms() == 3
    assert wheel.advance(3) == [again]


def test_a_timer_is_in_one_wheel():
    wheel, started = TimingWheel(0), entry(5)
    wheel.add(started)
    with pytest.raises(AssertionError, match="one wheel"):
        wheel.add(started)


def test_a_cancelled_timer_is_in_no_wheel():
    wheel, started = TimingWheel(0), entry(5)
    wheel.add(started)
    assert started.is_pending
    started.cancel()
    assert (started.is_pending, len(wheel)) == (False, 0)


def test_time_that_stands_still_or_goes_back_expires_nothing():
    wheel, started = TimingWheel(100), entry(101)
    wheel.add(started)
    assert wheel.advance(100) == []
    assert wheel.advance(50) == []
    assert wheel.now_ms == 100
    assert wheel.advance(101) == [started]


def test_a_timer_runs_once_and_cannot_be_cancelled_after_it():
    ran = []
    timer = TimerEntry(5, lambda: ran.append("ran"))
    timer.run()
    timer.run()
    assert ran == ["ran"]
    assert not timer.cancel()
