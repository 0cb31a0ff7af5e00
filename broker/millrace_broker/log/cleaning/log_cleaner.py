"""The log cleaner of a broker, Kafka's ``LogCleaner``.

Its threads clean the dirtiest log first.

Invariants:

- At most one thread cleans a partition, and none while it is ``paused``.
- A partition whose cleaning failed stays readable, and is named in ``statistics`` until it is cleaned. It is retried
  after a time that doubles with each failure, and when the cleaner is reconfigured.
- A checkpoint is written only after its segments are in place.

States and order of work are those of Kafka's ``LogCleanerManager``.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from millrace.errors import MillraceError
from millrace_broker.log.checkpoints import PartitionKey
from millrace_broker.log.cleaning.batches import TopicKeys
from millrace_broker.log.cleaning.checkpoints import CleanerCheckpoints
from millrace_broker.log.cleaning.cleaner import Cleaner, CleanerLimits
from millrace_broker.log.cleaning.cleaner_manager import CleanableRange, cleanable_range, dirtiest
from millrace_broker.log.cleaning.offset_map import ENTRY_BYTES
from millrace_broker.log.cleaning.partition_view import PartitionView
from millrace_broker.log.cleaning.statistics import CleaningStatistics
from millrace_broker.log.files import Files
from millrace_broker.log.partition_log import PartitionLog
from millrace_broker.log.segment_replacement import CleaningAbortedError
from millrace_broker.log.throttle import Throttle
from millrace_broker.log.workers import Workers
from millrace_broker.runtime import Clock

_LOG: Final = logging.getLogger(__name__)
_REMEMBERED_MAX: Final = 100
_DOUBLINGS_MAX: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """The settings of the log cleaner (``log.cleaner.*``). Memory and I/O are for all threads together.

    A partition whose cleaning failed is retried after ``retry_ms``. The time doubles with each further failure, up to
    ``retry_ms_max``.
    """

    threads: int = 1
    dedupe_buffer_bytes: int = 128 * 2**20
    load_factor: float = 0.9
    io_buffer_bytes: int = 4 * 2**20
    io_bytes_per_second_max: float = sys.float_info.max
    backoff_ms: int = 15_000
    retry_ms: int = 300_000
    retry_ms_max: int = 3_600_000

    @property
    def limits(self) -> CleanerLimits:
        """The limits of one thread."""
        return CleanerLimits(
            map_slots=max(self.dedupe_buffer_bytes // self.threads // ENTRY_BYTES, 1),
            map_load_factor=self.load_factor,
            chunk_bytes=max(self.io_buffer_bytes // self.threads, 1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerStatistics:
    """The work of the log cleaner in numbers.

    ``uncleanable`` has the error of each partition whose last cleaning failed. ``latest`` has the most recent
    cleanings. ``cleanings``, bytes and seconds count all cleanings since the start.
    """

    latest: tuple[CleaningStatistics, ...]
    cleanings: int
    bytes_read: int
    bytes_written: int
    seconds: float
    in_progress: tuple[PartitionKey, ...]
    dirtiest_ratio: float
    uncleanable: dict[PartitionKey, str]


@dataclass(frozen=True, slots=True)
class CompactedPartition:
    """A partition of a compacted topic, which may be cleaned."""

    log: PartitionLog
    directory: Path
    keys: TopicKeys

    @property
    def partition(self) -> PartitionKey:
        """The topic and partition number."""
        return self.log.topic, self.log.partition


@dataclass(frozen=True, slots=True)
class _Failed:
    """A partition whose cleaning failed.

    ``failures`` counts the failures in succession. ``retry_at_s`` is the time of the retry on the monotonic clock.
    """

    why: str
    failures: int
    retry_at_s: float


class LogCleaner:
    """The log cleaner over the partitions of ``find_partitions``; see ``start`` and ``stop``."""

    def __init__(
        self,
        settings: CleanerSettings,
        find_partitions: Callable[[], Sequence[CompactedPartition]],
        checkpoints: CleanerCheckpoints,
        files: Files,
        clock: Clock,
        *,
        before_cleaning: Callable[[CompactedPartition], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._find_partitions: Final = find_partitions
        self._checkpoints: Final = checkpoints
        self._files: Final = files
        self._clock: Final = clock
        self._before_cleaning: Final = before_cleaning
        """Writes the recovery point, so that gaps left by a cleaning do not look like lost records."""
        self._workers: Final[Workers[PartitionKey]] = Workers("cleaner", settings.threads)
        self._uncleanable: dict[PartitionKey, _Failed] = {}
        self._latest: deque[CleaningStatistics] = deque(maxlen=_REMEMBERED_MAX)
        self._cleanings = self._bytes_read = self._bytes_written = 0
        self._seconds = 0.0
        self._dirtiest_ratio = 0.0
        self._throttle = self._make_throttle()

    # --- start and stop ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the cleaner threads."""
        self._workers.start(self._run)

    def stop(self) -> None:
        """Interrupt the cleanings and wait for the threads to end. Stopping again does nothing."""
        self._workers.stop()

    def reconfigure(self, settings: CleanerSettings) -> None:
        """Apply other settings: interrupt the cleanings and start again.

        Partitions whose cleaning failed are retried at once. After ``stop`` this does nothing.
        """
        if settings == self._settings or self._workers.is_stopping:
            return
        self.stop()
        self._settings = settings
        self._throttle = self._make_throttle()
        self._workers.resize(settings.threads)
        with self._workers.changed:
            for partition, failed in self._uncleanable.items():
                self._uncleanable[partition] = replace(failed, failures=0, retry_at_s=self._clock.monotonic())
        self.start()

    def _make_throttle(self) -> Throttle:
        return Throttle(self._settings.io_bytes_per_second_max, self._clock.monotonic, self._workers.wait)

    def wake(self) -> None:
        """Have idle threads look for a partition to clean now."""
        with self._workers.changed:
            self._workers.changed.notify_all()

    def _run(self) -> None:
        while not self._workers.is_stopping:
            try:
                has_cleaned = self.clean_dirtiest() is not None
            except Exception:  # noqa: BLE001 - the thread must live; it is logged
                _LOG.exception("the cleaner could not choose a partition and tries again")
                has_cleaned = False
            if not has_cleaned:
                self._workers.wait(self._settings.backoff_ms / 1000)

    # --- pauses --------------------------------------------------------------------------------------------

    def paused(self, partition: PartitionKey) -> AbstractContextManager[None]:
        """Keep cleaner threads from a partition for truncation, moves and deletion; interrupt its cleaning first."""
        return self._workers.paused(partition)

    def forget(self, directory: Path, partition: PartitionKey) -> None:
        """Forget a deleted partition; call it while the partition is ``paused``."""
        self._checkpoints.forget(directory, partition)
        with self._workers.changed:
            self._uncleanable.pop(partition, None)

    def drop_deleted(self, partition: PartitionKey) -> None:
        """Drop the offset of a deleted partition from the checkpoint, before a partition of its name is created.

        Raises ``StorageError``.
        """
        self._checkpoints.drop_deleted(partition)

    def truncated(self, directory: Path, partition: PartitionKey, end_offset: int) -> None:
        """Take note that a partition was truncated; call it while the partition is ``paused``."""
        self._checkpoints.truncate(directory, partition, end_offset)

    def statistics(self) -> CleanerStatistics:
        """Return the recent cleanings, newest last, and the cleanings in progress."""
        with self._workers.changed:
            return CleanerStatistics(
                latest=tuple(self._latest),
                cleanings=self._cleanings,
                bytes_read=self._bytes_read,
                bytes_written=self._bytes_written,
                seconds=self._seconds,
                in_progress=self._workers.in_progress,
                dirtiest_ratio=self._dirtiest_ratio,
                uncleanable={partition: failed.why for partition, failed in self._uncleanable.items()},
            )

    # --- cleanings -----------------------------------------------------------------------------------------

    def clean_dirtiest(self) -> CleaningStatistics | None:
        """Clean the log with the largest dirty share.

        Returns None if no log is dirty enough, or if the cleaning was interrupted or failed.
        """
        chosen = self._take_dirtiest()
        if chosen is None:
            return None
        candidate, dirty = chosen
        try:
            return self._clean(candidate, dirty)
        except CleaningAbortedError as error:
            _LOG.info("%s", error.message)
        except Exception as error:  # noqa: BLE001 - after any error the partition is skipped; the error is logged
            self._give_up(candidate, error)
        finally:
            self._workers.done(candidate.partition)
        return None

    def _give_up(self, candidate: CompactedPartition, error: Exception) -> None:
        """Skip a partition for a time after a failure, unless the partition was deleted."""
        if any(other.log is candidate.log for other in self._find_partitions()):
            why = error.message if isinstance(error, MillraceError) else repr(error)
            with self._workers.changed:
                before = self._uncleanable.get(candidate.partition)
                failures = 1 if before is None else before.failures + 1
                doublings = min(failures - 1, _DOUBLINGS_MAX)
                wait_s = min(self._settings.retry_ms * 2**doublings, self._settings.retry_ms_max) / 1000
                failed = _Failed(why, failures, self._clock.monotonic() + wait_s)
                self._uncleanable[candidate.partition] = failed
            _LOG.error(
                "%s cannot be cleaned and is skipped for %.0f s: %s",
                candidate.log.name,
                wait_s,
                why,
                exc_info=error,
            )

    def _take_dirtiest(self) -> tuple[CompactedPartition, CleanableRange] | None:
        """Choose a partition and take it for cleaning."""
        found = []
        for candidate in self._find_partitions():
            if self._may_be_cleaned(candidate.partition) and candidate.log.config.is_compacted:
                try:
                    found.append((candidate, self._range_of(candidate), candidate.log.config))
                except MillraceError as error:
                    self._give_up(candidate, error)
        chosen = dirtiest(found)
        with self._workers.changed:
            self._dirtiest_ratio = max((dirty.ratio for _, dirty, _ in found), default=0.0)
        if chosen is None or not self._workers.take(chosen[0].partition):  # another thread may have taken it meanwhile
            return None
        return chosen

    def _may_be_cleaned(self, partition: PartitionKey) -> bool:
        with self._workers.changed:
            failed = self._uncleanable.get(partition)
            is_due = failed is None or self._clock.monotonic() >= failed.retry_at_s
            return is_due and self._workers.is_free(partition)

    def _range_of(self, candidate: CompactedPartition) -> CleanableRange:
        log = candidate.log
        found = cleanable_range(
            PartitionView(log, self._files).segments,
            config=log.config,
            checkpoint=self._checkpoints.get(candidate.directory, candidate.partition),
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            last_stable_offset=log.last_stable_offset,
            now_ms=self._clock.now_ms(),
        )
        if found.had_wrong_checkpoint:
            _LOG.warning(
                "%s: the cleaner checkpoint is outside the log, so the log is cleaned from its start", log.name
            )
            self._checkpoints.put(candidate.directory, candidate.partition, found.first_dirty_offset)
        return found

    def _clean(self, candidate: CompactedPartition, dirty: CleanableRange) -> CleaningStatistics | None:
        def use_io(size_bytes: int) -> None:
            self._throttle.use(size_bytes)
            if self._workers.must_end(candidate.partition):
                raise CleaningAbortedError(f"the cleaning of {candidate.log.name} was cancelled")

        candidate.log.flush()  # the copies will be synced, so the originals must be
        self._before_cleaning(candidate)
        cleaner = Cleaner(limits=self._settings.limits, files=self._files, use_io=use_io)
        view = PartitionView(candidate.log, self._files)
        done = cleaner.clean(view, dirty, candidate.keys, self._clock.now_ms())
        if done is not None:
            self._checkpoints.put(candidate.directory, candidate.partition, done.end_offset)
            with self._workers.changed:
                self._uncleanable.pop(candidate.partition, None)
            _LOG.info("%s", done)
            self._count(done)
        return done

    def _count(self, done: CleaningStatistics) -> None:
        with self._workers.changed:
            self._latest.append(done)
            self._cleanings += 1
            self._bytes_read += done.bytes_read
            self._bytes_written += done.bytes_written
            self._seconds += done.seconds
