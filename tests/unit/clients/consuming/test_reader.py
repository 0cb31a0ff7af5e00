"""Tests of the reader of one partition's fetched batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from millrace.clients.consuming.partition import Fetched, PartitionState
from millrace.clients.consuming.reader import PartitionReader
from millrace.clients.model import TopicPartition
from millrace.records import DecodedBatch, Record, build_rows_batch


def _reader(*batches: range) -> PartitionReader:
    """Return a reader of one response with batches of these offsets."""
    data = b"".join(
        build_rows_batch([Record(value=b"%d" % n, timestamp_ms=n) for n in offsets], base_offset=offsets.start)
        for offsets in batches
    )
    state = PartitionState(TopicPartition("t", 0), position=0)
    state.waiting.append(Fetched(data=pa.py_buffer(data), next_offset=batches[-1].stop, held_bytes=len(data)))
    schemas: Any = SimpleNamespace(schema_of=None)  # rows have no schema
    return PartitionReader(state, schemas, True)


def _offsets(batch: DecodedBatch) -> list[int]:
    offsets: list[int] = batch.offsets().to_pylist()
    return offsets


def _refuse(batch: DecodedBatch) -> list[int]:
    raise MemoryError


def _next(reader: PartitionReader, max_rows: int) -> list[int] | None:
    read = reader.next(max_rows, _offsets)
    return None if read is None else read[1]


@pytest.mark.parametrize("max_rows", [2, 100])
def test_rows_whose_conversion_failed_are_read_again(max_rows: int) -> None:
    reader = _reader(range(5), range(5, 8))
    seen: list[int] = []
    while len(seen) < 8:
        with pytest.raises(MemoryError):
            reader.next(max_rows, _refuse)
        assert reader.state.position == len(seen)
        seen += _next(reader, max_rows) or []
    assert seen == list(range(8))
    assert _next(reader, max_rows) is None
