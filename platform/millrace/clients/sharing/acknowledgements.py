"""Acquired records of a share group member, and their acknowledgements, pure.

Invariants:

- Each acquired record is acknowledged once, and each acknowledgement is sent to the broker once.
- Acquired offsets without a record (compacted, or a marker) are acknowledged as gaps on arrival.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import groupby

from millrace.clients.model import TopicPartition
from millrace.errors import InvalidRecordStateError


class AcknowledgeType(IntEnum):
    """Type of an acknowledgement (Kafka's ``AcknowledgeType``)."""

    GAP = 0
    ACCEPT = 1
    """The record was processed."""
    RELEASE = 2
    """The record is redelivered at once."""
    REJECT = 3
    """The record cannot be processed: it is not delivered again."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive offsets with the same acknowledgement; both ends are included."""

    first: int
    last: int
    type: AcknowledgeType


@dataclass(slots=True)
class InHand:
    """Acquired records of one partition by offset; ``None`` without an acknowledgement."""

    partition: TopicPartition
    said: dict[int, AcknowledgeType | None] = field(default_factory=dict)

    def received(self, acquired: Iterable[range], present: Iterable[int]) -> None:
        """Add records: ``acquired`` are the member's offsets, ``present`` those with a record."""
        there = set(present)
        for run in acquired:
            self.said.update((offset, None if offset in there else AcknowledgeType.GAP) for offset in run)

    def say(self, offset: int, what: AcknowledgeType) -> None:
        """Acknowledge a record. Raises ``InvalidRecordStateError`` if it is not (or no longer) acquired."""
        if offset not in self.said or self.said[offset] is AcknowledgeType.GAP:
            raise InvalidRecordStateError(
                f"offset {offset} of {self.partition} is not acquired by this consumer: acknowledge records "
                "of the last poll, each before the next poll or commit"
            )
        self.said[offset] = what

    def say_of_the_rest(self, what: AcknowledgeType, *, unseen: Collection[int] = ()) -> None:
        """Acknowledge all other acquired records in the same way, except those that the application did not get."""
        for offset, said in self.said.items():
            if said is None and offset not in unseen:
                self.said[offset] = what

    @property
    def unsaid(self) -> int:
        """Number of records without an acknowledgement."""
        return sum(said is None for said in self.said.values())

    def take(self) -> list[Run]:
        """Remove and return the acknowledgements, in the order of offsets."""
        taken = sorted((offset, said) for offset, said in self.said.items() if said is not None)
        for offset, _ in taken:
            del self.said[offset]
        # Group consecutive offsets of the same kind: their offset minus their rank is equal.
        runs = groupby(enumerate(taken), key=lambda item: (item[1][0] - item[0], item[1][1]))
        return [
            Run(offsets[0], offsets[-1], kind)
            for (_, kind), items in runs
            if (offsets := [offset for _, (offset, _) in items])
        ]
