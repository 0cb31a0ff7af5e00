"""Spark's query log in a checkpoint, with each batch's offsets.

Spark logs the end of a batch in ``offsets/<number>`` before it runs the batch, and its completion in
``commits/<number>`` afterwards. Spark keeps about the last hundred of both
(``spark.sql.streaming.minBatchesToRetain``). An entry is text: a version, a line of metadata, and a line for each
source. In version 2 the source's name precedes its offsets.

Invariants: a batch begins where the previous one ended, so the range of a batch is known while both entries exist. The
entry of a query's first batch contains its start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from millrace.errors import UsageError
from pyspark_millrace.planning.offsets import OffsetRange, StreamOffsets, ranges_between

_VERSIONS: Final = ("v1", "v2")
_IDS: Final = "@topic-ids"


@dataclass(frozen=True)
class OffsetEntry:
    """File of the offset log.

    ``lines`` are the lines of the sources.
    """

    batch_id: int
    version: str
    metadata: str
    lines: tuple[str, ...]

    @cached_property
    def sources(self) -> tuple[StreamOffsets | None, ...]:
        """Offsets of each source; None for a source of another format or without offsets."""
        return tuple(_offsets_in(self._name_and_offsets(line)[1]) for line in self.lines)

    @property
    def is_reset(self) -> bool:
        """True if the entry is a reset, so that its batch is empty."""
        return any(source is not None and source.is_reset for source in self.sources)

    def with_sources(self, batch_id: int, sources: Mapping[int, StreamOffsets]) -> OffsetEntry:
        """Return a copy of this entry for another batch, with other offsets for some sources."""
        lines = [
            self._name_and_offsets(line)[0] + json.dumps(sources[index].to_json()) if index in sources else line
            for index, line in enumerate(self.lines)
        ]
        return OffsetEntry(batch_id, self.version, self.metadata, tuple(lines))

    def to_text(self) -> str:
        """Return the content of the file."""
        return "\n".join([self.version, self.metadata, *self.lines])

    def _name_and_offsets(self, line: str) -> tuple[str, str]:
        """Split a line into the source's name and the offsets."""
        if self.version == "v1":
            return "", line
        name, colon, offsets = line.partition(":")
        return name + colon, offsets


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """A micro-batch in the checkpoint.

    ``ranges`` are the offsets that it read from all sources; None if the previous entry was removed. With ``is_done``
    Spark has logged its completion. With ``is_reset`` it read nothing, and the next batch begins at ``end``.
    """

    batch_id: int
    ranges: tuple[OffsetRange, ...] | None
    end: tuple[StreamOffsets, ...]
    is_done: bool
    is_reset: bool


@dataclass(frozen=True)
class Checkpoint:
    """Content of a checkpoint at one moment."""

    directory: Path
    query_id: str
    entries: Mapping[int, OffsetEntry]
    done: frozenset[int]

    @property
    def newest(self) -> OffsetEntry:
        """Entry of the last planned batch. Raises ``UsageError`` if there is none."""
        if not self.entries:
            raise UsageError(
                f"{self.directory}: the query has planned no batch yet, so its checkpoint has no offsets: set "
                "startingOffsets instead"
            )
        return self.entries[max(self.entries)]

    @property
    def is_pending(self) -> bool:
        """True if the last planned batch has no logged completion. Spark runs it again at the next start."""
        return self.newest.batch_id not in self.done

    @property
    def has_state(self) -> bool:
        """True if the query has state, such as aggregates or joins."""
        return any((self.directory / "state").glob("*/*/*"))

    def batches(self) -> list[LoggedBatch]:
        """Return all batches in the checkpoint, in order."""
        return [self._batch(self.entries[number]) for number in sorted(self.entries)]

    def missing(self) -> list[int]:
        """Return batches without an entry between the first and the last one. Spark never leaves such gaps."""
        if not self.entries:
            return []
        return sorted(set(range(min(self.entries), max(self.entries))) - self.entries.keys())

    def _batch(self, entry: OffsetEntry) -> LoggedBatch:
        before = self.entries.get(entry.batch_id - 1)
        known = (
            [_ranges(before, index, end) for index, end in enumerate(entry.sources) if end is not None]
            if before is not None or entry.batch_id == 0
            else [None]
        )
        return LoggedBatch(
            batch_id=entry.batch_id,
            ranges=None if None in known else tuple(each for ranges in known for each in ranges or ()),
            end=tuple(source for source in entry.sources if source is not None),
            is_done=entry.batch_id in self.done,
            is_reset=entry.is_reset,
        )


def _ranges(before: OffsetEntry | None, index: int, end: StreamOffsets) -> list[OffsetRange] | None:
    start = before.sources[index] if before is not None and index < len(before.sources) else None
    if start is not None:
        return ranges_between(start, end)
    if end.is_initial:
        return []
    if end.started_from is None:
        return None
    return ranges_between(StreamOffsets(end.started_from, end.topic_ids, is_initial=True), end)


def read_checkpoint(location: str | Path) -> Checkpoint:
    """Read the checkpoint of a query from a path or ``file:`` URI.

    Raises ``UsageError`` for another directory, or for a query without a millrace source.
    """
    directory = checkpoint_directory(location)
    try:
        query_id = str(json.loads((directory / "metadata").read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"{directory} is not the checkpoint of a query (it has no metadata): give the query's checkpointLocation"
        ) from None
    checkpoint = Checkpoint(
        directory,
        query_id,
        {number: entry for number in _numbers(directory / "offsets") if (entry := _read_entry(directory, number))},
        frozenset(_numbers(directory / "commits")),
    )
    if checkpoint.entries and not any(checkpoint.newest.sources):
        raise UsageError(f"{directory}: the query has no source of format millrace")
    return checkpoint


def is_mounted(location: str | Path) -> bool:
    """Return whether a location is a path or ``file:`` URI."""
    parts = urlsplit(str(location))
    return parts.scheme in ("", "file") and parts.netloc in ("", "localhost")


def checkpoint_directory(location: str | Path) -> Path:
    """Return the directory of a path or ``file:`` URI. Raises ``UsageError`` for other file systems."""
    if not is_mounted(location):
        raise UsageError(f"{location}: checkpoints are read from local and mounted file systems: a path or file: URI")
    parts = urlsplit(str(location))
    return Path(unquote(parts.path) if parts.scheme else str(location)).absolute()


def _numbers(directory: Path) -> list[int]:
    try:
        return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())
    except FileNotFoundError:
        return []


def _read_entry(directory: Path, number: int) -> OffsetEntry | None:
    """Read one entry; returns None if Spark purged it meanwhile."""
    path = directory / "offsets" / str(number)
    try:
        version, *rest = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if version not in _VERSIONS:
        raise UsageError(
            f"{path} has version {version!r}: expected {' or '.join(_VERSIONS)}, the versions of Spark 4.2"
        )
    if len(rest) < 2:
        raise UsageError(f"{path} is damaged: it has {len(rest) + 1} lines, but needs at least 3")
    return OffsetEntry(number, version, rest[0], tuple(line for line in rest[1:] if line))


def _offsets_in(text: str) -> StreamOffsets | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return StreamOffsets.from_json(value) if isinstance(value, dict) and _IDS in value else None
