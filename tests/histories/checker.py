"""Checks of every history.

The checker finds the anomalies of Jepsen's Kafka workload, and anomalies of processing.

Source: Jepsen's analyses of Redpanda 21.10 and Bufstream 0.1, whose Kafka workload these checks follow. The reference
is the final log (``final``): everything committed in all partitions, in the order of offsets.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from .history import History, Outcome, Place, Poll, Read, Write


class Anomaly(NamedTuple):
    """A violation that a history shows."""

    kind: str
    what: str


def anomalies(history: History, final: Sequence[Read]) -> list[Anomaly]:
    """Return all anomalies of a history."""
    return [
        *_inconsistent_offsets(history, final),
        *_duplicates(history, final),
        *_invented(history, final),
        *_lost_writes(history, final),
        *_aborted_reads(history, final),
        *_uncommitted_reads(history),
        *_torn_transactions(history, final),
        *_reordered(history, final),
        *_polls(history, final),
        *_regressing_commits(history),
    ]


def processing_anomalies(inputs: Iterable[str], outputs: Iterable[str], *, is_finished: bool) -> list[Anomaly]:
    """Return inputs that were processed twice or never. With ``is_finished``, all were to be processed.

    Every output begins with its input and ``>``.
    """
    made: dict[str, list[str]] = defaultdict(list)
    for output in outputs:
        made[output.partition(">")[0]].append(output)
    known = set(inputs)
    found = [Anomaly("processed twice", f"{each}: {made[each]}") for each in made if len(made[each]) > 1]
    found += [Anomaly("processed nothing", f"{made[each]} are of no input") for each in made if each not in known]
    if is_finished:
        found += [Anomaly("never processed", each) for each in known if each not in made]
    return found


def _observed(history: History, final: Sequence[Read]) -> Iterator[tuple[Read, str]]:
    """Return every observed position of a value, and its observers."""
    for write in history.writes:
        for send in write.sends:
            if send.offset is not None:
                yield Read(send.place, send.offset, send.value), f"acknowledged to {write.process}"
    for poll in history.polls:
        for read in poll.reads:
            yield read, f"polled by {poll.process}"
    for read in final:
        yield read, "in the end"


def _inconsistent_offsets(history: History, final: Sequence[Read]) -> Iterator[Anomaly]:
    """Check that an offset has one value for every observer at any time."""
    values: dict[tuple[Place, int], tuple[str, str]] = {}
    for read, who in _observed(history, final):
        value, first = values.setdefault((read.place, read.offset), (read.value, who))
        if value != read.value:
            yield Anomaly("inconsistent offset", f"{read.place} {read.offset}: {value} {first}, {read.value} {who}")


def _duplicates(history: History, final: Sequence[Read]) -> Iterator[Anomaly]:
    """Check that a value has one offset, because each was sent once."""
    places: dict[str, tuple[Place, int]] = {}
    reported = set()
    for read, who in _observed(history, final):
        place = places.setdefault(read.value, (read.place, read.offset))
        if place != (read.place, read.offset) and read.value not in reported:
            reported.add(read.value)
            yield Anomaly("duplicate", f"{read.value} at {place} and at {(read.place, read.offset)} {who}")


def _invented(history: History, final: Sequence[Read]) -> Iterator[Anomaly]:
    sent = {send.value for write in history.writes for send in write.sends}
    seen = {read.value: who for read, who in _observed(history, final)}
    for value, who in seen.items():
        if value not in sent:
            yield Anomaly("invented", f"{value}, {who}, was never sent")


def _lost_writes(history: History, final: Sequence[Read]) -> Iterator[Anomaly]:
    """Check that acknowledged or read records are in the final log.

    In a transaction the commit counts as the acknowledgement.
    """
    left = {read.value for read in final}
    for write in history.writes:
        for send in write.sends:
            is_promised = write.outcome is Outcome.OK or (not write.is_transaction and send.offset is not None)
            if is_promised and send.value not in left:
                yield Anomaly("lost write", f"{send.value} of {write.process}, acknowledged at {send.offset}")
    for poll in history.polls:
        for read in poll.reads:
            if read.value not in left:
                yield Anomaly("lost write", f"{read.value}, read by {poll.process} at {read.place} {read.offset}")


def _aborted_reads(history: History, final: Sequence[Read]) -> Iterator[Anomaly]:
    aborted = {
        send.value: write.process
        for write in history.writes
        if write.is_transaction and write.outcome is Outcome.FAILED
        for send in write.sends
    }
    for reads, who in [*((poll.reads, poll.process) for poll in history.polls), (final, "the last reader")]:
        for read in reads:
            if read.value in aborted:
                yield Anomaly("aborted read", f"{read.value}, aborted by {aborted[read.value]}, read by {who}")


def _uncommitted_reads(history: History) -> Iterator[Anomaly]:
    """Check that no client reads a record whose writer has not begun to commit it."""
    begun = {send.value: write.commit_ns for write in history.writes if write.is_transaction for send in write.sends}
    for poll in history.polls:
        for read in poll.reads:
            commit_ns = begun.get(read.value, 0)
            if commit_ns is None or commit_ns > poll.ended_ns:
                yield Anomaly("uncommitted read", f"{read.value} by {poll.process} before it was to be committed")


def _torn_transactions(history: History, final: Sequence[Read]) -> Iterator[Anomaly]:
    """Check that a transaction is in the log completely or not at all."""
    left = {read.value for read in final}
    for write in history.writes:
        there = [send.value in left for send in write.sends]
        if write.is_transaction and any(there) and not all(there):
            missing = [send.value for send, is_there in zip(write.sends, there, strict=True) if not is_there]
            yield Anomaly("torn transaction", f"{write.process} {write.number}: {missing} missing of {len(there)}")


def _reordered(history: History, final: Sequence[Read]) -> Iterator[Anomaly]:
    """Check that one client's records of one partition are in the order of sending."""
    offsets = {read.value: read.offset for read in final}
    by_writer: dict[tuple[str, Place], list[str]] = defaultdict(list)
    for write in sorted(history.writes, key=lambda each: each.number):
        for send in write.sends:
            if send.value in offsets:
                by_writer[write.process, send.place].append(send.value)
    for (process, place), values in by_writer.items():
        for first, second in pairwise(values):
            if offsets[first] >= offsets[second]:
                yield Anomaly("reordered", f"{process} sent {first} before {second} to {place}, which has it after")


def _polls(history: History, final: Sequence[Read]) -> Iterator[Anomaly]:
    """Check that a consumer which keeps its partitions reads on from its position, without repetitions and gaps."""
    left: dict[Place, list[int]] = defaultdict(list)
    for read in final:
        left[read.place].append(read.offset)
    last: dict[tuple[str, int, Place], int] = {}
    for poll in history.polls:
        for read in poll.reads:
            consumer = (poll.process, poll.assignment, read.place)
            before = last.get(consumer)
            last[consumer] = read.offset
            if before is None:
                continue
            if read.offset <= before:
                yield Anomaly("nonmonotonic poll", f"{poll.process} read {read.place} {before}, then {read.offset}")
            elif skipped := _between(left[read.place], before, read.offset):
                yield Anomaly("skipped by poll", f"{poll.process} left out {skipped} of {read.place}")


def _between(offsets: Sequence[int], before: int, after: int) -> list[int]:
    return list(offsets[bisect_right(offsets, before) : bisect_left(offsets, after)])


def _regressing_commits(history: History) -> Iterator[Anomaly]:
    """Check that a group's committed offset in a partition never decreases."""
    last: dict[Place, int] = {}
    for commits in history.commits:
        for place, offset in commits.offsets.items():
            if offset < last.get(place, -1):
                yield Anomaly("regressing commit", f"{place}: {last[place]}, then {offset}")
            last[place] = max(offset, last.get(place, -1))


__all__ = ["Anomaly", "Poll", "Write", "anomalies", "processing_anomalies"]
