"""Tests of windowed tables that a later stage looks up as well.

Their copies have the rows that a join finds in the table itself.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from millrace_streams import (
    StreamsBuilder,
    TestRecord,
    TopologyTestDriver,
    compile_topology,
    count,
    sessions,
    sliding,
    tumbling,
    unlimited,
)
from millrace_streams.compiler import Stages, stages_of
from millrace_streams.graph import Topology
from millrace_streams.layout import OPAQUE_SHAPE

from .test_worker import TYPES, Script, Variable, as_rows, batch_results, bounded, streamed

pytestmark = pytest.mark.slow

WINDOWS: dict[str, Any] = {
    "tumbling": tumbling(10, grace=4),
    "hopping": tumbling(10, grace=4).advance_by(5).retain(25),
    "sliding": sliding(7, grace=3),
    "sessions": sessions(5, grace=3),
    "unlimited": unlimited(),
}


def tables(window: Any, strategy: str, fold: str, stream: Any, other: Any) -> None:
    """Build joins with one table of windows; the second and the third are behind a move."""
    windows = other.group_by_key().windowed_by(window).emit_strategy(strategy)
    table = windows.aggregate(n=count()) if fold == "columns" else windows.count()
    both = lambda one, two: one * 100 + ((two["n"] if fold == "columns" else two) if two else 0)  # noqa: E731
    first = stream.group_by_key().windowed_by(window).count().to_stream().left_join(table, both)
    first.to_delta("first")
    moved = first.map(lambda key, value: ("abc"[value % 3], value), key="string")
    again = moved.group_by_key().windowed_by(window).count()
    again.to_stream().left_join(table, both).to_delta("second")
    again.left_join(table, both).to_delta("third")


def topology(window: str, strategy: str, fold: str) -> Topology:
    builder = StreamsBuilder()
    streams = (builder.stream(topic, **TYPES) for topic in ("in", "other"))
    tables(WINDOWS[window], strategy, fold, *streams)
    return builder.build()


def stages(*arguments: str) -> Stages:
    return stages_of(compile_topology(topology(*arguments), {"in": OPAQUE_SHAPE, "other": OPAQUE_SHAPE}))


KINDS = pytest.mark.parametrize(
    ("window", "strategy", "fold"),
    [
        ("tumbling", "on_window_update", "columns"),
        ("tumbling", "on_window_update", "function"),
        ("tumbling", "on_window_close", "columns"),
        ("hopping", "on_window_close", "function"),
        ("hopping", "on_window_update", "columns"),
        ("sliding", "on_window_update", "function"),
        ("sliding", "on_window_close", "function"),
        ("sessions", "on_window_update", "function"),
        ("sessions", "on_window_close", "function"),
        ("unlimited", "on_window_update", "function"),
    ],
)


@KINDS
def test_a_later_stage_finds_the_windows_that_the_table_itself_has(window: str, strategy: str, fold: str) -> None:
    chance = random.Random(2)
    script: Script = [
        (chance.randrange(2), (chance.choice("ab"), chance.randrange(5), max(0, time_ms + chance.randrange(-8, 9))))
        for time_ms in range(0, 120, 2)
    ]
    driver = TopologyTestDriver(topology(window, strategy, fold))
    driver.pipe_records([TestRecord(["in", "other"][topic], *record) for topic, record in script])
    cut = stages(window, strategy, fold)
    assert len(cut.stages) == 2
    for run, size in ((streamed, 60), (streamed, 7), (bounded, 60)):
        for name, frame in run(cut, [script[first : first + size] for first in range(0, 60, size)]).items():
            assert as_rows(frame) == as_rows(driver.table(name)), name


@KINDS
def test_windows_that_have_expired_leave_the_copy(window: str, strategy: str, fold: str) -> None:
    cut, states = stages(window, strategy, fold), defaultdict(Variable)
    script: Script = [(number % 2, ("abc"[number % 3], number % 5, 4 * number)) for number in range(96)]
    sizes = []
    batches = [script[first : first + 8] for first in range(0, 96, 8)]
    for rows in batch_results(cut, batches, buckets=3, states=states):
        assert rows
        sizes.append(sum(size_of(variable) for (number, *_), variable in states.items() if number == 1))
    assert max(sizes[4:]) < 2 * max(sizes[:4])


def size_of(variable: Variable) -> int:
    return sum(len(chunk) for (chunk,) in [*variable.rows, *variable.by_key.values()])
