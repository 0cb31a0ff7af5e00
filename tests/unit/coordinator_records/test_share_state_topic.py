"""Tests of share group state records.

The tests check the broker's bytes, and the JSON of Kafka's tool.
"""

from __future__ import annotations

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.coordinator_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    UnknownKey,
    UpdatedBatch,
    read_share_state_key,
    read_versioned,
    write_key,
    write_versioned,
)
from millrace.errors import InvalidRecordError
from millrace.ids import parse_id
from millrace_broker.log_tools.decoders import SHARE_STATES
from millrace_broker.share_groups.in_flight import InFlightBatch, RecordState, Snapshot
from millrace_broker.share_groups.records import ShareGroupOffset, SharePartitionKey, snapshot_record

TOPIC_ID = parse_id("wc1ImIdrTHmnbsfPV9ll1Q")
KEY = SharePartitionKey("w", TOPIC_ID, 0)
offsets = st.integers(0, 2**62)
batches = st.builds(
    InFlightBatch,
    offsets,
    offsets,
    st.sampled_from([RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED]),
    st.integers(0, 100),
)


def test_a_snapshot_is_shown_as_kafkas_tool_shows_it() -> None:
    snapshot = Snapshot(
        1,
        (
            InFlightBatch(1, 2, RecordState.AVAILABLE, 1),
            InFlightBatch(3, 4, RecordState.ACKNOWLEDGED),
            InFlightBatch(5, 9, RecordState.AVAILABLE, 1),
        ),
    )
    record = snapshot_record(KEY, ShareGroupOffset(1, 0, snapshot), 1795309505876)
    shown = SHARE_STATES.content(record.key, record.value)
    # Output of `kafka-dump-log.sh --share-group-state-decoder` of Kafka 4.3.1 for a log of our broker.
    assert shown["key"] == json.loads(
        '{"type":"0","data":{"groupId":"w","topicId":"wc1ImIdrTHmnbsfPV9ll1Q","partition":0}}'
    )
    assert shown["value"] == json.loads(
        '{"version":"0","data":{"snapshotEpoch":1,"stateEpoch":0,"leaderEpoch":0,"startOffset":1,'
        '"createTimestamp":1795309505876,"writeTimestamp":1795309505876,"stateBatches":['
        '{"firstOffset":1,"lastOffset":2,"deliveryState":0,"deliveryCount":1},'
        '{"firstOffset":3,"lastOffset":4,"deliveryState":2,"deliveryCount":0},'
        '{"firstOffset":5,"lastOffset":9,"deliveryState":0,"deliveryCount":1}]}}'
    )
    assert SHARE_STATES.content(record.key, None)["value"] is None


@given(st.text(max_size=5), st.uuids(), st.integers(0, 2**31 - 1), offsets, st.lists(batches, max_size=4).map(tuple))
def test_messages_are_the_bytes_that_the_broker_writes(
    group: str, topic_id: uuid.UUID, partition: int, start: int, batches: tuple[InFlightBatch, ...]
) -> None:
    record = snapshot_record(
        SharePartitionKey(group, topic_id, partition), ShareGroupOffset(3, 2, Snapshot(start, batches)), 77
    )
    assert record.value is not None
    assert read_share_state_key(record.key) == ShareSnapshotKey(group_id=group, topic_id=topic_id, partition=partition)
    version, value = read_versioned(ShareSnapshotValue, record.value)
    assert [(each.first_offset, each.last_offset) for each in value.state_batches] == [
        (batch.first, batch.last) for batch in batches
    ]
    assert (value.snapshot_epoch, value.leader_epoch, value.start_offset) == (3, 2, start)
    assert write_versioned(value, version) == record.value


def test_updates_are_shown_and_unknown_keys_are_passed_over() -> None:
    key = write_key(ShareUpdateKey(group_id="g", topic_id=TOPIC_ID, partition=2))
    batch = UpdatedBatch(first_offset=1, last_offset=2, delivery_state=2, delivery_count=1)
    value = ShareUpdateValue(
        snapshot_epoch=1, leader_epoch=0, start_offset=-1, delivery_complete_count=4, state_batches=(batch,)
    )
    shown = SHARE_STATES.content(key, write_versioned(value, 0))
    assert shown["key"]["type"] == "1"
    assert shown["value"]["data"]["deliveryCompleteCount"] == 4
    assert read_share_state_key(b"\0\7x") == UnknownKey(7)
    assert SHARE_STATES.content(b"\0\7x", b"y") == {"key": {"type": "7", "data": "unknown"}, "value": b"y"}
    with pytest.raises(InvalidRecordError):
        read_share_state_key(key[:-1])
