from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from millrace.errors import CorruptBatchError, UsageError
from millrace.records import (
    ControlType,
    EndTransactionMarker,
    Record,
    RecordFormat,
    build_end_marker_batch,
    build_rows_batch,
    scan_headers,
)
from millrace_broker.log import OsFiles
from millrace_broker.log.partition_metadata import read_topic_id
from millrace_broker.log_tools import Problem
from millrace_broker.log_tools.convert import ConvertOptions, convert_partition
from millrace_broker.log_tools.verify import VerifyOptions, segment_bases, verify_partition


def headers(directory: Path) -> list[tuple[int, int, bool, int]]:
    return [
        (header.base_offset, header.last_offset, header.is_columnar, header.producer_id)
        for base in segment_bases(directory)
        for _, header in scan_headers((directory / f"{base:020d}.log").read_bytes())
    ]


def test_bodies_change_and_offsets_do_not(sound: Callable[..., Path], tmp_path: Path) -> None:
    source = sound()
    for record_format in (RecordFormat.COLUMNAR, RecordFormat.ROWS):
        target = tmp_path / record_format.name / "orders-0"
        done = convert_partition(source, target, ConvertOptions(record_format=record_format))
        assert (done.start_offset, done.end_offset, done.segments) == (0, 120, len(segment_bases(source)))
        assert [each[:2] for each in headers(target)] == [each[:2] for each in headers(source)]
        assert {each[2] for each in headers(target)} == {record_format is RecordFormat.COLUMNAR}
        assert read_topic_id(OsFiles(), target) == UUID(int=7)
        assert sorted(path.name for path in target.glob("*.snapshot")) == sorted(
            path.name for path in source.glob("*.snapshot")
        )


def test_a_segment_that_grows_too_large_becomes_several(sound: Callable[..., Path], tmp_path: Path) -> None:
    source, target = sound(), tmp_path / "orders-0"
    done = convert_partition(source, target, ConvertOptions(segment_bytes_max=400, index_interval_bytes=0))
    assert done.segments > len(segment_bases(source))
    assert [each[:2] for each in headers(target)] == [each[:2] for each in headers(source)]
    assert not [each for _, each in verify_partition(target, VerifyOptions(deep=True)) if isinstance(each, Problem)]


def test_damage_is_not_converted(sound: Callable[..., Path], tmp_path: Path) -> None:
    source = sound()
    path = next(source.glob("*.log"))
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptBatchError, match="Repair it first"):
        convert_partition(source, tmp_path / "orders-0", ConvertOptions())
    assert not (tmp_path / "orders-0").exists()
    assert not list(tmp_path.glob("*.converting"))


def written(directory: Path, *batches: bytes) -> Path:
    directory.mkdir()
    (directory / f"{0:020d}.log").write_bytes(b"".join(batches))
    return directory


RECORD = Record(key=None, value=b"v", timestamp_ms=1)


def test_producers_are_forgotten_on_request(tmp_path: Path) -> None:
    source = written(
        tmp_path / "source-0",
        build_rows_batch([RECORD], producer_id=5, producer_epoch=0, base_sequence=0),
        build_rows_batch([RECORD], base_offset=1),
    )
    convert_partition(source, tmp_path / "kept-0", ConvertOptions())
    assert [each[3] for each in headers(tmp_path / "kept-0")] == [5, -1]
    convert_partition(source, tmp_path / "gone-0", ConvertOptions(forgets_producers=True))
    assert headers(tmp_path / "gone-0") == [(0, 0, False, -1), (1, 1, False, -1)]


def test_a_transaction_is_nothing_without_its_producer(tmp_path: Path) -> None:
    source = written(
        tmp_path / "source-0",
        build_rows_batch([RECORD], producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True),
        build_end_marker_batch(
            EndTransactionMarker(type=ControlType.ABORT, coordinator_epoch=0),
            producer_id=5,
            producer_epoch=0,
            timestamp_ms=1,
            base_offset=1,
        ),
    )
    with pytest.raises(UsageError, match="is of a transaction"):
        convert_partition(source, tmp_path / "gone-0", ConvertOptions(forgets_producers=True))


def test_an_unfinished_compaction_is_refused(sound: Callable[..., Path], tmp_path: Path) -> None:
    source = sound()
    (source / f"{0:020d}.log.swap").write_bytes(b"")
    with pytest.raises(UsageError, match="in the middle of a compaction"):
        convert_partition(source, tmp_path / "orders-0", ConvertOptions())
