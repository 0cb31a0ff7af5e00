"""What one group has committed, and what is on its way: in transactions, or in an append that is not done yet. Pure.

Invariants

- Of two commits to one partition the one that comes later in the offsets topic wins, whichever is heard of later
  (Kafka's ``CommitRecordMetadataAndOffset``). So what is here is what reading the topic anew would give.
- A transaction's offsets are pending from before their append until its marker, and only a commit makes them count.
- An offset is deleted here once its tombstone is in the topic, and only if the tombstone comes later than it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from millrace_broker.groups.model import CONSUMER, GroupState

Partition = tuple[str, int]
"""Topic name and partition number."""

NO_EXPIRY: Final = -1


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed offset. ``position`` is where its record is in the partition of the offsets topic.

    ``expire_timestamp_ms`` is that of old records (value version 1), -1 elsewhere.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    position: int = -1
    expire_timestamp_ms: int = NO_EXPIRY

    def at(self, position: int) -> Committed:
        """The same, once it is known where its record is."""
        return Committed(
            self.offset,
            self.leader_epoch,
            self.metadata,
            self.commit_timestamp_ms,
            position,
            self.expire_timestamp_ms,
        )


@dataclass(frozen=True, slots=True)
class _Ended:
    """A transaction has ended whose marker is before ``end_offset``."""

    end_offset: int
    is_committed: bool


class GroupOffsets:
    """The offsets of one group."""

    def __init__(self) -> None:
        self._committed: Final[dict[Partition, Committed]] = {}
        self._in_flight: Final[Counter[Partition]] = Counter()
        self._pending: Final[dict[int, dict[Partition, Committed]]] = {}
        self._producers_in_flight: Final[Counter[int]] = Counter()
        self._ended: Final[dict[int, list[_Ended]]] = {}

    # --- views ---------------------------------------------------------------------------------------------

    def get(self, partition: Partition) -> Committed | None:
        """What is committed for a partition."""
        return self._committed.get(partition)

    @property
    def committed(self) -> Mapping[Partition, Committed]:
        """All that is committed."""
        return self._committed

    @property
    def is_empty(self) -> bool:
        """Whether nothing is committed, pending or on its way."""
        return not (self._committed or self._in_flight or self._pending or self._producers_in_flight)

    @property
    def open_producers(self) -> frozenset[int]:
        """The producers with offsets pending in a transaction."""
        return frozenset(self._pending) | frozenset(self._producers_in_flight)

    def is_unstable(self, partition: Partition) -> bool:
        """Whether what is committed for a partition may be about to change."""
        return partition in self._in_flight or any(partition in pending for pending in self._pending.values())

    # --- commits -------------------------------------------------------------------------------------------

    def begin(self, partitions: Iterable[Partition], producer_id: int | None = None) -> None:
        """A commit is being appended, by a transactional producer if ``producer_id`` is given."""
        self._in_flight.update(iter(partitions))  # a mapping would be taken for counts
        if producer_id is not None:
            self._producers_in_flight[producer_id] += 1

    def finish(
        self, commits: Mapping[Partition, Committed], position: int | None, producer_id: int | None = None
    ) -> None:
        """The append that ``begin`` announced has put the commits at ``position`` and after; None if it failed."""
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

    def _end_after(self, producer_id: int, position: int | None) -> _Ended | None:
        """How the transaction of a record at ``position`` ended, if that was heard of before its append was."""
        if position is None:
            return None
        return next((ended for ended in self._ended.get(producer_id, ()) if ended.end_offset > position), None)

    def apply(self, partition: Partition, commit: Committed) -> None:
        """A commit counts, unless a later one does."""
        present = self._committed.get(partition)
        if present is None or present.position < commit.position:
            self._committed[partition] = commit

    def add_pending(self, producer_id: int, partition: Partition, commit: Committed) -> None:
        """A commit will count if its transaction is committed."""
        pending = self._pending.setdefault(producer_id, {})
        present = pending.get(partition)
        if present is None or present.position < commit.position:
            pending[partition] = commit

    def complete(self, producer_id: int, *, is_committed: bool, end_offset: int) -> None:
        """A producer's transaction has ended with a marker before ``end_offset``."""
        if producer_id in self._producers_in_flight:
            self._ended.setdefault(producer_id, []).append(_Ended(end_offset, is_committed))
        pending = self._pending.pop(producer_id, {})
        if is_committed:
            for partition, commit in pending.items():
                self.apply(partition, commit)

    # --- deletion ------------------------------------------------------------------------------------------

    def deletable(self, partitions: Iterable[Partition]) -> list[Partition]:
        """Of some partitions, those with something to delete."""
        return [partition for partition in partitions if partition in self._committed or self.is_unstable(partition)]

    def delete(self, partitions: Iterable[Partition], position: int) -> None:
        """Tombstones are in the topic, the last of them at ``position``: what was before is gone, pending or not."""
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

    def partitions(self) -> list[Partition]:
        """The partitions for which something is committed, pending or on its way."""
        pending = [partition for each in self._pending.values() for partition in each]
        return list(dict.fromkeys((*self._committed, *pending, *self._in_flight)))

    def of_topics(self, topics: frozenset[str]) -> list[Partition]:
        """Those partitions that are of some topics."""
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
    ) -> list[Partition]:
        """What nobody needs any more: ``retention_ms`` after the group lost its last member (``state_since_ms``, -1 if
        that is not known), after the commit where there never were members, and likewise of topics that a stable group
        of consumers does not read any more (KIP-211, KIP-496).
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


def _is_expired(commit: Committed, now_ms: int, retention_ms: int, since_ms: int) -> bool:
    if commit.expire_timestamp_ms != NO_EXPIRY:
        return now_ms >= commit.expire_timestamp_ms
    return now_ms - (commit.commit_timestamp_ms if since_ms < 0 else since_ms) >= retention_ms


def _count_down(counter: Counter[Any], key: Any) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
