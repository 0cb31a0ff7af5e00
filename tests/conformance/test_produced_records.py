"""Tests of Kafka's verdicts on damaged lengths and unusual snappy bodies.

The verdicts are of its readers, of recovery, and of a produce. ``records/produced.json`` has four of them for each
case: ``MemoryRecords``, ``FileRecords``, the opening of a log after an unclean stop, and ``ProduceRequest`` with
``UnifiedLog.appendAsLeader`` (``max.message.bytes`` = 1000). Cases of three batches use the log alone, because
``ProduceRequest`` takes one batch.

``records/length_bits.json`` has the same for each bit of the length fields of one batch and of three. Its ``produce``
is the answer of a Kafka 3.9.1 broker to a request over the network, and the number of records that it appended.
"""

from __future__ import annotations

import base64
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.config.topic import TopicConfig
from millrace.errors import CorruptBatchError, InvalidRecordError, MessageTooLargeError, MillraceError
from millrace.records import BatchEntry, MessageEntry, read_entries, scan_headers
from millrace_broker.api.common.record_checks import check_bodies
from millrace_broker.log import ProducedBatches
from millrace_broker.log.index_builder import IndexBuilder
from millrace_broker.log.segment_recovery import check_segment
from millrace_broker.metadata import RecordCodecs, TopicInfo

ORACLES = Path(os.environ.get("ORACLES", Path(__file__).parents[1] / "oracles")) / "records"
CASES = json.loads((ORACLES / "produced.json").read_text(encoding="utf-8"))
CONFIG = {"max.message.bytes": "1000"}
TOPIC = TopicInfo(
    name="t", topic_id=uuid.UUID(int=1), partitions={}, overrides=CONFIG, config=TopicConfig.load(dict(CONFIG))
)
BITS = json.loads((ORACLES / "length_bits.json").read_text(encoding="utf-8"))
SAME: dict[str, type[MillraceError]] = {
    "CorruptRecordException": CorruptBatchError,
    "InvalidRecordException": InvalidRecordError,
    "RecordTooLargeException": MessageTooLargeError,
}
UNEXPECTED = {"KafkaException", "SnappyError", "IllegalArgumentException", "IndexOutOfBoundsException"}
"""Exceptions that Kafka's broker answers with UNKNOWN_SERVER_ERROR, or that end its thread."""


def batches_of(name: str) -> bytes:
    return next(base64.b64decode(case["data"]) for case in CASES if case["name"] == name)


def three_batches() -> bytes:
    """Return the three batches of the cases named ``length-...``, undamaged and as a producer would send them."""
    whole = bytearray(batches_of("length-0-1"))
    whole[8:12] = SOUND[8:12]
    for position, _ in list(scan_headers(bytes(whole))):
        whole[position : position + 8] = bytes(8)
    return bytes(whole)


SOUND = batches_of("sound")
THREE = three_batches()


def observed(entries: Iterator[BatchEntry | MessageEntry]) -> dict[str, Any]:
    """Return the size of each batch, whether it is valid, the number of its records, and whether reading them fails."""
    batches = []
    try:
        for entry in entries:
            is_valid, fails, records = True, False, 0
            try:
                entry.check()
            except MillraceError:
                is_valid = False
            try:
                for _ in entry.records():
                    records += 1
            except MillraceError:
                fails = True
            batches.append((entry.size_bytes, is_valid, records, fails))
    except MillraceError:
        return {"batches": batches, "fails": True}
    return {"batches": batches, "fails": False}


def verdict(expected: dict[str, Any]) -> dict[str, Any]:
    batches = [
        (batch["size"], batch["ensureValid"] is None, batch["records"], batch["recordsError"] is not None)
        for batch in expected["batches"]
    ]
    return {"batches": batches, "fails": expected["error"] is not None}


def recovered_bytes(data: bytes) -> int:
    """Return the size of the part of a segment that recovery keeps."""
    return check_segment(memoryview(data), IndexBuilder(0, 0), 0, None, is_compacted=True).size_bytes


def with_rising_offsets(data: bytes) -> bytes:
    """Return batches as a log holds them. A producer sends each batch with base offset 0, which is in no checksum."""
    logged = bytearray(data)
    for number, (position, _) in enumerate(scan_headers(THREE)):
        logged[position : position + 8] = (1000 * number).to_bytes(8, "big")
    return bytes(logged)


def sent_of(case: dict[str, Any]) -> bytes:
    """Return the batches as a producer would send them.

    Base offsets are 0, also those of the second and third batch.
    """
    sent = bytearray(base64.b64decode(case["data"]))
    if case["name"].startswith("length-"):
        [sound] = [each for each in CASES if each["name"] == "sound"]
        first = len(base64.b64decode(sound["data"]))
        for position in (0, first, len(sent) - case_tail(case)):
            sent[position : position + 8] = bytes(8)
    return bytes(sent)


def checked(data: bytes) -> ProducedBatches:
    return check_bodies(RecordCodecs(dict), TOPIC, ProducedBatches(data, TOPIC.config), now_ms=0)


def case_tail(case: dict[str, Any]) -> int:
    """Return the size of the third batch, from the total size and the known sizes of the first two batches."""
    [other] = [each for each in CASES if each["name"] == "length-2--1"]
    return len(base64.b64decode(case["data"])) - sum(batch["size"] for batch in other["memory"]["batches"])


@pytest.mark.parametrize("bit", range(32))
@pytest.mark.parametrize(("batches", "damaged"), [(1, 0), (3, 0), (3, 1), (3, 2)])
def test_a_flipped_bit_of_a_length_gets_kafkas_verdict(batches: int, damaged: int, bit: int) -> None:
    [expected] = [each for each in BITS if (each["batches"], each["damaged"], each["bit"]) == (batches, damaged, bit)]
    data = bytearray(SOUND if batches == 1 else THREE)
    position = list(scan_headers(bytes(data)))[damaged][0]
    data[position + 11 - bit // 8] ^= 1 << bit % 8
    data = bytes(data)
    assert observed(read_entries(data)) == verdict(expected["memory"])
    assert recovered_bytes(with_rising_offsets(data)) == expected["recovery_bytes"]
    error = expected["produce"]["error"]
    with pytest.raises(MillraceError) as refused:
        checked(data)
    if batches == 1:
        assert (
            type(refused.value) is {"CORRUPT_MESSAGE": CorruptBatchError, "INVALID_RECORD": InvalidRecordError}[error]
        )
    else:
        # Kafka takes one batch at a time. It refuses several, and ignores incomplete bytes after the first one.
        passed_over = error is None
        assert expected["produce"]["appended"] == (3 if passed_over else 0)
        assert isinstance(refused.value, InvalidRecordError if passed_over else CorruptBatchError | InvalidRecordError)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_damage_gets_kafkas_verdict(case: dict[str, Any]) -> None:
    data = base64.b64decode(case["data"])
    assert observed(read_entries(data)) == verdict(case["memory"])
    assert recovered_bytes(data) == case["recovery"]["bytes"]
    sent, expected = sent_of(case), case["produce"]
    if "error" not in expected:
        batches = verdict(case["memory"])["batches"]
        if sum(size for size, *_ in batches) < len(sent):
            # Kafka ignores an incomplete last batch and acknowledges the rest.
            with pytest.raises(InvalidRecordError, match=r"no complete record batch|at least one"):
                checked(sent)
        else:
            found = checked(sent)
            assert sum(header.count for _, header in found.headers) == expected["end"]
        return
    errors = (CorruptBatchError, InvalidRecordError) if expected["error"] in UNEXPECTED else SAME[expected["error"]]
    with pytest.raises(errors):
        checked(sent)
