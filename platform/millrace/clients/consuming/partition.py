"""Position and fetched data of a consumer in one partition."""

from __future__ import annotations

import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from millrace.clients.model import LocatedExtent, TopicPartition
from millrace.config.client import Isolation
from millrace.errors import MillraceError
from millrace.records import AbortedTransaction

OFFSET_MAX: Final = 2**63 - 1
_NO_TOPIC: Final = uuid.UUID(int=0)


@dataclass(slots=True, kw_only=True)
class Fetched:
    """Fetched whole batches of one partition.

    The first batch may begin before the requested offset. Records from ``end_offset`` on are not for this reader (yet).
    ``held_bytes`` is the size in the client's memory, 0 for a mapped file. ``leader_epoch`` is that of the last batch,
    -1 if not read.
    """

    data: pa.Buffer
    next_offset: int
    held_bytes: int
    end_offset: int = OFFSET_MAX
    aborted: tuple[AbortedTransaction, ...] = ()
    leader_epoch: int = -1


@dataclass(slots=True)
class PartitionState:
    """State of a consumer in one partition.

    ``position`` is the next offset to return. While it is ``None``, it will be the group's committed offset
    (``wants_committed``) or the offset of ``reset_to``. ``generation`` grows when reading continues at another place,
    and responses of earlier generations are discarded.

    ``unseen_from`` is the offset of the first record that a poll has returned and an iterator has not passed on.

    ``offset_epoch`` is the leader epoch of the record before ``position``. ``leader_epoch`` is that of the leader
    that validated the position. -1 means unknown (``millrace.clients.consuming.epochs``).
    """

    partition: TopicPartition
    position: int | None = None
    unseen_from: int | None = None
    reset_to: str | int | None = None
    wants_committed: bool = False
    is_paused: bool = False
    generation: int = 0
    fetch_offset: int = 0
    waiting: deque[Fetched] = field(default_factory=deque)
    in_flight: bool = False
    retry_at: float = 0.0
    attempts: int = 0
    unavailable_since: float | None = None
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    is_behind: bool = False
    error: MillraceError | None = None
    replica: int | None = None
    replica_until: float = 0.0
    may_be_here: bool = True
    not_here_until: float = 0.0
    located: deque[LocatedExtent] = field(default_factory=deque)
    located_aborted: tuple[AbortedTransaction, ...] = ()
    located_topic_id: uuid.UUID = _NO_TOPIC
    offset_epoch: int = -1
    leader_epoch: int = -1
    topic_id: uuid.UUID | None = None

    def readable_end(self, isolation_level: Isolation) -> int:
        """Return the offset up to which records could be read at the last fetch; -1 before the first."""
        return self.last_stable_offset if isolation_level is Isolation.READ_COMMITTED else self.high_watermark

    @property
    def seen_to(self) -> int | None:
        """Offset after the last record that the application got; ``None`` without a position."""
        return self.position if self.unseen_from is None else self.unseen_from

    def move_to(self, offset: int, epoch: int = -1) -> None:
        """Continue at ``offset`` and drop fetched data; ``epoch`` is the leader epoch of the record before."""
        self._forget()
        self.unseen_from = None
        self.position = self.fetch_offset = offset
        self.offset_epoch = epoch
        if epoch >= 0:
            self.leader_epoch = -1
        self.reset_to = None
        self.wants_committed = False

    def fetch_again(self) -> None:
        """Continue at the same position, if any, and drop fetched data."""
        self._forget()
        if self.position is not None:
            self.fetch_offset = self.position

    def reset(self, where: str) -> None:
        """Continue at the offset to which ``where`` resolves."""
        self._forget()
        self.position, self.reset_to, self.unseen_from = None, where, None
        self.offset_epoch = -1
        self.wants_committed = False

    def abandon(self) -> None:
        """Stop reading the partition; requests in flight are discarded."""
        self._forget()
        self.unseen_from = None

    def _forget(self) -> None:
        self.generation += 1
        self.in_flight = False
        self.waiting.clear()
        self.located.clear()
        self.may_be_here = True
        self.error = None

    @property
    def held_bytes(self) -> int:
        """Bytes of fetched data in memory."""
        return sum(fetched.held_bytes for fetched in self.waiting)
