"""Reader that splits the batches of one partition by rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from millrace.clients.consuming.partition import OFFSET_MAX, PartitionState
from millrace.clients.schema_cache import SchemaCache
from millrace.errors import UnreadableValueError
from millrace.records import DecodedBatch, decode_range

Converted = TypeVar("Converted")


class PartitionReader:
    """Reader of a ``PartitionState``'s fetched data, which advances its position."""

    def __init__(self, state: PartitionState, schemas: SchemaCache, check_crcs: bool) -> None:
        self.state = state
        self.partition = state.partition
        self._schemas = schemas
        self._check_crcs = check_crcs
        self._columns: Sequence[str] | None = None
        self._batches: Iterator[DecodedBatch] | None = None
        self._rest: DecodedBatch | None = None
        self._generation = state.generation

    def move_to(self, offset: int, epoch: int = -1) -> None:
        """Continue at ``offset``; ``epoch`` is the leader epoch of the record before."""
        self.state.move_to(offset, epoch)

    def reset(self, where: str) -> None:
        """Continue at the ``earliest`` or ``latest`` offset."""
        self.state.reset(where)

    def read_columns(self, columns: Sequence[str] | None) -> None:
        """Read only these columns from now on; batches that were decoded with others are decoded again."""
        if columns != self._columns:
            self._columns = columns
            self._batches = self._rest = None

    def has_data(self) -> bool:
        """Return whether batches wait to be read (control batches alone may contain no records)."""
        return bool(self.state.waiting) and not self.state.is_paused

    def next(
        self, max_rows: int, convert: Callable[[DecodedBatch], Converted]
    ) -> tuple[DecodedBatch, Converted] | None:
        """Return the next rows, at most ``max_rows`` of one decoded batch, and the result of ``convert`` for them.

        Returns ``None`` without further fetched data. Raises the errors of ``decode_range`` and ``convert``;
        ``UnreadableValueError`` only for the first row. After an
        error the position is unchanged, and the next call reads the same rows.
        """
        if self._generation != self.state.generation:
            self._generation = self.state.generation
            self._batches = self._rest = None
        batch = self._rest = self._rest or self._next_batch()
        if batch is None:
            return None
        split = batch.offsets()[max_rows].as_py() if batch.num_rows > max_rows else None
        rows = batch if split is None else batch.slice(0, split)
        try:
            converted = convert(rows)
        except UnreadableValueError as error:
            # Return the records before it first, so that a seek past the error skips no others.
            split = error.offset
            rows = batch.slice(0, split)
            if not rows.num_rows:
                raise
            converted = convert(rows)
        self._rest = None if split is None else batch.slice(split, OFFSET_MAX)
        # Skip offsets that compaction removed at a batch's end, but not records from ``end_offset`` on.
        end = min(batch.header.next_offset, self.state.waiting[0].end_offset)
        self.state.position = end if split is None else split
        self.state.offset_epoch = batch.header.partition_leader_epoch
        return rows, converted

    def _next_batch(self) -> DecodedBatch | None:
        while self.state.waiting:
            fetched = self.state.waiting[0]
            if self._batches is None:
                self._batches = decode_range(
                    fetched.data,
                    self.state.position or 0,
                    fetched.end_offset,
                    self._schemas.schema_of,
                    self._columns,
                    verify=self._check_crcs,
                    aborted=fetched.aborted,
                )
            try:
                batch = next(self._batches, None)
            except BaseException:
                self._batches = None  # a generator that has raised ends: without this, its records would be skipped
                raise
            if batch is not None:
                return batch
            self._batches = None
            # Skip control batches, aborted batches, and offsets that compaction removed at the end.
            if fetched.next_offset > (self.state.position or 0):
                self.state.position, self.state.offset_epoch = fetched.next_offset, fetched.leader_epoch
            self.state.waiting.popleft()
        return None
