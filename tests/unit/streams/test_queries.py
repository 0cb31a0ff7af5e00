"""Tests of queries of stores.

The stores are packed as in a checkpoint. The tests also cover results as JSON, and queries without the topology.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer.testing import CliRunner

from millrace.errors import UsageError
from millrace_streams import (
    StreamsBuilder,
    Suppressed,
    TestRecord,
    Topology,
    TopologyTestDriver,
    Windowed,
    compile_topology,
    count,
    key_value_store,
    mean,
    row,
    sessions,
    sliding,
    tumbling,
    window_store,
    within,
)
from millrace_streams import sum as sum_
from millrace_streams.checkpoints.files import MountedFiles
from millrace_streams.checkpoints.manifest import Manifest
from millrace_streams.checkpoints.stored_state import committed_batch, manifest_of
from millrace_streams.cli.streams import app
from millrace_streams.compiler import stages_of
from millrace_streams.layout import OPAQUE_SHAPE
from millrace_streams.queries import QueryableStore, StoredState
from millrace_streams.state.variables import MemoryVariables
from millrace_streams.steps.operator import AnyStore
from millrace_streams.steps.packed_state import kept_rows, store_over
from millrace_streams.steps.store import STREAM_TIME, Store
from millrace_streams.stores.below import packed

TYPES = {"key": "string", "value": "long"}
DAY_MS = 86_400_000


class Keeper:
    """A processor that stores records in two kinds of stores.

    These are a key-value store, and windows of ten.
    """

    def init(self, context: Any) -> None:
        self.kept, self.windows = context.store("kept"), context.store("own windows")

    def process(self, record: Any) -> None:
        self.kept.put(record.key, {"twice": record.value * 2})
        self.windows.put(record.key, record.value, record.timestamp // 10 * 10)


def topology() -> Topology:
    builder = StreamsBuilder()
    stream, other = builder.stream("in", **TYPES), builder.stream("other", **TYPES)
    grouped = stream.group_by_key()
    grouped.windowed_by(tumbling(10, grace=50)).aggregate(
        n=count(), mean=mean("value"), total=sum_("value"), store="columns"
    )
    grouped.count(store="counts")
    grouped.windowed_by(sliding(10, grace=50)).count(store="sliding").suppress(Suppressed.until_window_closes())
    grouped.windowed_by(sessions(5, grace=50)).reduce(lambda one, value: one + value, store="sessions")
    builder.table("table", **TYPES, store="versions", versioned=100 * DAY_MS)
    stream.outer_join(other, lambda one, two: 0, window=within(5)).to("out")
    kept = key_value_store("kept", key="string", value=row("twice BIGINT"))
    stream.process(Keeper, stores=[kept, window_store("own windows", **TYPES, retention=DAY_MS)])
    return builder.build()


RECORDS = [
    TestRecord("in", "b", 1, 3),
    TestRecord("in", "a", 2, 4),
    TestRecord("in", "a", 4, 12),
    TestRecord("in", "a", 6, 31),
    TestRecord("other", "c", 7, 31),
    TestRecord("table", "a", 1, 10),
    TestRecord("table", "a", 2, 20),
    TestRecord("table", "b", None, 30),
]


def packed_again(described: Any, store: AnyStore) -> AnyStore:
    """Return a store as a checkpoint restores it."""
    spec, variables = described.spec, MemoryVariables()
    if isinstance(store, Store):
        kept_rows(spec, variables).save(store.rows(), {STREAM_TIME: store.stream_time_ms}, store.kept_from_ms)
    else:
        entries = packed(store.spec, store.packed_entries())
        kept_rows(spec, variables).save(entries, store.numbers, store.kept_from_ms)
    return store_over(spec, kept_rows(spec, variables))


@pytest.fixture(scope="module")
def state() -> StoredState:
    driver = TopologyTestDriver(topology())
    driver.pipe_records(RECORDS)
    shapes = dict.fromkeys(("in", "other", "table"), OPAQUE_SHAPE)
    told = json.dumps(Manifest.of(stages_of(compile_topology(topology(), shapes)), 1).to_json())
    manifest = Manifest.from_json(json.loads(told))
    stores = driver._tasks[0].stores
    return StoredState(Path(), 0, manifest, lambda described: {0: packed_again(described, stores[described.name])})


def pairs(entries: Any) -> list[tuple[Any, Any]]:
    return [(entry.key, entry.value) for entry in entries]


def test_values_are_found_by_key_and_by_ranges_of_keys(state: StoredState) -> None:
    counts = state.store("counts")
    assert (counts.get("a"), counts.get("b"), counts.get("z")) == (3, 1, None)
    assert pairs(counts.all()) == [("a", 3), ("b", 1)]
    assert pairs(counts.range("b")) == [("b", 1)]
    assert pairs(counts.range(None, "a")) == [("a", 3)]
    assert counts.frame().columns == ["key", "count", "timestamp"]


def test_windows_are_found_by_key_and_time(state: StoredState) -> None:
    windows = state.store("columns")
    found = [(entry.key, entry.value["total"], entry.value["mean"], entry.timestamp_ms) for entry in windows.fetch("a")]
    assert found[:2] == [(Windowed("a", 0, 10), 2, 2.0, 4), (Windowed("a", 10, 20), 4, 4.0, 12)]
    assert [entry.key for entry in windows.fetch_all(1)] == [Windowed("a", 10, 20), Windowed("a", 30, 40)]
    since = datetime(1970, 1, 1, 0, 0, 0, 30_000, tzinfo=UTC)
    assert [entry.key.start for entry in windows.fetch("a", since)] == [30]
    assert windows.get(Windowed("a", 30, 40))["n"] == 1
    assert windows.frame().columns == ["key", "window_start", "window_end", "n", "mean", "total", "timestamp"]
    assert [entry.key for entry in state.store("sliding").fetch("b")] == [Windowed("b", 0, 10)]


def test_sessions_are_found_by_the_times_that_they_overlap(state: StoredState) -> None:
    found = state.store("sessions")
    assert pairs(found.fetch("a")) == [(Windowed("a", 4, 4), 2), (Windowed("a", 12, 12), 4), (Windowed("a", 31, 31), 6)]
    assert pairs(found.fetch("a", 5, 30)) == [(Windowed("a", 12, 12), 4)]


def test_versions_are_found_as_of_a_time(state: StoredState) -> None:
    versions = state.store("versions")
    assert (versions.get("a"), versions.get("a", as_of=15), versions.get("a", as_of=5)) == (2, 1, None)
    assert versions.version("a", as_of=15).timestamp == 10
    assert pairs(versions.range()) == [("a", 2)]
    assert pairs(versions.range(as_of=20)) == [("a", 2)]
    with pytest.raises(UsageError, match="counts keeps no versions"):
        state.store("counts").get("a", as_of=1)
    with pytest.raises(UsageError, match="counts keeps no versions"):
        state.store("counts").range(as_of=1)


def test_a_range_as_of_a_time_has_keys_that_were_deleted_later() -> None:
    builder = StreamsBuilder()
    builder.table("t", key="string", value="string", store="versions", versioned=100).to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records(
        [TestRecord("t", "b", "two", 10), TestRecord("t", "a", "one", 10), TestRecord("t", "a", None, 30)]
    )
    found = queryable(driver, "versions")
    assert pairs(found.range()) == [("b", "two")]
    assert pairs(found.range(as_of=20)) == [("a", "one"), ("b", "two")]
    assert pairs(found.range("b", as_of=20)) == [("b", "two")]
    assert pairs(found.range(high="a", as_of=20)) == [("a", "one")]
    assert found.range(as_of=5) == []


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (["--key", ""], [""]),
        (["--from", "", "--to", ""], [""]),
        (["--to", ""], [""]),
        (["--from", ""], ["", "a"]),
        (["--key", "a"], ["a"]),
    ],
)
def test_the_command_line_looks_up_an_empty_key(options: list[str], keys: list[str]) -> None:
    builder = StreamsBuilder()
    builder.table("t", **TYPES, store="table").to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records([TestRecord("t", "", 1, 0), TestRecord("t", "a", 2, 0)])
    state = mock.MagicMock()
    state.__enter__.return_value.store.return_value = queryable(driver, "table")
    with mock.patch("millrace_streams.queries.open_state", return_value=state):
        result = CliRunner().invoke(app, ["query", "table", "-c", "/data/c", "--format", "json", *options])
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["key"] for line in result.output.splitlines()] == keys


def queryable(driver: TopologyTestDriver, name: str) -> QueryableStore:
    """Return a store of a driver as a query sees it."""
    cut = stages_of(driver.plan)
    [described] = [store for store in Manifest.of(cut, 1).stores if store.name == name]
    return QueryableStore(described, {0: driver._tasks[0].stores[name]})


def test_stores_of_processors_can_be_queried(state: StoredState) -> None:
    assert state.store("kept").get("a")["twice"] == 12
    starts = [entry.key.start for entry in state.store("own windows").fetch("a")]
    assert starts == [0, 10, 30]


def test_impossible_queries_are_refused(state: StoredState) -> None:
    with pytest.raises(UsageError, match=r"no store is named hours: the stores are columns, counts, "):
        state.store("hours")
    with pytest.raises(UsageError, match="counts has no windows"):
        state.store("counts").fetch("a")
    with pytest.raises(UsageError, match="has no values by key"):
        state.store(next(name for name, each in state.stores.items() if each.kind == "buffer")).all()


def test_a_key_is_found_in_whichever_bucket_it_is(state: StoredState) -> None:
    [part] = state.store("counts").buckets.values()
    spec = state.stores["counts"].spec
    empty = store_over(spec, kept_rows(spec, MemoryVariables()))
    both = QueryableStore(state.stores["counts"], {0: empty, 3: part})
    assert both.get("a") == 3


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: None, "is not the checkpoint of a topology"),
        (lambda path: (path / "_millrace").mkdir(), "is not the checkpoint of a topology"),
    ],
)
def test_other_directories_are_refused(tmp_path: Path, prepare: Callable[[Path], None], message: str) -> None:
    prepare(tmp_path)
    with pytest.raises(UsageError, match=message):
        manifest_of(MountedFiles(tmp_path))


def test_batches_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has finished no batch yet"):
        committed_batch(MountedFiles(tmp_path))
    (tmp_path / "commits").mkdir()
    for number in (8, 9, 10):
        (tmp_path / "commits" / str(number)).touch()
    assert committed_batch(MountedFiles(tmp_path)) == 10
    assert committed_batch(MountedFiles(tmp_path), 9) == 9
    with pytest.raises(UsageError, match="batch 7 has no state to read: give a batch from 8 to 10"):
        committed_batch(MountedFiles(tmp_path), 7)
