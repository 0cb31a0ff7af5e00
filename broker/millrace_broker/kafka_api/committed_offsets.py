"""Offsets to commit, as OffsetCommit and TxnOffsetCommit carry them."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.kafka_protocol.calls.offset_commit import OffsetCommitRequestPartition
from millrace.kafka_protocol.calls.txn_offset_commit import TxnOffsetCommitRequestPartition
from millrace.protocol import millrace_pb2 as pb


def committed_offsets(
    partitions: Iterable[OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition],
) -> list[pb.CommittedOffset]:
    """Return the offsets of a topic in a request."""
    return [
        pb.CommittedOffset(
            partition=each.partition_index,
            offset=each.committed_offset,
            leader_epoch=each.committed_leader_epoch,
            metadata=each.committed_metadata or "",
        )
        for each in partitions
    ]
