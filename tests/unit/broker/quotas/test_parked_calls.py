from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from millrace_broker.quotas.parked_calls import ParkedCalls


def _parked(bytes_max: int) -> tuple[ParkedCalls[str], list[str]]:
    return ParkedCalls(bytes_max), []


def test_the_poll_that_has_waited_longest_is_evicted_when_memory_is_full() -> None:
    parked, answered = _parked(100)
    for name in ("first", "second", "third"):
        parked.poll(name, 40, lambda name=name: answered.append(name))  # type: ignore[misc]
    assert answered == ["first"]
    assert (parked.bytes, len(parked), parked.evicted) == (120, 3, 1)
    parked.woken("first")
    parked.poll("first", 40, lambda: answered.append("first again"))
    assert answered == ["first", "first again"], "a call that was evicted does not wait again"
    assert parked.evicted == 1
    parked.release("first")
    assert (parked.bytes, len(parked)) == (80, 2)


def test_a_poll_that_was_woken_is_not_evicted() -> None:
    parked, answered = _parked(100)
    for name in ("first", "second"):
        parked.poll(name, 40, lambda name=name: answered.append(name))  # type: ignore[misc]
    parked.woken("first")
    parked.poll("third", 40, lambda: answered.append("third"))
    assert answered == ["second"]


def test_a_poll_that_waits_again_has_waited_for_less_time_than_the_others() -> None:
    parked, answered = _parked(100)
    for name in ("first", "second"):
        parked.poll(name, 40, lambda name=name: answered.append(name))  # type: ignore[misc]
    parked.woken("first")
    parked.poll("first", 40, lambda: answered.append("first"))
    parked.poll("third", 40, lambda: answered.append("third"))
    assert answered == ["second"]


def test_a_new_poll_is_answered_itself_where_nothing_else_can_be() -> None:
    parked, answered = _parked(100)
    assert parked.bind("append", 50)
    parked.poll("poll", 60, lambda: answered.append("poll"))
    assert answered == ["poll"]


def test_an_evicted_poll_is_answered_when_it_would_wait_again() -> None:
    parked, answered = _parked(50)
    parked.poll("first", 40, lambda: answered.append("first"))
    parked.poll("second", 40, lambda: answered.append("second"))
    parked.woken("first")
    parked.poll("first", 40, lambda: answered.append("again"))
    assert answered == ["first", "again"]


def test_calls_that_must_wait_take_at_most_half_and_make_polls_give_way() -> None:
    parked, answered = _parked(100)
    parked.poll("poll", 80, lambda: answered.append("poll"))
    assert parked.bind("append", 30)
    assert answered == ["poll"]
    assert not parked.bind("another", 30), "the calls would take more than half"
    assert "another" not in parked
    assert parked.bind("small", 20)


class _Machine(RuleBasedStateMachine):
    """A model of ``ParkedCalls``.

    The model is a list of the calls, from which every figure is computed again.
    """

    calls = Bundle("calls")

    @initialize(bytes_max=st.integers(1, 60))
    def begin(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.parked: ParkedCalls[int] = ParkedCalls(bytes_max)
        self.sizes: dict[int, int] = {}
        self.waiting: list[int] = []  # the call that has waited longest first
        self.bound: set[int] = set()
        self.evicted: list[int] = []
        self.told: list[int] = []
        self.made = 0

    def _free(self) -> int:
        gone = set(self.evicted)
        return self.bytes_max - sum(size for call, size in self.sizes.items() if call not in gone)

    def _evict_for(self, size: int) -> None:
        while self.waiting and self._free() < size:
            self.evicted.append(self.waiting.pop(0))

    @rule(target=calls, size=st.integers(1, 70))
    def poll(self, size: int) -> int:
        self.made += 1
        call = self.made
        before = len(self.told)
        self._evict_for(size)
        fits = self._free() >= size
        self.sizes[call] = size
        (self.waiting if fits else self.evicted).append(call)
        self.parked.poll(call, size, lambda: self.told.append(call))
        assert self.told[before:] == self.evicted[before:]
        return call

    @rule(target=calls, size=st.integers(1, 40))
    def bind(self, size: int) -> int:
        self.made += 1
        call = self.made
        is_small = sum(self.sizes[each] for each in self.bound) + size <= self.bytes_max // 2
        if is_small:
            self._evict_for(size)
        fits = is_small and self._free() >= size
        assert self.parked.bind(call, size) is fits
        if fits:
            self.sizes[call] = size
            self.bound.add(call)
        return call

    @rule(call=calls)
    def wake(self, call: int) -> None:
        self.parked.woken(call)
        if call in self.waiting:
            self.waiting.remove(call)

    @rule(call=calls)
    def poll_again(self, call: int) -> None:
        if call in self.waiting or call not in self.sizes:
            return
        if call in self.evicted:
            told: list[int] = []
            self.parked.poll(call, 1, lambda: told.append(call))
            assert told == [call]
            return
        self.bound.discard(call)
        self.waiting.append(call)
        self.parked.poll(call, self.sizes[call], lambda: self.told.append(call))

    @rule(call=consumes(calls))
    def release(self, call: int) -> None:
        self.parked.release(call)
        self.sizes.pop(call, None)
        self.bound.discard(call)
        if call in self.waiting:
            self.waiting.remove(call)

    @invariant()
    def as_the_model_says(self) -> None:
        assert self.told == self.evicted
        assert self.parked.evicted == len(self.evicted)
        assert len(self.parked) == len(self.sizes)
        assert self.parked.bytes == sum(self.sizes.values())
        assert self._free() >= 0


TestModel = _Machine.TestCase
