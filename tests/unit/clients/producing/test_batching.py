"""Tests of tables as batches.

No record is lost, keys decide the partitions, and order and sizes are kept.
"""

import random
import uuid
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.clients.model import PartitionInfo, TopicDescription
from millrace.clients.producing.batching import (
    BuiltBatch,
    RefusedRow,
    build_batches,
    check_row_sizes,
    divide,
    fit_table,
    halves_of,
)
from millrace.clients.producing.partitioning import StickyPartition
from millrace.clients.producing.wire import stamped_parts
from millrace.errors import MessageTooLargeError, SchemaMismatchError, UnknownTopicOrPartitionError
from millrace.records import Compression, decode_range
from millrace.schemas import parse_schema

from ....murmur2 import partition_for_key


def _topic(partitions: int, ddl: str | None = None, keys: tuple[str, ...] = ()) -> TopicDescription:
    return TopicDescription(
        name="t",
        topic_id=uuid.UUID(int=1),
        partitions=tuple(
            PartitionInfo(partition=number, leader=0, leader_epoch=0, replicas=(0,), isr=(0,))
            for number in range(partitions)
        ),
        schema_id=7 if ddl else 0,
        schema=parse_schema(ddl) if ddl else None,
        key_columns=keys,
    )


def _batches(topic: TopicDescription, table: pa.Table, batch_bytes: int = 10**6, **options: Any) -> list[BuiltBatch]:
    fitted = fit_table(topic, table, now_ms=1, **options)
    built = [
        batch
        for partition, part, numbers in divide(fitted, StickyPartition(batch_bytes, 0), batch_bytes, number_rows=True)
        for batch in build_batches(partition, part, numbers, compression=Compression.NONE, max_bytes=10**6)
    ]
    assert not [batch for batch in built if isinstance(batch, RefusedRow)]
    return [batch for batch in built if isinstance(batch, BuiltBatch)]


def _sent(batch: BuiltBatch) -> pa.Buffer:
    return pa.py_buffer(b"".join(stamped_parts(batch.records, None)))


def _values(batch: BuiltBatch, column: str = "value") -> list[Any]:
    decoded = decode_range(_sent(batch), 0, 2**62, lambda schema_id: parse_schema("id INT, name STRING"))
    return [value for part in decoded for value in part.columns.column(column).to_pylist()]


_rows = st.lists(st.tuples(st.none() | st.binary(max_size=4), st.integers(-1, 3)), min_size=1, max_size=60)


@given(_rows, st.integers(1, 4), st.integers(20, 400), st.integers(1, 10), st.booleans())
def test_every_row_is_in_its_partition(
    rows: list[tuple[bytes | None, int]], partitions: int, batch_bytes: int, chunk: int, explicit: bool
) -> None:
    values = [b"%d" % number for number in range(len(rows))]
    data = {"key": pa.array([key for key, _ in rows], pa.binary()), "value": pa.array(values, pa.binary())}
    if explicit:
        data["partition"] = pa.array([min(number, partitions - 1) for _, number in rows], pa.int32())
    whole = pa.table(data)
    table = pa.concat_tables(whole.slice(at, chunk) for at in range(0, len(rows), chunk))
    seen: dict[int, list[int]] = defaultdict(list)
    for batch in _batches(_topic(partitions), table, batch_bytes):
        assert batch.rows is not None
        assert _values(batch) == [values[row] for row in batch.rows]
        assert batch.num_rows == len(batch.rows)
        seen[batch.partition] += map(int, batch.rows)
    assert sorted(row for found in seen.values() for row in found) == list(range(len(rows)))
    for partition, found in seen.items():
        decided = []
        for row in found:
            key, number = rows[row]
            number = min(number, partitions - 1) if explicit else -1
            if number >= 0:
                assert partition == number
            elif key is not None:
                assert partition == partition_for_key(key, partitions)
            else:
                continue
            decided.append(row)
        assert decided == sorted(decided)


def test_many_partitions_are_sorted_rather_than_filtered() -> None:
    table = pa.table({"id": range(5000), "name": ["n"] * 5000})
    seen = {}
    for batch in _batches(_topic(50, "id INT, name STRING", ("id",)), table):
        for identity in _values(batch, "id"):
            seen[identity] = batch.partition
    assert seen == {n: partition_for_key(n.to_bytes(4, "big"), 50) for n in range(5000)}


def test_rows_without_keys_take_turns_by_batches() -> None:
    table = pa.table({"value": [b"x" * 100] * 100})
    batches = _batches(_topic(3), table, 1000)
    assert [batch.partition for batch in batches] == [number % 3 for number in range(len(batches))]
    assert 8 <= len(batches) <= 12
    assert len({batch.num_rows for batch in batches[:-1]}) == 1


def test_batches_above_the_limit_are_halved_and_single_rows_refused() -> None:
    topic = _topic(1)
    table = pa.table({"value": [b"x" * size for size in (10, 10, 3000, 10)]})
    fitted = fit_table(topic, table, now_ms=1)
    ((partition, part, numbers),) = divide(fitted, StickyPartition(10**6, 0), 10**6, number_rows=True)
    built = list(build_batches(partition, part, numbers, compression=Compression.NONE, max_bytes=1000))
    refused = [batch for batch in built if isinstance(batch, RefusedRow)]
    assert [list(row.rows) for row in refused if row.rows is not None] == [[2]]
    assert isinstance(refused[0].error, MessageTooLargeError)
    sent = [row for batch in built if isinstance(batch, BuiltBatch) and batch.rows is not None for row in batch.rows]
    assert sent == [0, 1, 3]


@given(
    st.lists(st.tuples(st.integers(-9, 9), st.none() | st.text(max_size=3), st.booleans()), min_size=2, max_size=30),
    st.booleans(),
    st.sampled_from([Compression.NONE, Compression.ZSTD]),
)
def test_the_halves_of_a_batch_have_its_records(
    rows: list[tuple[int, str | None, bool]], has_own_times: bool, compression: Compression
) -> None:
    topic = _topic(1, "id INT, name STRING")
    data: dict[str, Any] = {"id": [row[0] for row in rows], "name": pa.array([row[1] for row in rows], pa.string())}
    data["__tombstone"] = [row[2] for row in rows]
    data["__headers"] = pa.array([[("h", b"x")] * (row[0] % 3) for row in rows], pa.map_(pa.string(), pa.binary()))
    if has_own_times:
        data["__timestamp"] = pa.array([row[0] + 9 for row in rows], pa.int64())
    fitted = fit_table(topic, pa.table(data), now_ms=5)
    (whole,) = build_batches(0, fitted, range(len(rows)), compression=compression, max_bytes=10**6)
    assert isinstance(whole, BuiltBatch)
    first, second = halves_of(whole)
    assert [*(first.rows or ()), *(second.rows or ())] == list(range(len(rows)))
    assert [first.num_rows, second.num_rows] == [len(rows) // 2, len(rows) - len(rows) // 2]
    assert _records(first) + _records(second) == _records(whole)


def _records(batch: BuiltBatch) -> list[Any]:
    (decoded,) = decode_range(_sent(batch), 0, 2**62, lambda schema_id: parse_schema("id INT, name STRING"))
    beside = [
        column.to_pylist() if column else [None] * batch.num_rows for column in (decoded.headers, decoded.tombstones)
    ]
    return list(zip(decoded.columns.to_pylist(), decoded.timestamps_ms().to_pylist(), *beside, strict=True))


def test_metadata_columns_become_fields_of_the_records() -> None:
    topic = _topic(2, "id INT, name STRING")
    table = pa.table(
        {
            "id": [1, 2],
            "__timestamp": pa.array([5, None], pa.timestamp("s", "UTC")),
            "__headers": pa.array([[("h", b"x")], []], pa.map_(pa.string(), pa.binary())),
            "__partition": [1, 1],
        }
    )
    (batch,) = _batches(topic, table)
    assert batch.partition == 1
    (decoded,) = decode_range(_sent(batch), 0, 9, lambda schema_id: parse_schema("id INT, name STRING"))
    assert decoded.timestamps_ms().to_pylist() == [5000, 1]
    assert decoded.headers is not None
    assert decoded.headers.to_pylist() == [[{"key": "h", "value": b"x"}], []]
    assert decoded.columns.to_pylist() == [{"id": 1, "name": None}, {"id": 2, "name": None}]


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ({"id": [1], "__offset": [3]}, {}, "column __offset is not in"),
        ({"id": [1]}, {"timestamps": "at"}, "no column at"),
        ({"id": [1]}, {"timestamps": [1, 2]}, "2 values for 1 rows"),
        ({"id": [1, 2]}, {"timestamps": [1, -5]}, "row 1: timestamp -5"),
        ({"id": [1]}, {"timestamps": ["soon"]}, "timestamps are milliseconds"),
        ({"id": [1]}, {"partition": ["x"]}, "column partition"),
    ],
)
def test_misfits_are_named(table: dict[str, list[Any]], options: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        fit_table(_topic(2, "id INT"), pa.table(table), now_ms=1, **options)


def test_partitions_that_do_not_exist_are_refused() -> None:
    for options in ({"partition": 2}, {"partition": [0, 2]}, {"partition": [0, -3]}):
        with pytest.raises(UnknownTopicOrPartitionError, match="no partition"):
            fit_table(_topic(2), pa.table({"value": [b"x", b"y"]}), now_ms=1, **options)


@given(
    st.lists(st.tuples(st.none() | st.integers(0, 400), st.integers(0, 300)), min_size=1, max_size=30),
    st.integers(200, 1500),
    st.booleans(),
)
def test_the_first_row_that_no_batch_can_hold_is_found(
    sizes: list[tuple[int | None, int]], max_bytes: int, is_compressed: bool
) -> None:
    compression = Compression.LZ4 if is_compressed else Compression.NONE
    noise = random.Random(7).randbytes(400)
    topic = _topic(1, "id INT, name STRING, tags ARRAY<STRING>, raw BINARY")
    rows = [
        {
            "id": number,
            "name": None if name is None else "n" * name,
            "tags": None if name is None else ["t" * (name // 3)] * 2,
            "raw": noise[:raw],
        }
        for number, (name, raw) in enumerate(sizes)
    ]
    fitted = fit_table(topic, pa.Table.from_pylist(rows, schema=topic.schema), now_ms=1)
    refused = []
    for row in range(fitted.num_rows):
        built = build_batches(
            0, fitted.slice(row, 1), range(row, row + 1), compression=compression, max_bytes=max_bytes
        )
        refused += [number for batch in built if isinstance(batch, RefusedRow) for number in batch.rows or ()]
    if not refused:
        check_row_sizes(fitted, compression=compression, max_bytes=max_bytes)
        return
    with pytest.raises(MessageTooLargeError, match=rf"^row {refused[0]} for topic t makes"):
        check_row_sizes(fitted, compression=compression, max_bytes=max_bytes)
