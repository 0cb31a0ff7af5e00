"""Background task that writes the audit to its topic.

The task takes rows from the queue and writes them to the topic. While the topic cannot be written, the task appends the
rows to the spool, and writes them to the topic later.

Invariants

- ``record`` and ``record_refused_login`` neither wait nor raise. Everything else runs in a task of its own.
- Rows reach the topic in the order in which they left the queue. While the spool has batches, new batches are
  appended to it.
- A batch keeps its producer's numbers until it is written, also over a restart. A leader therefore appends it once.
- A batch whose write fails unexpectedly is counted, and does not block the batches after it.
- A batch whose content the topic refuses is set aside in the spool, and does not block the batches after it.
- The broker logs one line when rows begin to be written, to be spooled, or to be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from millrace.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    MillraceError,
    OutOfOrderSequenceError,
    RecordListTooLargeError,
    RequestTimedOutError,
    SchemaMismatchError,
    StorageError,
)
from millrace_broker.audit.events import AuditBatch, AuditRow
from millrace_broker.audit.queue import AuditQueue
from millrace_broker.audit.spool import AuditSpool
from millrace_broker.audit.topic import AuditTarget
from millrace_broker.runtime import Executors

_logger: Final = logging.getLogger("millrace.audit")

ROWS_MAX: Final = 500
"""Maximum of rows in a batch. With the longest texts they have less than a megabyte."""
_WRITE_S: Final = 5.0
"""Longest time for one write, before its rows go to the spool."""
_REFUSALS: Final = (
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    RecordListTooLargeError,
    SchemaMismatchError,
)
"""Errors about the content of a batch, which a later write of the same batch would get too."""


@dataclass(frozen=True, slots=True)
class AuditStatistics:
    """Counts of decisions since the start, and present sizes."""

    recorded: int
    written: int
    dropped: int
    waiting_rows: int
    spooled_batches: int
    spooled_bytes: int
    damaged_files: int
    is_failing: bool
    """True if the last write to the topic failed, or rows wait in the spool."""


class Audit:
    """Audit of one broker; see the module. For the event loop's thread."""

    def __init__(
        self,
        queue: AuditQueue,
        spool: AuditSpool,
        target: AuditTarget,
        executors: Executors,
        *,
        interval_s: float,
    ) -> None:
        self.record: Final = queue.record
        self.record_refused_login: Final = queue.record_refused_login
        self._queue: Final = queue
        self._spool: Final = spool
        self._target: Final = target
        self._executors: Final = executors
        self._interval_s: Final = interval_s
        self._stopping: Final = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._producer_id: int | None = None
        self._sequence = 0
        self._written = 0
        self._dropped = 0
        self._reported_dropped = 0
        self._is_failing = False
        self._is_losing = False

    def start(self) -> None:
        """Start to write."""
        self._task = asyncio.create_task(self._run(), name="millrace-audit")

    async def stop(self) -> None:
        """Write once more, and write no more then. ``record`` still works."""
        self._stopping.set()
        if self._task is not None:
            await self._task
            self._task = None

    async def close(self) -> None:
        """Put the rest of the rows into the spool, from which the next start writes them."""
        await self.stop()
        for rows in _batches(self._queue.drain()):
            await self._to_spool(await self._numbered(rows), was_sent=False)
        self._report_losses()

    def statistics(self) -> AuditStatistics:
        """Return the current statistics."""
        return AuditStatistics(
            recorded=self._queue.recorded,
            written=self._written,
            dropped=self._queue.dropped + self._dropped,
            waiting_rows=len(self._queue),
            spooled_batches=len(self._spool),
            spooled_bytes=self._spool.size_bytes,
            damaged_files=self._spool.damaged,
            is_failing=self._is_failing,
        )

    async def _run(self) -> None:
        await self._open()
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._interval_s)
            try:
                await self.step()
            except Exception:
                _logger.exception("the audit could not be written, and goes on with later decisions")

    async def _open(self) -> None:
        try:
            await self._executors.run_io(self._spool.open)
        except StorageError as error:
            _logger.error("earlier rows of the audit in %s cannot be read: %s", self._spool.directory, error.message)

    async def step(self) -> None:
        """Write what waits in memory and in the spool, or spool it."""
        for rows in _batches(self._queue.drain()):
            batch = await self._numbered(rows)
            is_next = not len(self._spool)
            try:
                is_written = is_next and await self._is_written(batch)
            except _REFUSALS:
                is_written = False  # it is set aside when it is first in the spool
            except Exception as error:
                _logger.exception("a batch of the audit could not be written")
                self._lost(batch, f"{type(error).__name__}: {error}", was_sent=True)
                continue
            if not is_written:
                await self._to_spool(batch, was_sent=is_next)
        await self._write_spooled()
        self._report_losses()

    async def _numbered(self, rows: Sequence[AuditRow]) -> AuditBatch:
        """Return a batch with the next sequence numbers. Without a producer id, it has none."""
        if self._producer_id is None:
            try:
                self._producer_id, self._sequence = await self._target.producer_id(), 0
            except MillraceError as error:
                self._failed(error)
                return AuditBatch(tuple(rows))
        batch = AuditBatch(tuple(rows), self._producer_id, self._sequence)
        self._sequence += len(batch.rows)
        return batch

    async def _is_written(self, batch: AuditBatch) -> bool:
        """Write a batch. Return False if a later write may succeed. Raises ``_REFUSALS``."""
        try:
            try:
                async with asyncio.timeout(_WRITE_S):
                    await self._write(batch)
            except TimeoutError:
                raise RequestTimedOutError(f"no answer within {_WRITE_S:.0f} s") from None
        except _REFUSALS:
            raise
        except MillraceError as error:
            self._failed(error)
            return False
        self._written += batch.decisions
        self._is_losing = False
        return True

    async def _write(self, batch: AuditBatch) -> None:
        try:
            await self._target.write(batch, _WRITE_S)
        except DuplicateSequenceError:
            return  # an earlier attempt has arrived
        except (OutOfOrderSequenceError, InvalidProducerEpochError) as error:
            # The leader no longer knows what came before, or rows between were lost.
            _logger.warning("rows of the audit are written without sequence numbers: %s", error.message)
            if batch.producer_id == self._producer_id:
                self._producer_id = None
            await self._target.write(batch.unnumbered(), _WRITE_S)

    async def _to_spool(self, batch: AuditBatch, *, was_sent: bool) -> None:
        try:
            if await self._executors.run_io(self._spool.append, batch):
                return
            reason = f"audit.spool.max.bytes is reached in {self._spool.directory}"
        except StorageError as error:
            reason = error.message
        self._lost(batch, reason, was_sent=was_sent)

    async def _write_spooled(self) -> None:
        """Write batches of the spool, from the first one, until one fails."""
        has_refusals = False
        try:
            while (batch := await self._executors.run_io(self._spool.first)) is not None:
                try:
                    if not await self._is_written(batch):
                        return
                except Exception as error:
                    _logger.error(
                        "rows of the audit cannot be written, and are kept in a .damaged file of %s: %s",
                        self._spool.directory,
                        error,
                        exc_info=not isinstance(error, _REFUSALS),
                    )
                    await self._executors.run_io(self._spool.set_aside_first)
                    has_refusals = True
                    if batch.producer_id == self._producer_id:
                        self._producer_id = None  # its numbers are missing, so that later rows get other ones
                    continue
                await self._executors.run_io(self._spool.remove_first)
        except StorageError as error:
            self._failed(error)
            return
        if self._is_failing and (has_refusals or self._producer_id is not None):
            self._is_failing = False
            _logger.info("the audit is written to its topic again")

    def _failed(self, error: MillraceError) -> None:
        if not self._is_failing:
            self._is_failing = True
            _logger.error(
                "the topic of the audit cannot be written, and decisions are kept in %s: %s",
                self._spool.directory,
                error.message,
            )

    def _lost(self, batch: AuditBatch, reason: str, *, was_sent: bool) -> None:
        self._dropped += batch.decisions
        if batch.producer_id == self._producer_id:
            # The next batch takes these numbers. If the leader may have them, it takes those of a new producer.
            self._sequence = batch.sequence
            self._producer_id = None if was_sent else self._producer_id
        if not self._is_losing:
            self._is_losing = True
            _logger.error("decisions of the audit are lost: %s", reason)

    def _report_losses(self) -> None:
        """Log once for each interval in which the queue was full."""
        lost = self._queue.dropped - self._reported_dropped
        if lost:
            self._reported_dropped = self._queue.dropped
            _logger.error("%d decisions of the audit are lost: audit.queue.max.rows was reached", lost)


def _batches(rows: Sequence[AuditRow]) -> list[tuple[AuditRow, ...]]:
    return [tuple(rows[first : first + ROWS_MAX]) for first in range(0, len(rows), ROWS_MAX)]
