"""What a member of a share group has in hand, and what it says of each record: pure.

Invariants:

- A record in hand is said of once; what was said goes to the broker once.
- Offsets that were acquired and hold no record (compacted, or a marker) are said to be gaps as soon as they come.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import groupby

from millrace.clients.model import TopicPartition
from millrace.errors import InvalidRecordStateError


class AcknowledgeType(IntEnum):
    """What has become of a record."""

    GAP = 0
    ACCEPT = 1
    """It is done with."""
    RELEASE = 2
    """Somebody shall get it, at once."""
    REJECT = 3
    """Nobody can do anything with it: it is not given to anybody any more."""


@dataclass(frozen=True, slots=True)
class Run:
    """Offsets that follow each other, of which the same is said; both ends belong to it."""

    first: int
    last: int
    type: AcknowledgeType


@dataclass(slots=True)
class InHand:
    """The records of one partition that this member has, by offset; ``None`` where nothing has been said."""

    partition: TopicPartition
    said: dict[int, AcknowledgeType | None] = field(default_factory=dict)

    def received(self, acquired: Iterable[range], present: Iterable[int]) -> None:
        """Records came: ``acquired`` are the member's offsets, ``present`` those that hold a record."""
        there = set(present)
        for run in acquired:
            self.said.update((offset, None if offset in there else AcknowledgeType.GAP) for offset in run)

    def say(self, offset: int, what: AcknowledgeType) -> None:
        """Say something of a record. Raises ``InvalidRecordStateError`` for one that is not in hand (any more)."""
        if offset not in self.said or self.said[offset] is AcknowledgeType.GAP:
            raise InvalidRecordStateError(
                f"offset {offset} of {self.partition} is not in this consumer's hands: acknowledge records of the last "
                "poll, each before the next poll or commit"
            )
        self.said[offset] = what

    def say_of_the_rest(self, what: AcknowledgeType) -> None:
        """Say the same of every record of which nothing has been said."""
        for offset, said in self.said.items():
            if said is None:
                self.said[offset] = what

    @property
    def unsaid(self) -> int:
        """How many records there are of which nothing has been said."""
        return sum(said is None for said in self.said.values())

    def take(self) -> list[Run]:
        """Give out what has been said, in the order of offsets; it is not in hand any more."""
        taken = sorted((offset, said) for offset, said in self.said.items() if said is not None)
        for offset, _ in taken:
            del self.said[offset]
        # Neighbours of the same kind: their offsets less their rank are equal.
        runs = groupby(enumerate(taken), key=lambda item: (item[1][0] - item[0], item[1][1]))
        return [
            Run(offsets[0], offsets[-1], kind)
            for (_, kind), items in runs
            if (offsets := [offset for _, (offset, _) in items])
        ]
