"""Tests of dead letters that are results which records only released.

A topology in which a function fails on bad results is compared with one that filters them out.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_streams import (
    StreamsBuilder,
    Suppressed,
    compile_topology,
    key_value_store,
    sessions,
    sliding,
    tumbling,
    within,
)
from millrace_streams.compiler import Stages, stages_of
from millrace_streams.layout import OPAQUE_SHAPE
from millrace_streams.runners.dead_letters import DEAD_LETTERS
from millrace_streams.runners.packed_rows import Packed

from .test_worker import TYPES, Script, Variable, as_rows, batch_results, bounded_results, stream_results, tables_of

BAD = 2


@dataclass(frozen=True)
class Check:
    """Treatment of bad results.

    A function fails on them, or (the oracle) a filter drops them.
    """

    fails: bool

    def __call__(self, value: Any) -> Any:
        if self.fails and value == BAD:
            raise ValueError("bad")
        return value

    def checked(self, stream: Any) -> Any:
        return stream.map_values(self, value="long") if self.fails else stream.filter(lambda value: value != BAD)


def suppressed(stream: Any, other: Any, check: Check) -> None:
    counts = stream.group_by_key().windowed_by(tumbling(10, grace=3)).count()
    check.checked(counts.suppress(Suppressed.until_window_closes()).to_stream()).to_delta("out")
    stream.group_by_key().reduce(lambda one, value: one + value).to_delta("sums")


def closed(stream: Any, other: Any, check: Check) -> None:
    for number, window in enumerate((tumbling(10), sliding(5, grace=2), sessions(4, grace=1))):
        counts = stream.group_by_key().windowed_by(window).emit_strategy("on_window_close").count()
        check.checked(counts.to_stream()).to_delta(f"out {number}")


def moved(stream: Any, other: Any, check: Check) -> None:
    """Fail on a later stage, where results of several keys meet."""
    counts = stream.group_by_key().windowed_by(tumbling(10)).count().suppress(Suppressed.until_window_closes())
    ones = counts.to_stream().map(lambda key, value: ("all", value), key="string", value="long")
    ones = ones if check.fails else ones.filter(lambda value: value != BAD)
    ones.group_by_key().aggregate(lambda: 0, lambda key, value, total: total + check(value), value="long").to_delta(
        "out"
    )


def unmatched(stream: Any, other: Any, check: Check) -> None:
    def join(left: int | None, right: int | None) -> int:
        return check(left if right is None else right) if None in (left, right) else 1

    joined = stream.outer_join(other, join, window=within(5, grace=2), value="long")
    (joined if check.fails else joined.filter(lambda value: value != BAD)).to_delta("out")


def waited(stream: Any, other: Any, check: Check) -> None:
    table = other.filter(lambda value: value is not None).to_table(versioned=100)
    joined = stream.left_join(table, lambda left, right: check(left), grace=4, value="long")
    (joined if check.fails else joined.filter(lambda value: value != BAD)).to_delta("out")


class Counting:
    """Processor that forwards the numbers of records at times."""

    def init(self, context: Any) -> None:
        self.context, self.counts = context, context.store("counts")
        context.schedule(10, "stream_time", self.punctuate)

    def process(self, record: Any) -> None:
        self.counts.put(record.key, (self.counts.get(record.key) or 0) + 1)

    def punctuate(self, time_ms: int) -> None:
        for key, number in list(self.counts.all()):
            self.context.forward(key, number, time_ms)
            self.counts.delete(key)


def punctuated(stream: Any, other: Any, check: Check) -> None:
    store = key_value_store("counts", **TYPES)
    check.checked(stream.process(Counting, stores=[store], **TYPES)).to_delta("out")


Build = Callable[[Any, Any, Check], None]


@cache
def stages(build: Build, *, fails: bool) -> Stages:
    builder = StreamsBuilder()
    build(builder.stream("in", **TYPES), builder.stream("other", **TYPES), Check(fails))
    return stages_of(compile_topology(builder.build(), {"in": OPAQUE_SHAPE, "other": OPAQUE_SHAPE}))


def letters_of(rows: list[Packed]) -> list[tuple[Any, ...]]:
    frames = [row.frame for row in rows if row.target == DEAD_LETTERS]
    return sorted(pl.concat(frames).rows(), key=repr) if frames else []


records = st.tuples(st.integers(0, 1), st.sampled_from("abc"), st.integers(1, 3), st.integers(0, 12))
scripts = st.lists(records, min_size=2, max_size=12).map(
    lambda found: [
        (topic, (key, value, time))
        for (topic, key, value, _), time in zip(found, accumulate(wait for *_, wait in found), strict=True)
    ]
)


@pytest.mark.parametrize(
    "build", [suppressed, closed, moved, unmatched, waited, punctuated], ids=lambda build: build.__name__
)
@settings(max_examples=6)
@given(script=scripts, cut=st.integers(1, 11))
def test_a_bad_result_that_was_held_back_is_a_dead_letter_instead_of_records(
    build: Build, script: Script, cut: int
) -> None:
    good, failing = stages(build, fails=False), stages(build, fails=True)
    expected = tables_of(good, bounded_results(good, [script]))
    one_by_one = stream_results(failing, [[record] for record in script], puts_aside=True)
    for rows in (
        one_by_one,
        stream_results(failing, [part for part in (script[:cut], script[cut:]) if part], puts_aside=True),
        bounded_results(failing, [script], puts_aside=True),
    ):
        found = tables_of(failing, rows)
        assert {name: as_rows(frame) for name, frame in found.items()} == {
            name: as_rows(frame) for name, frame in expected.items()
        }
        assert letters_of(rows) == letters_of(one_by_one)


def test_the_dead_letter_has_the_result_and_the_position_of_the_record_that_released_it() -> None:
    cut, states = stages(suppressed, fails=True), defaultdict[Any, Variable](Variable)
    script = [(0, (key, 1, time)) for key, time in [("a", 0), ("a", 1), ("b", 2), ("c", 15), ("c", 16), ("c", 50)]]
    [first, *others] = batch_results(cut, [script[:3], script[3:4], script[4:]], states=states, puts_aside=True)
    assert letters_of(first) == []
    [node] = [node.name for node in cut.plan.topology.nodes if "MAPVALUES" in node.name]
    assert [letter[:4] + letter[5:] for rows in others for letter in letters_of(rows)] == [
        ("in", 0, 3, node, b'["a", 0, 10]', b"2", 1),
        ("in", 0, 5, node, b'["c", 10, 20]', b"2", 16),
    ]


def test_the_same_micro_batch_again_has_the_same_dead_letters() -> None:
    cut, states = stages(suppressed, fails=True), defaultdict[Any, Variable](Variable)
    list(batch_results(cut, [[(0, (key, 1, time)) for key in "ab" for time in range(2)]], states=states))
    again = deepcopy(states)
    script = [(0, ("c", 1, 15)), (0, ("c", 1, 30))]
    found = [list(batch_results(cut, [script], states=each, puts_aside=True)) for each in (states, again)]
    assert found[0] == found[1]
    assert len(letters_of(found[0][0])) == 2


def test_any_number_of_results_can_fail() -> None:
    cut = stages(suppressed, fails=True)
    script = [(0, (f"{number}", 1, 0)) for number in range(200) for _ in range(1 + number % 2)]
    rows = stream_results(cut, [[*script, (0, ("a", 1, 50))]], puts_aside=True)
    assert len(letters_of(rows)) == 100
    assert sum(row.rows for row in rows if row.target == cut.plan.outputs[0].name) == 100


def test_a_result_is_good_if_it_fails_only_because_of_a_bad_one() -> None:
    def check(value: int) -> int:
        if value >= 2:
            raise ValueError("bad")
        return value

    builder = StreamsBuilder()
    counts = builder.stream("in", **TYPES).group_by_key().windowed_by(tumbling(10)).count()
    finals = counts.suppress(Suppressed.until_window_closes()).to_stream()
    keyed = finals.map(lambda key, value: (key.key[:1], value), key="string", value="long")
    sums = keyed.group_by_key().reduce(lambda one, value: one + value)
    sums.to_stream().map_values(check, value="long").to_delta("out")
    cut = stages_of(compile_topology(builder.build(), {"in": OPAQUE_SHAPE}))
    script = [(0, (key, 1, 0)) for key in ("ax", "ax", "ay", "bx", "by")] + [(0, ("z", 1, 50))]
    for rows in (stream_results(cut, [script], puts_aside=True), bounded_results(cut, [script], puts_aside=True)):
        assert [letter[5:7] for letter in letters_of(rows)] == [(b'"a"', b"2"), (b'"b"', b"1")]
        assert tables_of(cut, rows)["out"].select("key", "value").rows() == [("a", 1), ("b", 1)]


def test_a_change_that_its_own_record_lets_pass_makes_the_record_a_dead_letter() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", **TYPES).suppress(Suppressed.until_time_limit(10))
    table.to_stream().map_values(Check(fails=True), value="long").to_delta("out")
    cut = stages_of(compile_topology(builder.build(), {"in": OPAQUE_SHAPE}))
    script = [(0, ("a", 1, 0)), (0, ("a", BAD, 10)), (0, ("b", 1, 11)), (0, ("b", 1, 30))]
    rows = stream_results(cut, [script], puts_aside=True)
    assert [letter[2] for letter in letters_of(rows)] == [1]
    assert tables_of(cut, rows)["out"]["value"].to_list() == [1, 1]


def test_a_bad_result_of_the_wall_clock_is_a_dead_letter_without_a_position() -> None:
    class Ticking:
        def init(self, context: Any) -> None:
            context.schedule(1, "wall_clock_time", lambda time_ms: context.forward("tick", BAD, 7))
            self.context = context

        def process(self, record: Any) -> None:
            self.context.forward(record)

    builder = StreamsBuilder()
    stream = builder.stream("in", **TYPES).process(Ticking, **TYPES)
    stream.map_values(Check(fails=True), value="long").to_delta("out")
    cut = stages_of(compile_topology(builder.build(), {"in": OPAQUE_SHAPE}))

    def scripts() -> Iterator[Script]:
        yield [(0, ("a", 1, 0))]
        began_ms = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 <= began_ms + 1:
            pass
        yield [(0, ("b", BAD, 0)), (0, ("c", 1, 0))]

    _, rows = batch_results(cut, scripts(), puts_aside=True)
    found = [letter[:3] + letter[5:] for letter in letters_of(rows)]
    assert found == [("", -1, -1, b'"tick"', b"2", 7), ("in", 0, 1, b'"b"', b"2", 0)]
    assert tables_of(cut, rows)["out"]["key"].to_list() == ["c"]
