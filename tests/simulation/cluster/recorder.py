"""A recorder and checker of simulated clients' actions and results.

It writes histories as ``tests/histories`` does, whose checker judges the whole at the end. The recorder checks these
rules with every answer to a client and every newly committed byte:

* A record that is acknowledged to a producer is committed at that moment, at that offset.
* A record that a consumer gets is committed at that moment, at that offset. It belongs to no aborted transaction, and
  its transaction's marker is committed.
* Each value was sent by a client, and is committed once.
* When a transaction's marker is committed in a partition and the last stable offset passes it, all records that were
  sent there are before it. All partitions have the same outcome, which is the one that the producer was told or
  requested.
* The positions of a consumer that keeps its partitions only grow, and so do a group's committed offsets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from millrace.records import ControlType, read_end_marker, read_rows, scan_headers

from ...histories.history import Commits, History, Outcome, Place, Poll, Read, Send, Write

if TYPE_CHECKING:
    from .world import World


@dataclass
class _Partition:
    """The committed records of a partition, by offset.

    ``open`` has the offsets of open transactions, by producer id.
    """

    values: dict[int, str] = field(default_factory=dict)
    open: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    aborted: set[int] = field(default_factory=set)

    def is_open(self, offset: int) -> bool:
        """Tell whether the offset belongs to an open transaction."""
        return any(offset in offsets for offsets in self.open.values())


class Recorder:
    """The recorder of this module. ``partitions`` are all partitions to which its clients write."""

    def __init__(self, world: World, partitions: Iterable[Place]) -> None:
        self._world: Final = world
        self._writes: Final[list[Write]] = []
        self._polls: Final[list[Poll]] = []
        self._commits: Final[list[Commits]] = []
        self._partitions: Final = {place: _Partition() for place in partitions}
        self._sent_in: Final[dict[str, int]] = {}
        """The write of each value."""
        self._committed_at: Final[dict[str, tuple[Place, int]]] = {}
        self._ends: Final[dict[int, tuple[ControlType, Place]]] = {}
        """The outcome of each write's transaction in the first partition with a marker."""
        self._positions: Final[dict[tuple[str, int, Place], int]] = {}
        self._group_offsets: Final[dict[Place, int]] = {}

    @property
    def history(self) -> History:
        """Return the complete history for the checker."""
        return History(tuple(self._writes), tuple(self._polls), tuple(self._commits))

    # --- producers -------------------------------------------------------------------------------------------

    def begin(
        self, process: str, number: int, values: Sequence[tuple[Place, str]], *, is_transaction: bool = False
    ) -> int:
        """Record the start of a write. Return the argument of ``ended``."""
        write = len(self._writes)
        sends = tuple(Send(place, value) for place, value in values)
        self._writes.append(Write(process, number, is_transaction, sends, Outcome.UNKNOWN))
        self._sent_in.update((value, write) for _, value in values)
        return write

    def acknowledged(self, place: Place, offset: int, values: Sequence[str]) -> None:
        """Record an acknowledgement, and check that all in-sync replicas have the records."""
        for at, value in enumerate(values, offset):
            found = self._partitions[place].values.get(at)
            if found != value:
                self._wrong(place, f"{value} is acknowledged at {at}, where {found or 'nothing'} is committed")

    def committing(self, write: int) -> None:
        """Record that a client begins to commit its transaction."""
        self._writes[write] = replace(self._writes[write], commit_ns=self._world.now_ns)

    def ended(self, write: int, outcome: Outcome, offsets: Sequence[int | None] = ()) -> None:
        """Record the outcome of a write, or that its client cannot know it."""
        known = self._writes[write]
        sends = known.sends
        if offsets:
            sends = tuple(each._replace(offset=offset) for each, offset in zip(sends, offsets, strict=True))
        self._writes[write] = replace(known, outcome=outcome, sends=sends)

    # --- consumers -------------------------------------------------------------------------------------------

    def read(self, process: str, reads: Sequence[Read]) -> None:
        """Record and check the committed records that a client got."""
        for place, offset, value in reads:
            readable = self._readable(place, offset)
            if readable != value:
                may = "nothing may be read" if readable is None else f"{readable} is committed"
                self._wrong(place, f"{process} read {value} at {offset}, where {may}")

    def _readable(self, place: Place, offset: int) -> str | None:
        """Return the value that a read_committed consumer may get at the offset, or None."""
        partition = self._partitions[place]
        value = partition.values.get(offset)
        if value is None or offset in partition.aborted:
            return None
        return None if partition.is_open(offset) else value

    def polled(self, process: str, assignment: int, reads: Sequence[Read]) -> None:
        """Record that a group member consumes its records. ``assignment`` grows with each rejoin."""
        for place, offset, _ in reads:
            before = self._positions.get((process, assignment, place), -1)
            if offset <= before:
                self._wrong(place, f"{process} read {offset} after {before}")
            self._positions[process, assignment, place] = offset
        if reads:
            self._polls.append(Poll(process, assignment, self._world.now_ns, tuple(reads)))

    def committed(self, asked_ns: int, offsets: dict[Place, int]) -> None:
        """Record a group's committed offsets as a client got them."""
        for place, offset in offsets.items():
            if offset < self._group_offsets.get(place, -1):
                self._wrong(place, f"a group's offset went back from {self._group_offsets[place]} to {offset}")
            self._group_offsets[place] = offset
        self._commits.append(Commits(asked_ns, offsets))

    # --- partitions ------------------------------------------------------------------------------------------

    def took(self, place: Place, batches: bytes) -> None:
        """Record newly committed batches."""
        partition = self._partitions.get(place)
        if partition is None:
            return
        for position, header in scan_headers(batches):
            rows = read_rows(batches, position, header)
            if header.is_control:
                end = read_end_marker(next(iter(rows))).type
                self._ended_in(place, partition.open.pop(header.producer_id, []), end)
                continue
            for row in rows:
                self._value_committed(place, row.offset, (row.value or b"").decode())
                if header.is_transactional:
                    partition.open[header.producer_id].append(row.offset)

    def _value_committed(self, place: Place, offset: int, value: str) -> None:
        self._partitions[place].values[offset] = value
        if value not in self._sent_in:
            self._wrong(place, f"{value} at {offset} was never sent")
        first = self._committed_at.setdefault(value, (place, offset))
        if first != (place, offset):
            self._wrong(place, f"{value} is committed at {offset}, and at {first[1]} of {_name(first[0])}")

    def _ended_in(self, place: Place, offsets: Sequence[int], end: ControlType) -> None:
        """Record the end of a transaction in a partition, with its offsets there."""
        partition = self._partitions[place]
        if end is ControlType.ABORT:
            partition.aborted.update(offsets)
        there = {partition.values[offset] for offset in offsets}
        for number in sorted({self._sent_in[value] for value in there if value in self._sent_in}):
            write = self._writes[number]
            who = f"transaction {write.number} of {write.process}"
            before, where = self._ends.setdefault(number, (end, place))
            if before is not end:
                self._wrong(place, f"{who} is torn: {end.name} here, {before.name} in {_name(where)}")
            if end is ControlType.ABORT and write.outcome is Outcome.OK:
                self._wrong(place, f"{who} is aborted, and was acknowledged as committed")
            if end is ControlType.COMMIT:
                if write.commit_ns is None:
                    self._wrong(place, f"{who} is committed, which nobody has asked for")
                missing = [each.value for each in write.sends if each.place == place and each.value not in there]
                if missing:
                    self._wrong(place, f"{who} is torn: {missing} are not before its end")

    def _wrong(self, place: Place, what: str) -> None:
        self._world.violated(f"{_name(place)}: {what}")


def _name(place: Place) -> str:
    return f"{place.topic}-{place.partition}"
