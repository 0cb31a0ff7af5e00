"""Tests of sound and damaged message sets against Kafka's own verdicts.

All formats are covered. Fields and failures are the same. Cases come from the directory in ``ORACLES`` (by default
those beside this suite). Of an exception only its existence is compared, because class and text differ between the two.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.errors import MillraceError
from millrace.records import (
    BatchEntry,
    Compression,
    ControlType,
    MessageEntry,
    Record,
    RecordFormat,
    TimestampType,
    build_entries,
    build_rows_batch,
    convert,
    decode_batch,
    last_sequence_of,
    read_control_type,
    read_end_marker,
    read_entries,
    sequence_of,
)
from millrace.records.legacy import unwrap
from millrace_broker.log.index_builder import IndexBuilder
from millrace_broker.log.segment_recovery import check_segment

ORACLES = Path(os.environ.get("ORACLES", Path(__file__).parents[1] / "oracles")) / "records"
FAILS = "fails"
TIMESTAMP_TYPES = {
    None: "NoTimestampType",
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}
BASE_TIMESTAMP_POSITION = 27
CUT_EARLIER = {
    "v0gzip-length-minus1-crcfixed",
    "v1-codec-4",
    "v1-codec-6",
    "v1-lz4-badflag",
    "v1-wrapper-empty",
    "v1-wrapper-nested",
    "v1gzip-length-minus1-crcfixed",
    "v1lz4-length-minus1-crcfixed",
    "v2-magic-127",
    "v1-offset-changed",
    "v2-lastdelta-m1",
    "v2-offsets-overlap",
    "v2multi-offset-changed",
}
"""Cases in which recovery cuts a segment where Kafka's fails, or keeps entries that it cannot read.

The first nine have unreadable entries with valid checksums. In the others the offsets do not rise.
"""


def cases() -> Iterator[Any]:
    for category in ("valid", "damaged"):
        for path in sorted((ORACLES / category).glob("*.json")):
            yield pytest.param(path, id=f"records-{category}-{path.stem}")


@pytest.mark.parametrize("path", list(cases()))
def test_reads_as_kafka_does(path: Path) -> None:
    expected = json.loads(path.read_text(encoding="utf-8"))
    data = path.with_suffix(".bin").read_bytes()
    assert len(data) == expected["size"]
    assert observe(data) == normalised(expected)
    if "recover" in expected:
        check_recovery(data, path.stem, expected["recover"])


@pytest.mark.parametrize("target", RecordFormat)
@pytest.mark.parametrize("path", [case for case in cases() if "valid" in str(case.id)])
def test_converts_without_changing_what_kafka_reads(path: Path, target: RecordFormat) -> None:
    data = path.with_suffix(".bin").read_bytes()
    compression = None if target is RecordFormat.ROWS else Compression.LZ4
    converted = b"".join(convert(data, target, compression=compression, allow_loss=True))
    assert all_records(converted) == [kept(record, target) for record in expected_records(path, target)]


def expected_records(path: Path, target: RecordFormat) -> Iterator[dict[str, Any]]:
    for batch in json.loads(path.read_text(encoding="utf-8"))["batches"]:
        if target.has_messages and batch.get("isControl"):
            continue
        yield from batch["records"]


def kept(record: dict[str, Any], target: RecordFormat) -> dict[str, Any]:
    """Return the fields of a record that a format keeps."""
    return {
        "offset": record["offset"],
        "timestamp": -1 if target is RecordFormat.MAGIC_0 else record["timestamp"],
        "key": record["key"],
        "value": record["value"],
        "headers": [] if target.has_messages else record.get("headers", []),
    }


def all_records(data: bytes) -> list[dict[str, Any]]:
    buffer = pa.py_buffer(data)
    found: list[dict[str, Any]] = []
    for entry in read_entries(data):
        entry.check()
        if isinstance(entry, BatchEntry):
            batch = decode_batch(buffer, entry.position, entry.header, lambda _: pa.schema([]))
            headers = [[]] * batch.num_rows if batch.headers is None else batch.headers.to_pylist()
            found += [
                {"offset": offset, "timestamp": time, "key": encoded(key), "value": encoded(value), "headers": pairs}
                for offset, time, key, value, pairs in zip(
                    batch.offsets().to_pylist(),
                    batch.timestamps_ms().to_pylist(),
                    batch.columns["key"].to_pylist(),
                    batch.columns["value"].to_pylist(),
                    [[[header["key"], encoded(header["value"])] for header in row] for row in headers],
                    strict=True,
                )
            ]
        else:
            found += [observe_record(record) | {"headers": []} for record in entry.records()]
    for record in found:
        record.pop("sizeInBytes", None)
    return found


# --- Kafka's verdicts, with exceptions reduced to FAILS -------------------------------------------------------


def normalised(expected: dict[str, Any]) -> dict[str, Any]:
    return {
        "batches": [normalised_batch(batch) for batch in expected["batches"]],
        "batchError": expected["batchError"]["position"] if "batchError" in expected else None,
        "readUpTo": expected.get("readUpTo", expected["size"]),
    }


def normalised_batch(batch: dict[str, Any]) -> dict[str, Any]:
    batch = dict(batch)
    failing = batch.pop("fieldErrors", {})
    batch |= dict.fromkeys(failing, FAILS)
    batch["ensureValid"] = FAILS if "ensureValid" in batch else None
    batch["recordsError"] = FAILS if "recordsError" in batch else None
    eager = batch.get("eagerIterator", {"error": 1} if batch["recordsError"] else {"records": len(batch["records"])})
    batch["eagerIterator"] = FAILS if "error" in eager else eager["records"]
    batch["records"] = [
        record | ({"controlError": FAILS} if "controlError" in record else {}) for record in batch["records"]
    ]
    return batch


# --- our verdicts, in the same words --------------------------------------------------------------------------


def attempt(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except MillraceError:
        return FAILS


def walk(entries: Iterator[BatchEntry | MessageEntry]) -> tuple[list[BatchEntry | MessageEntry], int, bool]:
    found: list[BatchEntry | MessageEntry] = []
    end, failed = 0, False
    try:
        for entry in entries:
            found.append(entry)
            end = entry.position + entry.size_bytes
    except MillraceError:
        failed = True
    return found, end, failed


def observe(data: bytes) -> dict[str, Any]:
    entries, end, failed = walk(read_entries(data))
    return {
        "batches": [observe_entry(entry, data) for entry in entries],
        "batchError": end if failed else None,
        "readUpTo": end,
    }


def check_recovery(data: bytes, name: str, expected: dict[str, Any]) -> None:
    """Check that recovery keeps the same part of a segment as Kafka, or less where the rest could not be read."""
    kept = check_segment(memoryview(data), IndexBuilder(0, 0), 0, None, is_compacted=True).size_bytes
    if name in CUT_EARLIER:
        assert "error" in expected or kept < expected["validBytes"]
    else:
        assert {"truncatedBytes": len(data) - kept, "validBytes": kept} == expected


def observe_entry(entry: BatchEntry | MessageEntry, data: bytes) -> dict[str, Any]:
    records, failed = observe_records(entry)
    return {
        "position": entry.position,
        "sizeInBytes": entry.size_bytes,
        "magic": entry.magic,
        "rawOffset": int.from_bytes(data[entry.position : entry.position + 8], "big", signed=True),
        "rawLength": entry.size_bytes - 12,
        "crcValid": entry.crc_is_valid,
        "compression": attempt(lambda: entry.compression.name.lower()),
        "timestampType": TIMESTAMP_TYPES[entry.timestamp_type],
        "baseOffset": attempt(lambda: entry.base_offset),
        "lastOffset": attempt(lambda: entry.last_offset),
        "maxTimestamp": attempt(lambda: entry.max_timestamp_ms),
        "ensureValid": attempt(entry.check),
        "records": records,
        "recordsError": FAILS if failed else None,
        "eagerIterator": attempt(lambda: eager_count(entry)),
    } | (observe_batch(entry, data) if isinstance(entry, BatchEntry) else observe_message(entry))


def observe_message(entry: MessageEntry) -> dict[str, Any]:
    return {"attributes": entry.message.attributes, "crc": entry.message.crc}


def observe_batch(entry: BatchEntry, data: bytes) -> dict[str, Any]:
    fields = entry.fields
    base_timestamp_at = entry.position + BASE_TIMESTAMP_POSITION
    # Kafka was asked for this one field also after the end of the batch.
    base_timestamp = int.from_bytes(data[base_timestamp_at : base_timestamp_at + 8], "big", signed=True)
    return {
        "attributes": fields["attributes"],
        "crc": fields["crc"],
        "baseTimestamp": base_timestamp,
        "lastOffsetDelta": fields["last_offset_delta"],
        "partitionLeaderEpoch": fields["partition_leader_epoch"],
        "producerId": fields.get("producer_id", FAILS),
        "producerEpoch": fields.get("producer_epoch", FAILS),
        "baseSequence": fields.get("base_sequence", FAILS),
        "lastSequence": last_sequence_of(entry.header) if "count" in fields else lone_last_sequence(fields),
        "count": fields.get("count", FAILS),
        "isTransactional": bool(fields["attributes"] & 0x10),
        "isControl": bool(fields["attributes"] & 0x20),
        "deleteHorizonMs": base_timestamp if fields["attributes"] & 0x40 else None,
    }


def lone_last_sequence(fields: dict[str, int]) -> Any:
    """Return the last sequence of a batch whose header is cut off after its base sequence."""
    if "base_sequence" not in fields:
        return FAILS
    return fields["base_sequence"] + fields["last_offset_delta"] if fields["base_sequence"] >= 0 else -1


def observe_records(entry: BatchEntry | MessageEntry) -> tuple[list[dict[str, Any]], bool]:
    found: list[dict[str, Any]] = []
    messages = attempt(lambda: list(unwrap(entry.message))) if isinstance(entry, MessageEntry) else []
    try:
        for index, record in enumerate(entry.records()):
            if isinstance(entry, BatchEntry):
                beside = observe_beside(entry, record)
            else:
                beside = {"crcValid": messages[index].crc_is_valid}
            found.append(observe_record(record) | beside)
    except MillraceError:
        return found, True
    return found, False


def observe_record(record: Record) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": encoded(record.key),
        "value": encoded(record.value),
        "sizeInBytes": record.size_bytes,
    }


def observe_beside(entry: BatchEntry, record: Record) -> dict[str, Any]:
    beside: dict[str, Any] = {
        "headers": [[key, encoded(value)] for key, value in record.headers],
        "sequence": sequence_of(entry.header, record),
    }
    if entry.header.is_control:
        type_ = attempt(lambda: read_control_type(record.key))
        if type_ == FAILS:
            return beside | {"controlError": FAILS}
        beside["controlType"] = type_.name
        if type_ in (ControlType.ABORT, ControlType.COMMIT):
            marker = attempt(lambda: read_end_marker(record))
            beside |= {"controlError": FAILS} if marker == FAILS else {"coordinatorEpoch": marker.coordinator_epoch}
    return beside


def eager_count(entry: BatchEntry | MessageEntry) -> int:
    """Return the number of records if all are read before the first is used."""
    return len(list(unwrap(entry.message) if isinstance(entry, MessageEntry) else entry.records()))


def encoded(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


# --- refusals of the writer ----------------------------------------------------------------------------------

ONE = Record(key=b"k", value=b"v", timestamp_ms=1_700_000_000_000)
WRITES: dict[str, Callable[[], bytes]] = {
    "zstd-magic0": lambda: build_entries([ONE], magic=0, compression=Compression.ZSTD),
    "zstd-magic1": lambda: build_entries([ONE], magic=1, compression=Compression.ZSTD),
    "headers-magic1": lambda: build_entries([Record(value=b"v", headers=(("h", b"x"),))], magic=1),
    "producerid-magic1": lambda: build_entries([ONE], magic=1, producer_id=1, producer_epoch=0, base_sequence=0),
    "logappendtime-magic0": lambda: build_entries([ONE], magic=0, timestamp_type=TimestampType.LOG_APPEND_TIME),
    "negative-sequence": lambda: build_rows_batch([ONE], producer_id=1, producer_epoch=0, base_sequence=-1),
    "offset-not-increasing": lambda: build_rows_batch([Record(offset=5), Record(offset=3)], base_offset=None),
    "timestamp-m2": lambda: build_rows_batch([Record(timestamp_ms=-2)]),
}


def refusals() -> Iterator[Any]:
    path = ORACLES / "writer_refusals.json"
    for name, verdict in json.loads(path.read_text(encoding="utf-8")).items() if path.exists() else ():
        yield pytest.param(name, verdict, id=f"records-writer_refusals-{name}")


@pytest.mark.parametrize(("name", "verdict"), list(refusals()))
def test_refuses_to_write_what_kafka_refuses(name: str, verdict: Any) -> None:
    assert (attempt(WRITES[name]) == FAILS) == (verdict != "accepted")
