"""Tests of deliveries as records of ``__share_group_state``."""

from __future__ import annotations

import struct
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import InvalidRecordError, UnsupportedVersionError
from millrace_broker.share_groups.in_flight import InFlightBatch, RecordState, Snapshot
from millrace_broker.share_groups.records import (
    SNAPSHOT_KEY,
    ShareGroupOffset,
    SharePartitionKey,
    apply_update,
    read_key,
    read_shared_state,
    snapshot_record,
    tombstone,
)

TOPIC_ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
AVAILABLE, ACKNOWLEDGED, ARCHIVED = RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED

RUNS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 2**40), st.sampled_from([AVAILABLE, ACKNOWLEDGED, ARCHIVED])),
    max_size=300,
)


@given(st.text(max_size=20), st.integers(0, 2**31 - 1), RUNS)
def test_records_survive_a_round_trip(group_id: str, partition: int, sizes: list[tuple[int, int, RecordState]]) -> None:
    batches, offset = [], 10
    for count, size, state in sizes:
        batches.append(InFlightBatch(offset, offset + size - 1, state, count))
        offset += size
    key = SharePartitionKey(group_id, TOPIC_ID, partition)
    state = ShareGroupOffset(3, 4, Snapshot(10, tuple(batches)))
    record = snapshot_record(key, state, 99)
    assert read_key(record.key) == (SNAPSHOT_KEY, key)
    assert read_shared_state(record.value or b"") == state
    assert tombstone(key).key == record.key


def test_the_bytes_are_those_of_kafkas_messages() -> None:
    state = ShareGroupOffset(1, 2, Snapshot(5, (InFlightBatch(5, 6, ACKNOWLEDGED, 1),)))
    record = snapshot_record(SharePartitionKey("g", TOPIC_ID, 7), state, 8)
    assert record.key == b"\0\0" + b"\0\1g" + TOPIC_ID.bytes + b"\0\0\0\7"
    head = struct.pack(">hiiiqqq", 0, 1, 0, 2, 5, 8, 8)
    assert record.value == head + b"\x02" + struct.pack(">qqbh", 5, 6, 2, 1) + b"\0" + b"\0"


def update(epoch: int, start: int, *batches: tuple[int, int, int, int]) -> bytes:
    encoded = b"".join(struct.pack(">qqbh", *batch) + b"\0" for batch in batches)
    return struct.pack(">hiiq", 0, epoch, 0, start) + bytes([len(batches) + 1]) + encoded + b"\0"


def test_updates_change_a_snapshot() -> None:
    before = ShareGroupOffset(
        1, 0, Snapshot(0, (InFlightBatch(0, 9, AVAILABLE, 1), InFlightBatch(10, 19, ACKNOWLEDGED, 1)))
    )
    after = apply_update(before, update(1, -1, (3, 4, 2, 1), (20, 21, 4, 5)))
    assert after.snapshot.batches == (
        InFlightBatch(0, 2, AVAILABLE, 1),
        InFlightBatch(3, 4, ACKNOWLEDGED, 1),
        InFlightBatch(5, 9, AVAILABLE, 1),
        InFlightBatch(10, 19, ACKNOWLEDGED, 1),
        InFlightBatch(20, 21, ARCHIVED, 5),
    )
    assert apply_update(after, update(1, 10)).snapshot.start_offset == 10
    assert apply_update(before, update(1, 5)).snapshot.batches[0] == InFlightBatch(5, 9, AVAILABLE, 1)
    assert apply_update(before, update(1, 9)).snapshot.batches[0] == InFlightBatch(9, 9, AVAILABLE, 1)
    assert apply_update(before, update(0, 10)) == before
    for leader_epoch in (0, 3):
        assert apply_update(replace(before, leader_epoch=leader_epoch), update(1, 0)).leader_epoch == leader_epoch


def test_an_update_of_the_first_and_the_last_offset_leaves_those_between() -> None:
    before = ShareGroupOffset(1, 0, Snapshot(0, (InFlightBatch(0, 9, AVAILABLE, 1),)))
    after = apply_update(before, update(1, 0, (0, 0, 2, 1), (1, 1, 4, 1), (9, 9, 4, 1)))
    assert after.snapshot.batches == (
        InFlightBatch(0, 0, ACKNOWLEDGED, 1),
        InFlightBatch(1, 1, ARCHIVED, 1),
        InFlightBatch(2, 8, AVAILABLE, 1),
        InFlightBatch(9, 9, ARCHIVED, 1),
    )


def test_keys_of_unknown_types_are_told_apart() -> None:
    assert read_key(b"\0\7of a later version") == (7, None)


@pytest.mark.parametrize("damaged", [b"", b"\0\0", b"\0\0\0\5g", b"\0\0\xff\xffg"])
def test_damaged_keys_are_refused(damaged: bytes) -> None:
    with pytest.raises(InvalidRecordError):
        read_key(damaged)


def test_damaged_values_are_refused() -> None:
    record = snapshot_record(
        SharePartitionKey("g", TOPIC_ID, 7), ShareGroupOffset(1, 2, Snapshot(5, (InFlightBatch(5, 6, ARCHIVED),))), 8
    )
    value = record.value or b""
    for size in range(len(value) - 1):
        with pytest.raises(InvalidRecordError):
            read_shared_state(value[:size])
    with pytest.raises(UnsupportedVersionError):
        read_shared_state(b"\0\1" + value[2:])
    with pytest.raises(InvalidRecordError, match="state 9"):
        read_shared_state(value.replace(struct.pack(">qqb", 5, 6, 4), struct.pack(">qqb", 5, 6, 9)))
