"""Where a consumer is in one partition, and what of it waits to be read."""

from __future__ import annotations

import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from millrace.clients.model import LocatedExtent, TopicPartition
from millrace.errors import MillraceError
from millrace.records import AbortedTransaction

OFFSET_MAX: Final = 2**63 - 1
_NO_TOPIC: Final = uuid.UUID(int=0)


@dataclass(slots=True, kw_only=True)
class Fetched:
    """Whole batches of one partition; the first may begin before what was asked for.

    Records from ``end_offset`` on are not for this reader (yet). ``held_bytes`` is what they take of the client's
    memory: nothing, where a file is mapped. ``leader_epoch`` is that of the last batch, -1 where nobody has looked.
    """

    data: pa.Buffer
    next_offset: int
    held_bytes: int
    end_offset: int = OFFSET_MAX
    aborted: tuple[AbortedTransaction, ...] = ()
    leader_epoch: int = -1


@dataclass(slots=True)
class PartitionState:
    """Where a consumer is in one partition.

    ``position`` is the next offset to hand out, ``None`` until it is known: then it is what the group has committed
    (``wants_committed``), or else where ``reset_to`` says. ``generation`` grows when reading goes on
    elsewhere: what was asked for before is worthless then.

    ``offset_epoch`` is the leader epoch of the record before ``position``, ``leader_epoch`` that of the leader in which
    the position was found good; -1: not known (``millrace.clients.consuming.epochs``).
    """

    partition: TopicPartition
    position: int | None = None
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

    def move_to(self, offset: int, epoch: int = -1) -> None:
        """Go on from ``offset``, whose record before is of leader epoch ``epoch``, forgetting what was fetched."""
        self._forget()
        self.position = self.fetch_offset = offset
        self.offset_epoch = epoch
        if epoch >= 0:
            self.leader_epoch = -1
        self.reset_to = None
        self.wants_committed = False

    def fetch_again(self) -> None:
        """Go on from the same place, forgetting what was fetched."""
        assert self.position is not None, "what was fetched has a position"
        self._forget()
        self.fetch_offset = self.position

    def reset(self, where: str) -> None:
        """Go on from where ``where`` will turn out to be."""
        self._forget()
        self.position, self.reset_to = None, where
        self.offset_epoch = -1
        self.wants_committed = False

    def abandon(self) -> None:
        """The partition is read no longer: what is under way is worthless."""
        self._forget()

    def _forget(self) -> None:
        self.generation += 1
        self.in_flight = False
        self.waiting.clear()
        self.located.clear()
        self.may_be_here = True
        self.error = None

    @property
    def held_bytes(self) -> int:
        """Bytes that wait in memory."""
        return sum(fetched.held_bytes for fetched in self.waiting)
