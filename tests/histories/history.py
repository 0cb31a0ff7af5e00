"""The actions and results of clients as the clients recorded them.

The history is the input of the checker. A client appends a line of JSON to its own file before and after each action.
So the actions of a killed client are known too. Times are nanoseconds of the monotonic clock, which all processes of a
host share. One client writes each value once, so a value identifies the send that wrote it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int


class Send(NamedTuple):
    """A record to be written, with its acknowledged offset, if any."""

    place: Place
    value: str
    offset: int | None = None


class Read(NamedTuple):
    """A record that a consumer got."""

    place: Place
    offset: int
    value: str


class Outcome(StrEnum):
    """The outcome of a write."""

    OK = "ok"  # acknowledged, or committed if it was a transaction
    FAILED = "failed"  # certainly not there, because the transaction was aborted
    UNKNOWN = "unknown"  # the client was killed, or does not know the outcome


@dataclass(frozen=True, slots=True)
class Write:
    """An ordered group of sends.

    The sends are those of one transaction, or those between two flushes.
    """

    process: str
    number: int
    is_transaction: bool
    sends: tuple[Send, ...]
    outcome: Outcome
    commit_ns: int | None = None
    """The time at which the client began to commit, or None if it never did."""


@dataclass(frozen=True, slots=True)
class Poll:
    """The result of one poll. ``assignment`` grows with each change of the partitions or positions."""

    process: str
    assignment: int
    ended_ns: int
    reads: tuple[Read, ...]


@dataclass(frozen=True, slots=True)
class Commits:
    """A group's committed offsets at the time of a request."""

    asked_ns: int
    offsets: dict[Place, int]


@dataclass(frozen=True, slots=True)
class History:
    """All actions of clients.

    Writes and polls of each client are in the order in which the client made them.
    """

    writes: tuple[Write, ...] = ()
    polls: tuple[Poll, ...] = ()
    commits: tuple[Commits, ...] = ()


class Recorder:
    """A recorder of a client's actions, a line at a time. Written lines survive the client."""

    def __init__(self, path: Path) -> None:
        self.process = path.stem
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._writes = 0
        self._assignment = 0

    def _line(self, **fields: Any) -> None:
        os.write(self._file, json.dumps({"at": time.monotonic_ns(), **fields}).encode() + b"\n")

    def begin(self, values: Iterable[tuple[Place, str]], *, is_transaction: bool) -> int:
        """Record the start of a write, and return its number."""
        self._writes += 1
        sends = [[place.topic, place.partition, value] for place, value in values]
        self._line(event="begin", write=self._writes, transaction=is_transaction, sends=sends)
        return self._writes

    def committing(self, write: int) -> None:
        """Record that the transaction is about to be committed."""
        self._line(event="commit", write=write)

    def ended(self, write: int, outcome: Outcome, offsets: Sequence[int | None] = ()) -> None:
        """Record the end of the write."""
        self._line(event="end", write=write, outcome=outcome.value, offsets=list(offsets))

    def moved(self) -> None:
        """Record that the next read need not follow the last one."""
        self._assignment += 1

    def polled(self, reads: Iterable[Read]) -> None:
        """Record a completed poll."""
        rows = [[read.place.topic, read.place.partition, read.offset, read.value] for read in reads]
        if rows:
            self._line(event="poll", assignment=self._assignment, reads=rows)

    def committed(self, asked_ns: int, offsets: dict[Place, int]) -> None:
        """Record a group's committed offsets and the time of the request."""
        rows = [[place.topic, place.partition, offset] for place, offset in offsets.items()]
        self._line(event="committed", asked=asked_ns, offsets=rows)


def load(directory: Path) -> History:
    """Read the records of all clients. An incomplete last line does not count."""
    writes: list[Write] = []
    polls: list[Poll] = []
    commits: list[Commits] = []
    for path in sorted(directory.glob("*.jsonl")):
        lines = path.read_bytes().split(b"\n")[:-1]
        events = [json.loads(line) for line in lines]
        writes += _writes(path.stem, events)
        for event in events:
            if event["event"] == "poll":
                reads = tuple(
                    Read(Place(topic, number), offset, value) for topic, number, offset, value in event["reads"]
                )
                polls.append(Poll(path.stem, event["assignment"], event["at"], reads))
            elif event["event"] == "committed":
                offsets = {Place(topic, number): offset for topic, number, offset in event["offsets"]}
                commits.append(Commits(event["asked"], offsets))
    return History(tuple(writes), tuple(polls), tuple(sorted(commits, key=lambda each: each.asked_ns)))


def _writes(process: str, events: Sequence[dict[str, Any]]) -> Iterable[Write]:
    begun = {event["write"]: event for event in events if event["event"] == "begin"}
    commits = {event["write"]: event["at"] for event in events if event["event"] == "commit"}
    ends = {event["write"]: event for event in events if event["event"] == "end"}
    for number, event in begun.items():
        end = ends.get(number, {"outcome": Outcome.UNKNOWN, "offsets": []})
        offsets = end["offsets"] or [None] * len(event["sends"])
        sends = tuple(
            Send(Place(topic, partition), value, offset)
            for (topic, partition, value), offset in zip(event["sends"], offsets, strict=True)
        )
        yield Write(process, number, event["transaction"], sends, Outcome(end["outcome"]), commits.get(number))
