"""Fuzz tests of decoders of log files, coordinator records and schemas."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from millrace.clients import TopicPartition
from millrace.clients.assignors.sticky_user_data import (
    decode_cooperative,
    decode_sticky,
    encode_cooperative,
    encode_sticky,
)
from millrace.coordinator_records import (
    AssignedPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ExternalCommitKey,
    ExternalCommitValue,
    GroupMember,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
    TransactionLogValue,
    TransactionPartitions,
    TransactionState,
    read_assignment,
    read_external_commit,
    read_group_value,
    read_offset_value,
    read_offsets_key,
    read_subscription,
    read_transaction_key,
    read_transaction_value,
    write_key,
    write_versioned,
)
from millrace.errors import MillraceError, StorageError
from millrace.schemas import deserialize_schema, parse_ddl, serialize_schema
from millrace.segments.indexes import OffsetIndex, TimeIndex, pack_offset_entry, pack_time_entry
from millrace.segments.transaction_index import AbortedTransaction, pack_aborted, read_aborted
from millrace_broker.log.checkpoints import read_epochs, read_offsets
from millrace_broker.log.partition_metadata import read_topic_id
from millrace_broker.log.producer_snapshots import read_snapshot, write_snapshot
from millrace_broker.log.producer_states import ProducerEntry
from millrace_broker.log.tiered.manifest import CopiedObject, Manifest
from millrace_broker.log.tiered.names import CopyName, ManifestName
from millrace_broker.share_groups.in_flight import InFlightBatch, RecordState, Snapshot
from millrace_broker.share_groups.records import (
    ShareGroupOffset,
    SharePartitionKey,
    apply_update,
    read_key,
    read_shared_state,
    snapshot_record,
)

from .mutation import Decoder, decoder_name, fuzz, mutated

DDL = "id BIGINT NOT NULL, name STRING, tags ARRAY<STRING>, at STRUCT<x: DOUBLE, y: MAP<STRING, DECIMAL(20, 2)>>"
OFFSET_INDEXES = [b"".join(pack_offset_entry(n * 10, n * 4096) for n in range(1, 30)), bytes(64)]
TIME_INDEXES = [b"".join(pack_time_entry(1_700_000_000_000 + n, n * 10) for n in range(1, 30)), bytes(36)]
ABORTED = [
    b"".join(
        pack_aborted(AbortedTransaction(producer_id=n, first_offset=n, last_offset=n + 5, last_stable_offset=n))
        for n in range(9)
    )
]
SNAPSHOTS = [write_snapshot([ProducerEntry(producer_id=n) for n in range(5)]), write_snapshot([])]
CHECKPOINTS = [b"0\n2\norders 0 17\norders 1 9\n", b"0\n2\n0 0\n3 100\n", b"0\n0\n"]
TOPIC_IDS = [b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAACQ\n"]
MANIFESTS = [
    Manifest(
        topic="orders",
        topic_id=UUID(int=9),
        partition=1,
        name=ManifestName(CopyName(100, UUID(int=5)), 200, 1_700_000_000_000),
        copied_ms=1_700_000_000_001,
        leader_epochs=((0, 0), (2, 150)),
        objects={".log": CopiedObject(4096, 17), ".index": CopiedObject(8, 3)},
    ).encode()
]
MEMBER = GroupMember(
    member_id="m", client_id="c", client_host="h", session_timeout=10_000, subscription=b"s", assignment=b"a"
)
COMMITTED = OffsetCommitValue(offset=7, metadata="m", commit_timestamp=1_700_000_000_000)
GROUP = GroupMetadataValue(protocol_type="consumer", generation=3, protocol="range", leader="m", members=(MEMBER,))
OFFSETS_TOPIC = [
    *(write_key(cls(group="g", topic="t", partition=3)) for cls in (LegacyOffsetCommitKey, OffsetCommitKey)),
    write_key(GroupMetadataKey(group="g")),
    *(write_versioned(COMMITTED, version) for version in range(5)),
    *(write_versioned(GROUP, version) for version in range(5)),
]
TRANSACTION = TransactionLogValue(
    producer_id=4,
    producer_epoch=1,
    transaction_timeout_ms=60_000,
    transaction_status=TransactionState.ONGOING,
    transaction_partitions=(TransactionPartitions(topic="t", partition_ids=(0, 5)),),
    transaction_last_update_timestamp_ms=1_700_000_000_000,
    transaction_start_timestamp_ms=1_700_000_000_000,
)
TRANSACTIONS = [
    write_key(TransactionLogKey(transactional_id="t")),
    *(write_versioned(TRANSACTION, version) for version in (0, 1)),
    write_key(ExternalCommitKey(external_id="q")),
    write_versioned(ExternalCommitValue(external_epoch=7, commit_timestamp_ms=1_700_000_000_000), 0),
]
SUBSCRIPTION = ConsumerProtocolSubscription(topics=("a", "b"), user_data=b"u")
ASSIGNMENT = ConsumerProtocolAssignment(
    assigned_partitions=(AssignedPartitions(topic="a", partitions=(0, 3)),), user_data=b"u"
)
PROTOCOL = [write_versioned(message, version) for message in (SUBSCRIPTION, ASSIGNMENT) for version in range(4)]
SHARED = ShareGroupOffset(
    3, 0, Snapshot(5, (InFlightBatch(5, 9, RecordState.AVAILABLE, 1), InFlightBatch(10, 10, RecordState.ARCHIVED)))
)
SHARED_RECORD = snapshot_record(SharePartitionKey("g", UUID(int=7), 1), SHARED, 1_700_000_000_000)
SHARE_STATE = [SHARED_RECORD.key, SHARED_RECORD.value or b""]
CLAIMS = [
    encode_sticky([TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 7)], 3),
    encode_cooperative(5),
]


class OneFile:
    """A file system with one file."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path, self._data = path, data

    def read_bytes(self, path: Path) -> bytes | None:
        return self._data if path == self._path else None


def one_file(random: Random, seeds: list[bytes], name: str) -> tuple[Any, Path]:
    path = Path("/data/orders-0") / name
    return OneFile(path, bytes(mutated(random, seeds))), path


def each(*readings: Any) -> None:
    """Run all decoders, also after one of them refuses the bytes."""
    refused: MillraceError | None = None
    for read, *arguments in readings:
        try:
            read(*arguments)
        except MillraceError as error:
            refused = error
    if refused is not None:
        raise refused


def decode_indexes(random: Random) -> None:
    """Look up in an index of any bytes.

    The result is one of its entries or its beginning, and its faults are named.
    """
    offsets = OffsetIndex.of_file(bytes(mutated(random, OFFSET_INDEXES)), 100)
    times = TimeIndex.of_file(bytes(mutated(random, TIME_INDEXES)), 100)
    assert offsets.lookup(random.randrange(500)) in {*offsets, (100, 0)}
    assert times.lookup(1_700_000_000_000 + random.randrange(50)) in {*times, (-1, 100)}
    assert offsets.lookup_position(random.randrange(2**17)) in {*offsets, None}
    problems = offsets.problem(), times.problem()
    if any(problems):
        raise StorageError(str(problems))


def decode_transaction_index(random: Random) -> None:
    for found in read_aborted(bytes(mutated(random, ABORTED))):
        assert 0 <= found.first_offset <= found.last_offset


def decode_producer_snapshot(random: Random) -> None:
    for entry in read_snapshot(bytes(mutated(random, SNAPSHOTS))):
        assert entry.batches is not None


def decode_checkpoints(random: Random) -> None:
    files, path = one_file(random, CHECKPOINTS, "checkpoint")
    each((read_offsets, files, path), (read_epochs, files, path))


def decode_partition_metadata(random: Random) -> None:
    read_topic_id(one_file(random, TOPIC_IDS, "partition.metadata")[0], Path("/data/orders-0"))


def decode_manifest(random: Random) -> None:
    Manifest.decode(bytes(mutated(random, MANIFESTS)))


def decode_offsets_topic(random: Random) -> None:
    data = bytes(mutated(random, OFFSETS_TOPIC))
    each((read_offsets_key, data), (read_offset_value, data), (read_group_value, data))


def decode_transactions_topic(random: Random) -> None:
    data = bytes(mutated(random, TRANSACTIONS))
    each((read_transaction_key, data), (read_transaction_value, data), (read_external_commit, data))


def decode_consumer_protocol(random: Random) -> None:
    data = bytes(mutated(random, PROTOCOL))
    each((read_subscription, data), (read_assignment, data))


def decode_share_state(random: Random) -> None:
    data = bytes(mutated(random, SHARE_STATE))
    each((read_key, data), (read_shared_state, data), (lambda update: apply_update(SHARED, update), data))


def decode_claims(random: Random) -> None:
    """Decode claims, of which unreadable ones count as none, as in Kafka."""
    data = bytes(mutated(random, CLAIMS))
    each((decode_sticky, data), (decode_cooperative, data))


def decode_schema(random: Random) -> None:
    deserialize_schema(bytes(mutated(random, [serialize_schema(parse_ddl(DDL))])))


def decode_ddl(random: Random) -> None:
    parse_ddl(bytes(mutated(random, [DDL.encode()])).decode("utf-8", "replace"))


DECODERS: list[Decoder] = [
    decode_indexes,
    decode_transaction_index,
    decode_producer_snapshot,
    decode_checkpoints,
    decode_partition_metadata,
    decode_manifest,
    decode_offsets_topic,
    decode_transactions_topic,
    decode_consumer_protocol,
    decode_share_state,
    decode_claims,
    decode_schema,
    decode_ddl,
]


@pytest.mark.parametrize("decode", DECODERS, ids=decoder_name)
def test_any_bytes_give_an_answer_or_an_error_of_ours(decode: Decoder) -> None:
    fuzz(decode, refuses=decode is not decode_claims)
