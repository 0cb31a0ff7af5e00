"""Tests of split reading.

The result is exactly the log's rows in order, for all paths and sizes.
"""

import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError, OffsetOutOfRangeError, OffsetsLostError, StorageError
from millrace.ids import id_text
from millrace.records import Compression, Record, build_columnar_batch, build_rows_batch, headers_array
from millrace.schemas import parse_ddl
from pyspark_millrace.options.source import parse_options
from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.offsets import OffsetRange
from pyspark_millrace.planning.splits import Extent, PlannedSplit
from pyspark_millrace.reading.layout import default_layout, named_layout
from pyspark_millrace.reading.split_reader import Sources, read_split

ID = uuid.UUID(int=9)
KEY = PartitionKey("orders", 3)
TYPED = parse_ddl("word STRING, amount DOUBLE")
EVOLVED = parse_ddl("word STRING, amount DOUBLE, extra INT")
COMPRESSIONS = [Compression.NONE, Compression.LZ4, Compression.ZSTD]


def options(**given_options):
    return parse_options({"kafka.bootstrap.servers": "h:1", "subscribe": "orders", **given_options})


def record(offset):
    return Record(
        key=None if offset % 3 == 0 else b"k%d" % offset,
        value=None if offset % 5 == 0 else b"v" * (offset % 7) + b"%d" % offset,
        headers=(("h", b"1"), ("g", None)) if offset % 4 == 0 else (),
        timestamp_ms=1_700_000_000_000 + offset,
        offset=offset,
    )


def expected(offset):
    found = record(offset)
    return {
        "key": found.key,
        "value": found.value,
        "topic": "orders",
        "partition": 3,
        "offset": offset,
        "timestamp": found.timestamp_ms * 1000,
        "timestampType": 0,
        "headers": [{"key": key, "value": value} for key, value in found.headers] or None,
    }


def batch(first, count, *, columnar, compression):
    records = [record(first + number) for number in range(count)]
    if not columnar:
        return build_rows_batch(records, compression=compression, base_offset=first)
    columns = {
        "key": pa.array([found.key for found in records], pa.binary()),
        "value": pa.array([found.value for found in records], pa.binary()),
    }
    return build_columnar_batch(
        pa.record_batch(columns),
        timestamps_ms=pa.array([found.timestamp_ms for found in records]),
        headers=headers_array([found.headers for found in records]) if any(r.headers for r in records) else None,
        compression=compression,
        base_offset=first,
    )


class Log:
    """A segment file with its directory and its broker.

    The broker reads the same bytes.
    """

    def __init__(self, directory: Path, batches, topic_id=ID):
        directory.mkdir(exist_ok=True)
        self.path = directory / "00000000000000000000.log"
        self.bounds, position, offset = [], 0, 0
        for data, count in batches:
            self.bounds.append((offset, offset + count, position, position + len(data)))
            position, offset = position + len(data), offset + count
        self.path.write_bytes(b"".join(data for data, _ in batches))
        (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {id_text(topic_id)}\n")
        self.end_offset, self.content, self.fetched, self.log_start = offset, self.path.read_bytes(), 0, 0
        self.schemas = {}

    def split(self, start, end, pieces=1, path=None):
        """Cut the extents of a range into about ``pieces`` splits."""
        inside = [bound for bound in self.bounds if bound[0] < end and start < bound[1]]
        step = max(1, -(-len(inside) // pieces))
        extents = []
        for number in range(0, len(inside), step):
            run = inside[number : number + step]
            extents.append(
                Extent(max(start, run[0][0]), min(end, run[-1][1]), run[0][2], run[-1][3], str(path or self.path))
            )
        return PlannedSplit(OffsetRange(KEY, ID, start, end), tuple(extents))

    @property
    def sources(self):
        return Sources(self._read_range, lambda split: self.log_start, self.schemas.__getitem__)

    def _read_range(self, split, start, end):
        if start < self.log_start:
            raise OffsetOutOfRangeError(f"offset {start} is before the log start {self.log_start}")
        for first, after, position, end_position in self.bounds:
            if first < end and start < after:
                self.fetched += 1
                yield self.content[position:end_position]


def rows(batches):
    found = []
    for batch in batches:
        if "timestamp" in batch.schema.names:
            index = batch.schema.get_field_index("timestamp")
            batch = batch.set_column(index, "timestamp", batch.column(index).cast(pa.int64()))
        found += batch.to_pylist() if batch.num_columns else [{}] * batch.num_rows
    return found


plans = st.lists(st.tuples(st.integers(1, 40), st.booleans(), st.sampled_from(COMPRESSIONS)), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@settings(max_examples=60, deadline=None)
@given(data=st.data(), plan=plans, direct=st.sampled_from(["auto", "always", "never"]))
def test_both_paths_give_the_rows_of_the_log(directory, data, plan, direct):
    batches, offset = [], 0
    for count, columnar, compression in plan:
        batches.append((batch(offset, count, columnar=columnar, compression=compression), count))
        offset += count
    log = Log(directory / uuid.uuid4().hex, batches)
    start = data.draw(st.integers(0, log.end_offset - 1))
    end = data.draw(st.integers(start + 1, log.end_offset))
    chosen = options(directReads=direct, maxRecordsPerBatch=str(data.draw(st.integers(1, 50))))
    split = log.split(start, end, pieces=data.draw(st.integers(1, 4)))
    layout = default_layout(None, include_headers=True, include_metadata=False)
    found = list(read_split(split, layout, chosen, log.sources))
    assert rows(found) == [expected(offset) for offset in range(start, end)]
    assert all(batch.schema.equals(layout.arrow_schema()) for batch in found)
    assert bool(log.fetched) == (direct == "never")


def a_log(directory, **kwargs):
    sizes = [30, 5, 60]
    data, offset = [], 0
    for size in sizes:
        data.append((batch(offset, size, columnar=True, compression=Compression.NONE), size))
        offset += size
    return Log(directory / uuid.uuid4().hex, data, **kwargs)


def read(log, split=None, columns="offset", **given_options):
    layout = named_layout(None, columns.split(","), topics="topic orders")
    return list(read_split(split or log.split(0, log.end_offset), layout, options(**given_options), log.sources))


def test_batches_have_up_to_the_rows_asked_for(directory):
    sizes = [found.num_rows for found in read(a_log(directory), maxRecordsPerBatch="20")]
    assert sum(sizes) == 95
    assert max(sizes) <= 20
    together = [found.num_rows for found in read(a_log(directory), maxRecordsPerBatch="1000")]
    assert together == [95]


def test_values_of_mapped_files_are_not_copied(directory):
    log = a_log(directory)
    before = pa.total_allocated_bytes()
    found = read(log, log.split(35, 95), columns="value", maxRecordsPerBatch="60")
    assert pa.total_allocated_bytes() == before
    assert found[0].num_rows == 60


def test_without_columns_rows_are_counted(directory):
    log = a_log(directory)
    layout = named_layout(None, [], topics="topic orders")
    found = list(read_split(log.split(2, 90), layout, options(), log.sources))
    assert sum(batch.num_rows for batch in found) == 88


@pytest.mark.parametrize("obstacle", ["no path", "no file", "another topic", "short file"])
def test_segments_that_cannot_be_mapped_are_fetched_over_the_network(directory, obstacle):
    log = a_log(directory, topic_id=uuid.UUID(int=10) if obstacle == "another topic" else ID)
    split = log.split(0, log.end_offset)
    if obstacle == "no path":
        split = replace(split, extents=tuple(replace(extent, path="") for extent in split.extents))
    elif obstacle == "no file":
        log.path.unlink()
    elif obstacle == "short file":
        log.path.write_bytes(log.content[:-64])
    assert [row["offset"] for row in rows(read(log, split))] == list(range(95))
    assert log.fetched == 3
    with pytest.raises(StorageError, match=r"directReads=always, but offsets 0\.\.94 of orders-3 cannot be read"):
        read(log, split, directReads="always")


def test_a_file_that_compaction_put_there_is_not_taken_for_the_one_that_was_located(directory):
    data = [(batch(first, 10, columnar=True, compression=Compression.NONE), 10) for first in range(0, 50, 10)]
    log = Log(directory / uuid.uuid4().hex, data)
    split = log.split(10, 40)
    assert len({len(content) for content, _ in data}) == 1, "so that positions remain the beginnings of batches"
    log.path.write_bytes(b"".join(content for content, _ in data[1:]))
    assert [row["offset"] for row in rows(read(log, split))] == list(range(10, 40))
    assert log.fetched == 3
    with pytest.raises(StorageError, match="has been replaced since it was located"):
        read(log, split, directReads="always")


@pytest.mark.parametrize("direct", ["always", "never"])
def test_a_flipped_bit_is_found_on_both_paths(directory, direct):
    log = a_log(directory)
    broken = bytearray(log.content)
    broken[-100] ^= 1
    log.path.write_bytes(broken)
    log.content = bytes(broken)
    with pytest.raises(CorruptBatchError):
        read(log, directReads=direct)


def test_records_removed_while_being_read_are_named(directory):
    log = a_log(directory)
    log.path.unlink()
    log.log_start = 30
    with pytest.raises(OffsetsLostError, match=r"offsets 10\.\.29 of orders-3 were removed .* start at 30, or set"):
        read(log, log.split(10, 95))
    left = read(log, log.split(10, 95), failOnDataLoss="false")
    assert [row["offset"] for row in rows(left)] == list(range(30, 95))


def test_a_topic_that_is_gone_leaves_nothing(directory):
    log = a_log(directory)
    log.path.unlink()
    log.log_start = 95
    assert read(log, failOnDataLoss="false") == []


def test_older_batches_have_nulls_in_newer_columns(directory):
    first = build_columnar_batch(
        pa.record_batch({"word": ["a", "b"], "amount": [1.0, None]}), schema_id=4, timestamps_ms=5
    )
    second = build_columnar_batch(
        pa.record_batch([pa.array(["c"]), pa.array([2.0]), pa.array([7], pa.int32())], schema=EVOLVED),
        schema_id=5,
        timestamps_ms=6,
        base_offset=2,
        tombstones=pa.array([True]),
    )
    log = Log(directory / uuid.uuid4().hex, [(first, 2), (second, 1)])
    log.schemas = {4: TYPED, 5: EVOLVED}
    layout = named_layout(EVOLVED, ["extra", "word", "__offset", "__tombstone"], topics="topic orders")
    found = [row for batch in read_split(log.split(0, 3), layout, options(), log.sources) for row in batch.to_pylist()]
    assert found == [
        {"extra": None, "word": "a", "__offset": 0, "__tombstone": False},
        {"extra": None, "word": "b", "__offset": 1, "__tombstone": False},
        {"extra": 7, "word": "c", "__offset": 2, "__tombstone": True},
    ]
