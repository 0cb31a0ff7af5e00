from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from millrace.errors import CorruptBatchError, UsageError
from millrace.records import (
    Compression,
    ControlType,
    EndTransactionMarker,
    Record,
    RecordFormat,
    build_columnar_batch,
    build_end_marker_batch,
    build_entries,
    build_rows_batch,
    convert,
    read_entries,
    scan_headers,
)
from millrace.segments.transaction_index import AbortedTransaction, pack_aborted, read_aborted
from millrace_broker.log import OsFiles
from millrace_broker.log.checkpoints import LEADER_EPOCHS, read_epochs, write_epochs
from millrace_broker.log.partition_metadata import read_topic_id
from millrace_broker.log.producer_snapshots import write_snapshot
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
    with pytest.raises(UsageError, match="is in a transaction"):
        convert_partition(source, tmp_path / "gone-0", ConvertOptions(forgets_producers=True))


def test_an_unfinished_compaction_is_refused(sound: Callable[..., Path], tmp_path: Path) -> None:
    source = sound()
    (source / f"{0:020d}.log.swap").write_bytes(b"")
    with pytest.raises(UsageError, match="an unfinished compaction"):
        convert_partition(source, tmp_path / "orders-0", ConvertOptions())


FORMATS = list(RecordFormat)
BASES = (0, 2**31 - 3, 2**63 - 400)
GAPS = ((0, 3), (0, 2**30), (2**31,))


def records_of(directory: Path) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return offset, key and value of all records in a partition directory, by segment."""
    return [
        (record.offset, record.key, record.value)
        for base in segment_bases(directory)
        for piece in convert((directory / f"{base:020d}.log").read_bytes(), RecordFormat.ROWS)
        for entry in read_entries(piece)
        for record in entry.records()
    ]


def entry_of(records: list[Record], record_format: RecordFormat, compression: Compression) -> bytes:
    if record_format is not RecordFormat.COLUMNAR:
        return build_entries(records, magic=record_format, compression=compression)
    columns = {name: pa.array([getattr(each, name) for each in records], pa.binary()) for name in ("key", "value")}
    return bytes(
        build_columnar_batch(
            pa.record_batch(columns),
            timestamps_ms=pa.array([each.timestamp_ms for each in records], pa.int64()),
            offsets=pa.array([each.offset for each in records], pa.int64()),
            base_offset=records[0].offset,
            compression=compression,
        )
    )


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
@pytest.mark.parametrize("source_format", FORMATS)
@pytest.mark.parametrize("base", BASES)
def test_every_record_keeps_its_offset_however_high_and_however_far_apart(
    base: int, source_format: RecordFormat, compression: Compression, tmp_path: Path
) -> None:
    for number, gaps in enumerate(gaps for gaps in GAPS if base + 24 * max(gaps) < 2**63):
        directory, offset, entries, told = tmp_path / f"s{number}-0", base, [], []
        for batch in range(4):
            records = []
            for place in range(3):
                records.append(Record(key=b"k%d" % batch, value=b"v%d" % place, timestamp_ms=7, offset=offset))
                offset += 1 + gaps[(batch + place) % len(gaps)]
            if not source_format.has_messages and records[-1].offset - records[0].offset >= 2**31:
                records = records[:1]
            told += [(record.offset, record.key, record.value) for record in records]
            entries.append(entry_of(records, source_format, compression))
        directory.mkdir()
        (directory / f"{base:020d}.log").write_bytes(b"".join(entries))
        for target in FORMATS:
            made = tmp_path / f"t{number}{target.name.lower()}-0"
            done = convert_partition(directory, made, ConvertOptions(record_format=target, index_interval_bytes=0))
            assert records_of(made) == told
            assert (done.start_offset, done.end_offset) == (base, told[-1][0] + 1)
            assert not [
                each for _, each in verify_partition(made, VerifyOptions(deep=True)) if isinstance(each, Problem)
            ]


@pytest.mark.parametrize(
    ("index", "why"),
    [(struct.pack(">hqqqq", 0, 5, 3, 7, 8), "the marker at offset 7 is in an earlier segment"), (b"\0", "of 1 bytes")],
)
def test_a_damaged_transaction_index_is_named(tmp_path: Path, index: bytes, why: str) -> None:
    source = tmp_path / "source-0"
    source.mkdir()
    (source / f"{10:020d}.log").write_bytes(build_rows_batch([RECORD], base_offset=10))
    (source / f"{10:020d}.txnindex").write_bytes(index)
    with pytest.raises(CorruptBatchError, match=f"10.txnindex: .*{why}.* Repair it first: millrace log repair"):
        convert_partition(source, tmp_path / "made-0", ConvertOptions())
    assert not (tmp_path / "made-0").exists()


def test_files_beside_the_logs_are_kept_at_high_offsets(tmp_path: Path) -> None:
    base = 2**62
    source = tmp_path / "source-0"
    source.mkdir()
    marker = EndTransactionMarker(type=ControlType.ABORT, coordinator_epoch=0)
    batches = [
        build_rows_batch(
            [RECORD], base_offset=base, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True
        ),
        build_end_marker_batch(marker, producer_id=5, producer_epoch=0, timestamp_ms=1, base_offset=base + 2**31),
    ]
    (source / f"{base:020d}.log").write_bytes(b"".join(batches))
    aborted = AbortedTransaction(
        producer_id=5, first_offset=base, last_offset=base + 2**31, last_stable_offset=base + 2**31
    )
    (source / f"{base:020d}.txnindex").write_bytes(pack_aborted(aborted))
    (source / f"{base + 2**31 + 1:020d}.snapshot").write_bytes(write_snapshot([]))
    write_epochs(OsFiles(), source / LEADER_EPOCHS, [(3, base), (4, base + 2**31)])
    convert_partition(source, tmp_path / "made-0", ConvertOptions())
    made = tmp_path / "made-0"
    assert segment_bases(made) == [base, base + 2**31]
    assert list(read_aborted((made / f"{base + 2**31:020d}.txnindex").read_bytes())) == [aborted]
    assert (made / f"{base + 2**31 + 1:020d}.snapshot").exists()
    assert read_epochs(OsFiles(), made / LEADER_EPOCHS) == [(3, base), (4, base + 2**31)]
