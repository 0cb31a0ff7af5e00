"""Tests of timestamps and punctuations of processors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from millrace_streams import Record, StreamsBuilder, TestRecord, TopologyTestDriver, UserFunctionError

from .test_state_packed import InPages

TYPES = {"key": "string", "value": "long"}


@pytest.mark.parametrize(
    "forward",
    [
        lambda context, record: context.forward(record.key, record.value, record.timestamp - 5),
        lambda context, record: context.forward_value(record.value, -1),
        lambda context, record: context.forward(record.with_timestamp(-5)),
        lambda context, record: context.forward(Record("a", 1, -5)),
        lambda context, record: context.forward("a", 1, 2**63),
        lambda context, record: context.forward("a", 1, 1.5),
    ],
)
def test_an_invalid_timestamp_of_a_forwarded_record_is_an_error_of_the_processor(forward: Any) -> None:
    class Back:
        def init(self, context: Any) -> None:
            self.context = context

        def process(self, record: Record) -> None:
            if record.value:
                forward(self.context, record)

    builder = StreamsBuilder()
    builder.stream("in", **TYPES).process(Back, name="back").to("out")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(UserFunctionError, match=r"back: Back raised .*: (.* may not be negative|'float')") as error:
        driver.pipe_records([TestRecord("in", "a", 0, 1), TestRecord("in", "a", 1, 2)])
    assert (error.value.topic, error.value.offset) == ("in", 1)


def calls(init: Any, batches: list[list[int]], driver_of: Any = TopologyTestDriver) -> list[tuple[str, int]]:
    """Return name and time of the punctuations that records at these times cause; ``init`` schedules them."""

    class Ticking:
        def init(self, context: Any) -> None:
            init(context, lambda name: lambda time_ms: context.forward(name, time_ms, time_ms))

        def process(self, record: Record) -> None:
            pass

    builder = StreamsBuilder()
    builder.stream("in", **TYPES).process(Ticking).to("out")
    driver = driver_of(builder.build())
    for batch in batches:
        driver.pipe_records([TestRecord("in", "k", 1, time_ms) for time_ms in batch])
    return [(record.key, record.value) for record in driver.read_records("out")]


def slow_and_fast(context: Any, tell: Any) -> None:
    context.schedule(timedelta(milliseconds=10), "stream_time", tell("slow"))
    context.schedule(3, "stream_time", tell("fast"))


def three_together(context: Any, tell: Any) -> None:
    for name in "abc":
        context.schedule(10, "stream_time", tell(name))


SLOW_AND_FAST = [("slow", 0), ("fast", 0), ("fast", 12), ("slow", 12), ("fast", 24), ("slow", 24)]
# Java's PriorityQueue is not stable: after the first of three, the last one replaces it.
THREE = [("a", 0), ("c", 0), ("b", 0), ("c", 12), ("b", 12), ("a", 12), ("b", 24), ("a", 24), ("c", 24)]


@pytest.mark.parametrize("driver_of", [TopologyTestDriver, InPages])
@pytest.mark.parametrize("batches", [[[0, 12, 24]], [[0], [12], [24]]])
@pytest.mark.parametrize(("init", "expected"), [(slow_and_fast, SLOW_AND_FAST), (three_together, THREE)])
def test_punctuations_are_called_by_their_due_times(
    init: Any, expected: list[tuple[str, int]], batches: list[list[int]], driver_of: Any
) -> None:
    # PunctuationQueue of Kafka Streams 3.9.
    assert calls(init, batches, driver_of) == expected


@pytest.mark.parametrize("driver_of", [TopologyTestDriver, InPages])
def test_a_cancelled_punctuation_keeps_its_place_over_a_checkpoint(driver_of: Any) -> None:
    """PunctuationQueue of Kafka Streams leaves it in the queue until it is due, and it decides the order of others."""

    class Cancelling:
        def init(self, context: Any) -> None:
            def tell(name: str) -> Any:
                return lambda time_ms: context.forward(name, time_ms, time_ms)

            self.last = [context.schedule(10, "stream_time", tell(name)) for name in "abc"][-1]

        def process(self, record: Record) -> None:
            if record.timestamp == 5:
                self.last.cancel()

    builder = StreamsBuilder()
    builder.stream("in", **TYPES).process(Cancelling).to("out")
    driver = driver_of(builder.build())
    for time_ms in (0, 5, 12):
        driver.pipe_records([TestRecord("in", "k", 1, time_ms)])
    found = [(record.key, record.value) for record in driver.read_records("out")]
    assert found == [("a", 0), ("c", 0), ("b", 0), ("b", 12), ("a", 12)]


def test_wall_clock_punctuations_are_called_by_their_due_times() -> None:
    class Ticking:
        def init(self, context: Any) -> None:
            for name, interval_ms in (("slow", 100), ("fast", 30)):
                context.schedule(interval_ms, "wall_clock_time", lambda now_ms, name=name: called.append(name))

        def process(self, record: Record) -> None:
            pass

    called: list[str] = []
    builder = StreamsBuilder()
    builder.stream("in", **TYPES).process(Ticking).to("out")
    driver = TopologyTestDriver(builder.build())
    driver.advance_wall_clock(120)
    assert called == ["fast", "slow"]


def test_a_punctuation_that_an_earlier_one_cancels_is_not_called() -> None:
    def init(context: Any, tell: Any) -> None:
        slow = context.schedule(10, "stream_time", tell("slow"))

        def fast(time_ms: int) -> None:
            tell("fast")(time_ms)
            if time_ms >= 12:
                slow.cancel()

        context.schedule(3, "stream_time", fast)

    assert calls(init, [[0, 12, 30]]) == [("slow", 0), ("fast", 0), ("fast", 12), ("fast", 30)]


def test_a_stream_time_punctuation_that_another_one_schedules_is_called_in_the_same_round() -> None:
    def init(context: Any, tell: Any) -> None:
        def outer(time_ms: int) -> None:
            tell("outer")(time_ms)
            if time_ms < 5:
                context.schedule(50, "stream_time", tell("inner"))

        context.schedule(10, "stream_time", outer)

    assert calls(init, [[0, 1, 12, 50]]) == [("outer", 0), ("inner", 0), ("outer", 12), ("outer", 50), ("inner", 50)]


def test_what_a_punctuation_forwards_comes_after_the_record_also_without_forks() -> None:
    # The record takes another way to the merge, which has the processor's records first.
    class Ticking:
        def init(self, context: Any) -> None:
            context.schedule(10, "stream_time", lambda time_ms: context.forward("tick", time_ms, time_ms))

        def process(self, record: Any) -> None:
            pass

    builder = StreamsBuilder()
    ticks = builder.stream("ticked", **TYPES).process(Ticking)
    ticks.merge(builder.stream("other", **TYPES)).to("out")
    driver = TopologyTestDriver(builder.build())
    assert not driver.plan.forks
    driver.pipe_records([TestRecord("other", "a", 1, 0), TestRecord("other", "b", 2, 15)])
    found = [(each.key, each.timestamp) for each in driver.read_records("out")]
    assert found == [("a", 0), ("tick", 0), ("b", 15), ("tick", 15)]
