"""Model test of the purgatory.

Each operation completes exactly once, in any order of events.
"""

import gc
import weakref

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace_broker.purgatory import DelayedOperation, Purgatory, Timer
from millrace_broker.purgatory.purgatory import PurgatoryStatistics

KEYS = ["a", "b", "c"]


class ManualClock:
    def __init__(self):
        self.seconds = 5.0

    def now_ms(self):
        return int(self.seconds * 1000)

    def monotonic(self):
        return self.seconds


class Threshold(DelayedOperation):
    """A delayed operation that waits for a sum.

    The operation completes when the counters of its keys add up to a threshold.
    """

    def __init__(self, counters, keys, enough, delay_ms, then=None):
        super().__init__(delay_ms)
        self.counters, self.keys, self.enough, self.then = counters, keys, enough, then
        self.answers, self.expirations = [], 0

    @property
    def is_satisfied(self):
        return sum(self.counters[key] for key in self.keys) >= self.enough

    def try_complete(self):
        return self.is_satisfied and self.force_complete()

    def on_complete(self):
        self.answers.append(self.is_satisfied)
        if self.then is not None:
            self.then()

    def on_expiration(self):
        self.expirations += 1


class PurgatoryMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.clock = ManualClock()
        self.timer = Timer(self.clock)
        self.purgatory = Purgatory("test", self.timer)
        self.counters = dict.fromkeys(KEYS, 0)
        self.operations = {}

    def change(self, key):
        self.counters[key] += 1
        self.purgatory.check(key)

    @rule(
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4),
        missing=st.integers(-1, 4),
        delay_ms=st.integers(0, 50),
        touches=st.none() | st.sampled_from(KEYS),
    )
    def wait(self, keys, missing, delay_ms, touches):
        """Add an operation.

        On completion, some operations change a key, which may complete others or check the same one again.
        """
        then = None if touches is None else lambda: self.change(touches)
        enough = sum(self.counters[key] for key in keys) + missing
        operation = Threshold(self.counters, keys, enough, delay_ms, then)
        self.operations[operation] = self.clock.seconds + delay_ms / 1000
        assert self.purgatory.complete_or_watch(operation, keys) == operation.is_completed

    @rule(key=st.sampled_from(KEYS))
    def something_happens(self, key):
        self.change(key)

    @rule(key=st.sampled_from(KEYS))
    def a_key_goes_away(self, key):
        waiting = [each for each in self.operations if key in each.keys and not each.is_completed]
        self.purgatory.complete_all(key)
        assert all(each.is_completed for each in waiting)

    @precondition(lambda self: self.operations)
    @rule(data=st.data())
    def somebody_completes_it(self, data):
        operation = data.draw(st.sampled_from(list(self.operations)))
        before = operation.is_completed
        assert operation.force_complete() != before

    @rule(ms=st.integers(0, 30))
    def time_passes(self, ms):
        self.clock.seconds += ms / 1000
        self.timer.turn()

    @invariant()
    def each_is_answered_once(self):
        for operation in self.operations:
            assert len(operation.answers) == operation.is_completed
            assert operation.expirations <= len(operation.answers)
            # The operation is checked whenever one of its keys changes, so no satisfied operation waits.
            assert operation.is_completed or not operation.is_satisfied

    @invariant()
    def none_waits_beyond_its_time(self):
        self.timer.turn()
        for operation, deadline in self.operations.items():
            assert operation.is_completed or self.clock.seconds <= deadline + 0.002

    @invariant()
    def what_waits_is_what_is_counted(self):
        waiting = [each for each in self.operations if not each.is_completed]
        found = self.purgatory.statistics()
        assert found.delayed == len(waiting) == len(self.timer)
        assert found.watched == sum(len(set(each.keys)) for each in waiting)
        assert found.expired == sum(each.expirations for each in self.operations)

    def teardown(self):
        self.purgatory.close()
        assert all(len(each.answers) == 1 for each in self.operations)
        assert self.purgatory.statistics().delayed == self.purgatory.statistics().watched == len(self.timer) == 0


TestPurgatory = PurgatoryMachine.TestCase


@pytest.fixture
def purgatory():
    return Purgatory("test", Timer(ManualClock()))


def test_a_change_while_an_operation_is_parked_is_noticed(purgatory):
    # The condition becomes true after the first check, by a change that finds no watcher yet.
    counters = {"a": 0}

    class Late(Threshold):
        def try_complete(self):
            before = super().try_complete()
            counters["a"] = 1
            return before

    operation = Late(counters, ["a"], 1, 1000)
    assert purgatory.complete_or_watch(operation, ["a"])
    assert operation.answers == [True]
    assert purgatory.statistics().watched == 0


def test_nothing_waits_in_a_purgatory_that_is_closed(purgatory):
    purgatory.close()
    operation = Threshold({"a": 0}, ["a"], 1, 1000)
    assert purgatory.complete_or_watch(operation, ["a"])
    assert (operation.answers, operation.expirations) == ([False], 0)


def test_an_operation_expires_at_its_time_and_is_forgotten_under_all_its_keys():
    clock = ManualClock()
    timer = Timer(clock)
    purgatory = Purgatory("test", timer)
    counters = {"a": 0, "b": 0}
    short, long = (Threshold(counters, ["a", "b", "a"], 1, delay_ms) for delay_ms in (10, 20))
    for operation in (short, long):
        assert not purgatory.complete_or_watch(operation, operation.keys)
    assert purgatory.statistics() == PurgatoryStatistics(delayed=2, watched=4, completed=0, expired=0)
    assert (purgatory.waiting("a"), purgatory.waiting("c")) == (2, 0)
    clock.seconds += 0.009
    assert timer.turn() == 0
    clock.seconds += 0.002
    assert timer.turn() == 1
    assert (short.expirations, short.answers, long.is_completed) == (1, [False], False)
    assert purgatory.statistics() == PurgatoryStatistics(delayed=1, watched=2, completed=1, expired=1)
    assert (purgatory.complete_all("a"), purgatory.complete_all("a")) == (1, 0)
    assert (long.expirations, long.answers) == (0, [False])
    assert purgatory.statistics() == PurgatoryStatistics(delayed=0, watched=0, completed=2, expired=1)
    clock.seconds += 1
    assert timer.turn() == 0


def test_a_change_completes_only_the_operations_that_are_satisfied(purgatory):
    counters = {"a": 0}
    operations = [Threshold(counters, ["a"], enough, 1000) for enough in (1, 2)]
    for operation in operations:
        purgatory.complete_or_watch(operation, ["a"])
    counters["a"] = 1
    assert (purgatory.check("a"), purgatory.check("a"), purgatory.check("unknown")) == (1, 0, 0)
    assert [operation.is_completed for operation in operations] == [True, False]


def test_operations_are_checked_in_order_of_arrival(purgatory):
    counters, order = {"a": 0}, []
    for number in range(5):
        operation = Threshold(counters, ["a"], 1, 1000, then=lambda number=number: order.append(number))
        purgatory.complete_or_watch(operation, ["a"])
    assert purgatory.waiting("a") == 5
    counters["a"] = 1
    assert purgatory.check("a") == 5
    assert order == [0, 1, 2, 3, 4]
    assert purgatory.statistics() == PurgatoryStatistics(delayed=0, watched=0, completed=5, expired=0)


@pytest.mark.parametrize("ends", ["by its condition", "by its timeout", "with its key"])
def test_a_completed_operation_is_freed_without_a_garbage_collection(ends):
    clock, counters = ManualClock(), dict.fromkeys(KEYS, 0)
    timer = Timer(clock)
    purgatory = Purgatory("test", timer)
    operation = Threshold(counters, ["a"], 1, delay_ms=10)
    gc.disable()
    try:
        assert not purgatory.complete_or_watch(operation, ["a"])
        if ends == "by its condition":
            counters["a"] = 1
            assert purgatory.check("a") == 1
        elif ends == "by its timeout":
            clock.seconds += 1
            timer.turn()
        else:
            assert purgatory.complete_all("a") == 1
        assert len(operation.answers) == 1
        freed = weakref.ref(operation)
        del operation
        assert freed() is None
    finally:
        gc.enable()
