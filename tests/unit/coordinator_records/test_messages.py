from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.coordinator_records import (
    GroupMember,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
    TransactionLogValue,
    TransactionPartitions,
    TransactionState,
    UnknownKey,
    read_group_value,
    read_offset_value,
    read_offsets_key,
    read_subscription,
    read_transaction_key,
    read_transaction_value,
    write_key,
    write_versioned,
)
from millrace.errors import InvalidRecordError, MillraceError, UnsupportedVersionError

int16, int32, int64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64))
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
members = st.builds(
    GroupMember,
    member_id=text,
    group_instance_id=st.none() | text,
    client_id=text,
    client_host=text,
    rebalance_timeout=int32,
    session_timeout=int32,
    subscription=st.binary(max_size=300),
    assignment=st.binary(max_size=300),
)
groups = st.builds(
    GroupMetadataValue,
    protocol_type=text,
    generation=int32,
    protocol=st.none() | text,
    leader=st.none() | text,
    current_state_timestamp=int64,
    members=st.lists(members, max_size=3).map(tuple),
)
transactions = st.builds(
    TransactionLogValue,
    producer_id=int64,
    previous_producer_id=int64,
    next_producer_id=int64,
    producer_epoch=int16,
    transaction_timeout_ms=int32,
    transaction_status=st.sampled_from(TransactionState),
    transaction_partitions=st.none()
    | st.lists(
        st.builds(TransactionPartitions, topic=text, partition_ids=st.lists(int32, max_size=4).map(tuple)), max_size=3
    ).map(tuple),
    transaction_last_update_timestamp_ms=int64,
    transaction_start_timestamp_ms=int64,
    client_transaction_version=int16,
)


@given(text, text, int32)
def test_keys_of_offsets_groups_and_transactions_survive_a_round_trip(group: str, topic: str, partition: int) -> None:
    key = OffsetCommitKey(group=group, topic=topic, partition=partition)
    assert read_offsets_key(write_key(key)) == key
    assert read_offsets_key(write_key(GroupMetadataKey(group=group))) == GroupMetadataKey(group=group)
    assert read_transaction_key(write_key(TransactionLogKey(transactional_id=group))) == TransactionLogKey(
        transactional_id=group
    )


@given(groups)
def test_groups_survive_in_the_newest_version(group: GroupMetadataValue) -> None:
    assert read_group_value(write_versioned(group, 4)) == group
    assert read_group_value(write_versioned(group, 3)) == group


@given(transactions)
def test_transactions_survive_with_their_tagged_fields(transaction: TransactionLogValue) -> None:
    assert read_transaction_value(write_versioned(transaction, 1)) == transaction


def test_unknown_tagged_fields_are_kept() -> None:
    value = OffsetCommitValue(offset=5, leader_epoch=1, metadata="m", commit_timestamp=7)
    data = write_versioned(value, 4)
    assert data.endswith(b"\0")
    read = read_offset_value(data[:-1] + b"\1\x09\3abc" + b"trailing")
    assert read == replace(value, unknown_tagged_fields=((9, b"abc"),))
    assert write_versioned(read, 4) == data[:-1] + b"\1\x09\3abc"


def test_fields_of_other_versions_have_their_defaults() -> None:
    value = OffsetCommitValue(offset=5, leader_epoch=1, metadata="m", commit_timestamp=7, expire_timestamp=9)
    assert read_offset_value(write_versioned(value, 0)) == OffsetCommitValue(offset=5, metadata="m", commit_timestamp=7)
    assert value.to_json(1) == {"offset": 5, "metadata": "m", "commitTimestamp": 7, "expireTimestamp": 9}


def test_states_have_kafkas_names() -> None:
    assert TransactionState.PREPARE_EPOCH_FENCE.kafka_name == "PrepareEpochFence"


def test_newer_subscriptions_are_read_as_the_newest_known() -> None:
    data = b"\0\x09" + b"\0\0\0\0" + b"\xff\xff\xff\xff" + b"\0\0\0\0" + b"\0\0\0\1" + b"\xff\xff" + b"more"
    version, subscription = read_subscription(data)
    assert (version, subscription.generation_id) == (3, 1)


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\4", b"\0\3\0\0", b"\0\4" + b"\1" * 8 + b"\0\0\0\0" + b"\xff" * 9])
def test_a_truncated_message_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecordError):
        read_offset_value(data)


def test_an_unwritable_message_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="is not a valid int32"):
        OffsetCommitKey(group="g", topic="t", partition=2**31).encode(0)
    with pytest.raises(InvalidRecordError, match="group: null"):
        OffsetCommitKey(group=None, topic="t", partition=0).encode(0)
    with pytest.raises(UnsupportedVersionError):
        OffsetCommitValue(offset=1, metadata="", commit_timestamp=0).encode(5)


def test_random_bytes_give_an_error_or_a_message(seed: int) -> None:
    dice = random.Random(seed)
    reads = [read_offsets_key, read_offset_value, read_group_value, read_transaction_key, read_transaction_value]
    for _ in range(5000):
        data = dice.choice([b"\0\0", b"\0\1", b"\0\2", b"\0\3", b"\0\4"]) + dice.randbytes(dice.randrange(60))
        try:
            found = dice.choice(reads)(data)
        except MillraceError:
            continue
        assert found == UnknownKey(getattr(found, "version", 0)) or found
