"""Tests of keys that are objects or arrays.

The keys come from JSON, and from columns of structs.
"""

from __future__ import annotations

import json
import pickle
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from millrace_streams import (
    Record,
    StreamsBuilder,
    Suppressed,
    TestRecord,
    Topology,
    TopologyTestDriver,
    UserFunctionError,
    Windowed,
    compile_topology,
    hopping,
    key_value_store,
    row,
    session_store,
    sessions,
    sliding,
    tumbling,
    versioned_store,
    window_store,
    within,
)
from millrace_streams.compiler import Stages, stages_of
from millrace_streams.runners.packed_rows import from_batch, to_batches
from millrace_streams.runners.worker import BoundedRun, SourceRun, WorkerStage
from millrace_streams.serdes import JSON, key_of_json
from millrace_streams.steps.batch import Batch
from millrace_streams.steps.reader import Reader

from .test_json_nulls import staged
from .test_state_packed import InTheLog
from .test_worker import Variable, called

JSONS = {"key": "json", "value": "json"}
KEYS: list[Any] = [{"a": 1, "b": [2]}, {"b": [2], "a": 1}, ["x", {"y": None}], {}]
SCRIPT = [
    TestRecord("xy"[place % 3 == 1], KEYS[number], place + 1, 2 * place)
    for place, number in enumerate((0, 0, 1, 2, 2, 0, 3, 3, 1, 0, 2))
]
Build = Callable[[Any, Any], Any]


def total(one: Any, other: Any) -> Any:
    return (one or 0) + (other or 0)


def pair(one: Any, other: Any) -> Any:
    return [one, other]


class Keeps:
    """A processor with stores of every kind.

    The processor queries them by keys in the form in which users write them.
    """

    def init(self, context: Any) -> None:
        self.context, self.sums, self.windows = context, context.store("sums"), context.store("windows")
        self.sessions, self.versions = context.store("sessions"), context.store("versions")

    def process(self, record: Record) -> None:
        key = json.loads(json.dumps(record.key))
        self.sums.put(key, (self.sums.get(key) or 0) + record.value)
        self.sums.put_if_absent([key], 1)
        self.sums.delete([key])
        self.windows.put(key, record.value, record.timestamp // 5 * 5)
        self.sessions.put(Windowed(key, record.timestamp, record.timestamp + 3), record.value)
        self.versions.put(key, record.value, record.timestamp)
        found = [
            self.sums.get(key),
            [found_key for found_key, _ in self.sums.range(key, key)],
            [list(each) for each in self.windows.fetch(key, 0, 90)],
            self.windows.fetch(key, record.timestamp // 5 * 5),
            [session.start for session, _ in self.sessions.find_sessions(key, 0, 90)],
            self.versions.get(key).value,
        ]
        self.context.forward({"of": key}, found)


def processing(x: Any, y: Any) -> None:
    types: Any = {"key": "json", "value": "json"}
    stores = [
        key_value_store("sums", **types),
        window_store("windows", **types, retention=30),
        session_store("sessions", **types, retention=20),
        versioned_store("versions", **types, history=15),
    ]
    x.process(Keeps, stores=stores, key="json", value="json").to("out")


def windowing(window: Any, emit: Any = "on_window_update") -> Build:
    def build(x: Any, y: Any) -> None:
        grouped = x.group_by_key().windowed_by(window).emit_strategy(emit)
        grouped.reduce(total).to_stream(lambda key, _: {"of": key.key, "start": key.start}, key="json").to("out")

    return build


def foreign_keys(x: Any, y: Any) -> None:
    left, right = x.to_table(), y.to_table()
    left.left_join(right, pair, foreign_key=lambda _: {"a": 1, "b": (2,)}).to_stream().to("out")


def suppressing(x: Any, y: Any) -> None:
    counts = x.group_by_key().windowed_by(tumbling(5)).reduce(total)
    counts.suppress(Suppressed.until_window_closes()).to_stream(lambda key, _: key.key, key="json").to("out")
    x.to_table().suppress(Suppressed.until_time_limit(4)).to_stream().to("out")


def several_parts(x: Any, y: Any) -> None:
    rows = x.map_values(lambda value: {"n": value}, value=row(pa.schema([("n", pa.int64())])))
    rows.group_by("key", "n").aggregate(lambda: 0, lambda key, _, n: n + len(key), value="long").to_stream().map(
        lambda key, value: (list(key), value), key="json", value="json"
    ).to("out")


BUILDS: dict[str, Build] = {
    "count": lambda x, y: x.group_by_key().count().to_stream().to("out"),
    "reduce": lambda x, y: x.group_by_key().reduce(total).to_stream().to("out"),
    "cogroup": lambda x, y: (
        x.group_by_key()
        .cogroup(lambda key, value, found: found + value)
        .cogroup(y.group_by_key(), lambda key, value, found: found * 2)
        .aggregate(lambda: 0, value="long")
        .to_stream()
        .to("out")
    ),
    "selected key": lambda x, y: (
        x.select_key(lambda key, _: {"of": (key,)}, key="json").group_by_key().reduce(total).to_stream().to("out")
    ),
    "group_by": lambda x, y: (
        x.group_by(lambda value: {"odd": value % 2 == 1}, key="json").reduce(total).to_stream().to("out")
    ),
    "grouped table": lambda x, y: (
        x.to_table()
        .group_by(lambda key, value: ({"odd": value % 2 == 1, "n": (1,)}, value), key="json")
        .reduce(total, lambda one, other: one - other)
        .to_stream()
        .to("out")
    ),
    "tumbling": windowing(tumbling(5)),
    "finals": windowing(hopping(6, advance=3), "on_window_close"),
    "sliding": windowing(sliding(4)),
    "sessions": windowing(sessions(3)),
    "finals of sessions": windowing(sessions(3), "on_window_close"),
    "tables": lambda x, y: x.to_table().outer_join(y.to_table(), pair).to_stream().to("out"),
    "stream and table": lambda x, y: x.left_join(y.to_table(), pair).to("out"),
    "stream and versions": lambda x, y: x.left_join(y.to_table(versioned=50), pair, grace=3).to("out"),
    "streams": lambda x, y: x.outer_join(y, pair, window=within(4)).to("out"),
    "foreign keys": foreign_keys,
    "suppress": suppressing,
    "processor": processing,
    "several parts": several_parts,
}


BY_STREAM_TIME = ("finals", "finals of sessions", "suppress")
"""Operators whose results depend on the stream time of the partition."""


def built(build: Build) -> Topology:
    builder = StreamsBuilder()
    build(*(builder.stream(topic, **JSONS) for topic in "xy"))
    return builder.build()


def text(key: Any, value: Any) -> tuple[str, str]:
    """Return a record as text; a plain dict of a key can be written in JSON, and so has the order of its fields."""
    return json.dumps(key), json.dumps(value)


def script_of(topology: Topology) -> list[TestRecord]:
    """Return the records of the topics that the topology needs."""
    topics = {reader.source.topic for reader in compile_topology(topology, {}).readers}
    return [record for record in SCRIPT if record.topic in topics]


def in_driver(topology: Topology, driver: type[TopologyTestDriver], size: int) -> list[tuple[str, str]]:
    running, script = driver(topology), script_of(topology)
    for first in range(0, len(script), size):
        running.pipe_records(script[first : first + size])
    return [text(record.key, record.value) for record in running.read_records("out")]


def read(cut: Stages, records: list[TestRecord], offset: int, partitions: int) -> list[Any]:
    """Return records as they are read from topics of bytes; those of a key are in one partition."""
    found = []
    for reader, prologue in zip(cut.plan.readers, cut.prologues, strict=True):
        worker = WorkerStage.of(cut, prologue, partitions)
        run = SourceRun(Reader(reader.source, reader.layout, reader.operators), worker, 0, defaultdict(int))
        for partition in range(partitions):
            places = [
                place
                for place, record in enumerate(records)
                if record.topic == reader.source.topic
                and zlib.crc32(JSON.serialize(record.key)) % partitions == partition
            ]
            found += [
                row for batch in run(iter([as_bytes(records, places, offset, partition)])) for row in from_batch(batch)
            ]
    return found


def as_bytes(records: list[TestRecord], places: list[int], offset: int, partition: int) -> pa.RecordBatch:
    times = [records[place].timestamp_ms * 1000 for place in places]
    columns = {
        "key": pa.array([JSON.serialize(records[place].key) for place in places], pa.binary()),
        "value": pa.array([JSON.serialize(records[place].value) for place in places], pa.binary()),
        "__partition": pa.array([partition] * len(places), pa.int32()),
        "__offset": pa.array([offset + place for place in places], pa.int64()),
        "__timestamp": pa.array(times, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
    }
    return pa.RecordBatch.from_pydict(columns)


def in_batch(topology: Topology) -> list[tuple[str, str]]:
    cut = stages_of(compile_topology(topology, {}))
    rows = read(cut, script_of(topology), 0, 1)
    for stage in cut.stages:
        rows.sort(key=lambda row: (row.bucket, row.sequence))
        run = BoundedRun(WorkerStage.of(cut, stage, 1))
        rows = [row for batch in run(to_batches(rows)) for row in from_batch(batch)]
    return results_of(cut, rows)


def results_of(cut: Stages, rows: list[Any]) -> list[tuple[str, str]]:
    batches = [Batch.of_frame(cut.plan.layouts[each.target], each.frame) for each in rows if each.target]
    return [text(*pair) for batch in batches for pair in zip(batch.keys, batch.values, strict=True)]


def in_workers(topology: Topology, buckets: int, size: int = 4) -> list[tuple[str, str]]:
    cut, states, found = stages_of(compile_topology(topology, {})), defaultdict(Variable), []  # type: ignore[var-annotated]
    script = script_of(topology)
    for first in range(0, len(script), size):
        rows = read(cut, script[first : first + size], first, buckets)
        for stage in cut.stages:
            worker = WorkerStage.of(cut, stage, buckets)
            rows = [each for bucket in range(buckets) for each in called(worker, bucket, rows, states)]
        found += results_of(cut, rows)
    return found


@pytest.mark.parametrize("name", BUILDS)
def test_objects_and_arrays_are_keys_of_every_operator_on_every_runner(name: str) -> None:
    topology = built(BUILDS[name])
    expected = in_driver(topology, InTheLog, 1)
    assert len({key for key, _ in expected}) > 1
    for size in (1, 4, len(SCRIPT)):
        assert in_driver(topology, TopologyTestDriver, size) == expected
    assert in_driver(topology, InTheLog, 4) == expected
    assert sorted(in_workers(topology, 1)) == sorted(expected)
    assert sorted(in_batch(topology)) == sorted(expected)
    if name not in BY_STREAM_TIME:
        assert sorted(in_workers(topology, 3, 1)) == sorted(expected)


def test_keys_are_equal_if_their_text_is() -> None:
    found = in_driver(built(BUILDS["count"]), TopologyTestDriver, len(SCRIPT))
    expected = Counter(json.dumps(record.key) for record in SCRIPT if record.topic == "x")
    assert len(expected) == len(KEYS)
    assert dict(found) == {key: str(number) for key, number in expected.items()}


@pytest.mark.parametrize("fold", [lambda x: x.count(), lambda x: x.reduce(total)], ids=["columns", "Python"])
def test_spaces_and_escapes_of_a_producers_text_make_no_other_key(fold: Any) -> None:
    keys = [b'{"a":"\xc3\xa9"}', b' { "a" : "\\u00e9" } ', b'"\\u0041"', b'"A"', b"1.0", b"1.00", b"5"]
    found = staged(lambda x: fold(x.group_by_key()).to_stream(), [(key, b"1") for key in keys])
    assert found == [({"a": "é"}, 1), ({"a": "é"}, 2), ("A", 1), ("A", 2), (1.0, 1), (1.0, 2), (5, 1)]


def test_a_key_that_is_not_json_is_refused_at_its_record() -> None:
    with pytest.raises(UserFunctionError, match="the key of the record at offset 1 of x-0 is not a valid json"):
        staged(lambda x: x.group_by_key().count().to_stream(), [(b"1", b"1"), (b'{"a"', b"1")])


def test_keys_of_several_types_close_in_one_order() -> None:
    def build(x: Any, y: Any) -> None:
        finals = x.group_by_key().windowed_by(tumbling(5)).emit_strategy("on_window_close").count()
        finals.to_stream(lambda key, _: key.key, key="json").to("out")

    keys = [{"a": 1}, 2.5, "b", 7, [1], True, "c"]
    found = []
    for order in (keys, keys[::-1]):
        driver = TopologyTestDriver(built(build))
        driver.pipe_records([*(TestRecord("x", key, 1, 0) for key in order), TestRecord("x", "last", 1, 10)])
        found.append([record.key for record in driver.read_records("out")])
    assert found[0] == found[1]
    assert sorted(map(repr, found[0])) == sorted(map(repr, keys))


def test_a_topic_gets_a_key_as_compact_json() -> None:
    driver = TopologyTestDriver(built(lambda x, y: x.to("out", key="json", value="json")))
    driver.pipe_records([TestRecord("x", {"a": 1, "b": "é"}, 1, 0)])
    assert driver.read("out")[0]["key"] == '{"a":1,"b":"é"}'


def test_stores_are_read_by_plain_keys() -> None:
    driver = TopologyTestDriver(built(lambda x, y: x.group_by_key().reduce(total, store="s").to_stream().to("out")))
    driver.pipe_records([record for record in SCRIPT if record.topic == "x"])
    own = [record for record in SCRIPT if record.topic == "x" and json.dumps(record.key) == json.dumps(KEYS[0])]
    assert driver.view("s").get({"a": 1, "b": [2]}) == sum(record.value for record in own)
    assert [entry.key for entry in driver.entries("s")] == [["x", {"y": None}], *KEYS[:2], {}]
    assert driver.store("s")["key"].to_list()[0] == '["x",{"y":null}]'


def test_a_key_behaves_like_a_plain_dict_or_list_that_does_not_change() -> None:
    key, other = key_of_json('{"a":1,"b":[2]}'), key_of_json("[1,{}]")
    assert (key, other) == (KEYS[0], [1, {}])
    assert json.dumps({"k": key}) == '{"k": {"a": 1, "b": [2]}}'
    assert {**key, "c": 1} == {"a": 1, "b": [2], "c": 1}
    for each in (key, other):
        copied = pickle.loads(pickle.dumps(each))
        assert (copied, hash(copied), type(copied)) == (each, hash(each), type(each))
    assert key != key_of_json('{"b":[2],"a":1}')
    with pytest.raises(TypeError, match="a key does not change"):
        key["a"] = 2
    with pytest.raises(TypeError, match="a key does not change"):
        other.append(2)


@pytest.mark.parametrize("size", [1, 3])
def test_a_struct_is_a_key(size: int) -> None:
    place = pa.struct([("x", pa.int64()), ("y", pa.list_(pa.float64()))])
    topology = built(
        lambda x, y: (
            x.select_key(lambda value: {"x": value % 2, "y": (value % 3,)}, key=place)
            .group_by_key()
            .reduce(total)
            .to_stream()
            .select_key(lambda key, _: key, key="json")
            .group_by_key()
            .reduce(total)
            .to_stream()
            .to("out")
        )
    )
    expected = in_driver(topology, InTheLog, 1)
    assert len({key for key, _ in expected}) > 2
    assert in_driver(topology, TopologyTestDriver, size) == expected
    assert sorted(in_workers(topology, 3)) == sorted(expected)


def test_rows_of_equal_columns_with_and_without_json_are_not_confused() -> None:
    # The schemas differ in their metadata only, which pyarrow does not compare.
    rows = row(pa.schema([("n", pa.int64())]))
    for key, expected in (("string", "a"), ("json", {"a": 1})):
        builder = StreamsBuilder()
        stream = builder.stream("x", key=key, value="long").map_values(lambda value: {"n": value}, value=rows)
        stream.map_values(lambda value: str(value["key"]), value="string").to("out")
        driver = TopologyTestDriver(builder.build())
        driver.pipe_records([TestRecord("x", expected, 1, 0)])
        assert driver.read_records("out")[0].value == str(expected)
