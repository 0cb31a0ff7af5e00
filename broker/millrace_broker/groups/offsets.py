"""Offsets of one group: committed, pending in transactions, or being appended.

Invariants

- Of two commits of a partition, the later one in the offsets topic counts, in whatever order their appends end
  (Kafka's ``CommitRecordMetadataAndOffset``). Reading the topic again therefore gives the same offsets.
- The offsets of a transaction are pending from the start of their append until the marker of the transaction. They
  count only if the transaction commits.
- An offset is deleted here after its tombstone is in the topic, and only if the tombstone comes later than the offset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from millrace_broker.groups.requests import CONSUMER
from millrace_broker.groups.states import GroupState
from millrace_broker.purgatory import PartitionKey

NO_EXPIRY: Final = -1


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Committed offset of a partition, Kafka's ``OffsetAndMetadata``.

    ``position`` is the offset of its record in the offsets topic. ``expire_timestamp_ms`` is set for records of value
    version 1 only, and -1 otherwise.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    position: int = -1
    expire_timestamp_ms: int = NO_EXPIRY

    def at(self, position: int) -> CommittedOffset:
        """Return the offset with the position of its record."""
        return CommittedOffset(
            self.offset,
            self.leader_epoch,
            self.metadata,
            self.commit_timestamp_ms,
            position,
            self.expire_timestamp_ms,
        )


@dataclass(frozen=True, slots=True)
class _EndedTransaction:
    """End of a transaction, whose marker is before ``end_offset``."""

    end_offset: int
    is_committed: bool


class GroupOffsets:
    """Offsets of one group."""

    def __init__(self) -> None:
        self._committed: Final[dict[PartitionKey, CommittedOffset]] = {}
        self._in_flight: Final[Counter[PartitionKey]] = Counter()
        self._pending: Final[dict[int, dict[PartitionKey, CommittedOffset]]] = {}
        self._producers_in_flight: Final[Counter[int]] = Counter()
        self._ended: Final[dict[int, list[_EndedTransaction]]] = {}

    # --- views ---------------------------------------------------------------------------------------------

    def get(self, partition: PartitionKey) -> CommittedOffset | None:
        """Return the committed offset of a partition."""
        return self._committed.get(partition)

    @property
    def committed(self) -> Mapping[PartitionKey, CommittedOffset]:
        """All committed offsets, by partition."""
        return self._committed

    @property
    def is_empty(self) -> bool:
        """True if the group has no offset, neither committed nor pending nor being appended."""
        return not (self._committed or self._in_flight or self._pending or self._producers_in_flight)

    @property
    def open_producers(self) -> frozenset[int]:
        """The producers with offsets pending in a transaction."""
        return frozenset(self._pending) | frozenset(self._producers_in_flight)

    def is_unstable(self, partition: PartitionKey) -> bool:
        """Return whether a partition has an offset that is pending or being appended (KIP-447)."""
        return partition in self._in_flight or any(partition in pending for pending in self._pending.values())

    # --- commits -------------------------------------------------------------------------------------------

    def begin(self, partitions: Iterable[PartitionKey], producer_id: int | None = None) -> None:
        """Note the start of an append of offsets, by a transactional producer if ``producer_id`` is given."""
        self._in_flight.update(iter(partitions))  # Counter.update takes the values of a mapping as counts
        if producer_id is not None:
            self._producers_in_flight[producer_id] += 1

    def finish(
        self, commits: Mapping[PartitionKey, CommittedOffset], position: int | None, producer_id: int | None = None
    ) -> None:
        """Note the end of an append. ``position`` is the offset of its first record, None if the append has failed."""
        for partition in commits:
            _count_down(self._in_flight, partition)
        ended = None
        if producer_id is not None:
            ended = self._end_after(producer_id, position)
            _count_down(self._producers_in_flight, producer_id)
            if producer_id not in self._producers_in_flight:
                self._ended.pop(producer_id, None)
        if position is None:
            return
        for number, (partition, commit) in enumerate(commits.items()):
            placed = commit.at(position + number)
            if producer_id is None or (ended is not None and ended.is_committed):
                self.apply(partition, placed)
            elif ended is None:
                self.add_pending(producer_id, partition, placed)

    def _end_after(self, producer_id: int, position: int | None) -> _EndedTransaction | None:
        """Return the end of the transaction that holds ``position``, if its marker was seen before the append ended."""
        if position is None:
            return None
        return next((ended for ended in self._ended.get(producer_id, ()) if ended.end_offset > position), None)

    def apply(self, partition: PartitionKey, commit: CommittedOffset) -> None:
        """Make an offset the committed one, unless a later record has one."""
        present = self._committed.get(partition)
        if present is None or present.position < commit.position:
            self._committed[partition] = commit

    def add_pending(self, producer_id: int, partition: PartitionKey, commit: CommittedOffset) -> None:
        """Keep an offset until the producer's transaction ends."""
        pending = self._pending.setdefault(producer_id, {})
        present = pending.get(partition)
        if present is None or present.position < commit.position:
            pending[partition] = commit

    def complete(self, producer_id: int, *, is_committed: bool, end_offset: int) -> None:
        """End a producer's transaction, whose marker is before ``end_offset``."""
        if producer_id in self._producers_in_flight:
            self._ended.setdefault(producer_id, []).append(_EndedTransaction(end_offset, is_committed))
        pending = self._pending.pop(producer_id, {})
        if is_committed:
            for partition, commit in pending.items():
                self.apply(partition, commit)

    # --- deletion ------------------------------------------------------------------------------------------

    def deletable(self, partitions: Iterable[PartitionKey]) -> list[PartitionKey]:
        """Return those of the partitions that have an offset to delete."""
        return [partition for partition in partitions if partition in self._committed or self.is_unstable(partition)]

    def delete(self, partitions: Iterable[PartitionKey], position: int) -> None:
        """Delete offsets whose records are not after ``position``, the last tombstone's; pending offsets too."""
        for partition in partitions:
            present = self._committed.get(partition)
            if present is not None and present.position <= position:
                del self._committed[partition]
            for producer_id in list(self._pending):
                pending = self._pending[producer_id]
                if partition in pending and pending[partition].position <= position:
                    del pending[partition]
                    if not pending:
                        del self._pending[producer_id]

    def partitions(self) -> list[PartitionKey]:
        """Return the partitions with an offset, committed or pending or being appended."""
        pending = [partition for each in self._pending.values() for partition in each]
        return list(dict.fromkeys((*self._committed, *pending, *self._in_flight)))

    def of_topics(self, topics: frozenset[str]) -> list[PartitionKey]:
        """Return those of these partitions that belong to some topics."""
        return [partition for partition in self.partitions() if partition[0] in topics]

    def expired(
        self,
        now_ms: int,
        retention_ms: int,
        *,
        state: GroupState,
        protocol_type: str,
        state_since_ms: int,
        subscribed_topics: frozenset[str] | None,
    ) -> list[PartitionKey]:
        """Return the partitions whose offsets have expired (KIP-211, KIP-496).

        An offset expires ``retention_ms`` after the group became empty (``state_since_ms``, -1 if it is unknown). In a
        group that never had members it expires that long after its commit. The same holds in a stable group of
        consumers for topics without a subscription.
        """
        if not protocol_type:
            since_empty_ms, kept = -1, frozenset[str]()
        elif state is GroupState.EMPTY:
            since_empty_ms, kept = state_since_ms, frozenset[str]()
        elif state is GroupState.STABLE and protocol_type == CONSUMER and subscribed_topics is not None:
            since_empty_ms, kept = -1, subscribed_topics
        else:
            return []
        return [
            partition
            for partition, commit in self._committed.items()
            if partition[0] not in kept
            and not self.is_unstable(partition)
            and _is_expired(commit, now_ms, retention_ms, since_empty_ms)
        ]


def _is_expired(commit: CommittedOffset, now_ms: int, retention_ms: int, since_ms: int) -> bool:
    if commit.expire_timestamp_ms != NO_EXPIRY:
        return now_ms >= commit.expire_timestamp_ms
    return now_ms - (commit.commit_timestamp_ms if since_ms < 0 else since_ms) >= retention_ms


def _count_down(counter: Counter[Any], key: Any) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
