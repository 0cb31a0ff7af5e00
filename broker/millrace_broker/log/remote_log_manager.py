"""The threads of tiered storage, Kafka's ``RemoteLogManager``: copies and remote retention.

Invariants:

- At most one thread works on a partition, and none while it is ``paused``.
- Only the leader's broker copies and expires. A follower lists the store, and may delete its own segments as far as
  copies exist. A new leader lists the store first.
- Only segments that cannot change are copied. They are sealed, below the last stable offset, and synced, so that a
  power failure never makes the log end before its copies.
- Segments are copied in the order of their offsets. A thread copies one segment of a partition and then takes the
  partition that has waited longest. So a large backlog does not block other partitions. A segment that cannot be copied
  delays the segments after it.
- A failure of the store loses nothing. The partition is retried after a pause that doubles each time, and local
  segments wait for their copies.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from uuid import UUID, uuid4

from millrace.errors import CorruptBatchError, MillraceError
from millrace_broker.log.checkpoints import PartitionKey
from millrace_broker.log.files import Files
from millrace_broker.log.partition_log import PartitionLog
from millrace_broker.log.throttle import Throttle
from millrace_broker.log.tiered.cache import RemoteCache
from millrace_broker.log.tiered.copying import SegmentCopier, SourceSegment
from millrace_broker.log.tiered.deletions import RemoteDeletions
from millrace_broker.log.tiered.expiry import count_expired
from millrace_broker.log.tiered.names import folder_name
from millrace_broker.log.tiered.remote_log import RemoteLog, RemoteLogStatistics
from millrace_broker.log.tiered.settings import TieringSettings
from millrace_broker.log.tiered.store import RemoteStore
from millrace_broker.log.workers import Workers
from millrace_broker.runtime import Clock

_LOG: Final = logging.getLogger(__name__)


class TieringInterruptedError(MillraceError):
    """An interrupted copy, because the partition is deleted or the broker stops. Nothing is damaged."""


@dataclass(frozen=True, slots=True)
class TieringStatistics:
    """The work of tiered storage in numbers.

    ``in_progress`` has the partitions in work. ``failures`` counts the failed attempts since the start. ``deletions``
    is the number of folders that wait for their removal.
    """

    partitions: dict[PartitionKey, RemoteLogStatistics]
    in_progress: tuple[PartitionKey, ...]
    failures: int
    deletions: int
    cached_bytes: int


class RemoteLogManager:
    """The threads that copy and expire segments of attached partitions (``attach``).

    ``start`` and ``stop`` control the threads. ``write_start`` writes a log's start offset durably, before earlier
    segments are deleted from the store. So a remote segment that is missing after that offset was lost, not expired.
    """

    def __init__(
        self,
        settings: TieringSettings,
        store: RemoteStore,
        deletions: RemoteDeletions,
        files: Files,
        clock: Clock,
        *,
        write_start: Callable[[PartitionLog], None],
        randomness: random.Random | None = None,
        copy_id: Callable[[], UUID] = uuid4,
    ) -> None:
        self._settings: Final = settings
        self._store: Final = store
        self._deletions: Final = deletions
        self._files: Final = files
        self._clock: Final = clock
        self._write_start: Final = write_start
        self._random: Final = randomness or random.Random()
        self._copy_id: Final = copy_id
        self._cache: Final = RemoteCache(settings.cache_bytes_max)
        self._workers: Final[Workers[PartitionKey | None]] = Workers("tiering", settings.threads)
        self._logs: dict[PartitionKey, PartitionLog] = {}
        self._due: dict[PartitionKey | None, float] = {None: clock.monotonic()}
        """The time of each partition's next work; None is the key of the folders to remove."""
        self._attempts: dict[PartitionKey | None, int] = {}
        self._failures = 0
        self._throttle = self._throttle_of(settings.bytes_per_second_max)

    def _throttle_of(self, bytes_per_second: float) -> Throttle:
        return Throttle(bytes_per_second, self._clock.monotonic, self._workers.wait)

    # --- start and stop ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the copier threads."""
        self._workers.start(self._run)

    def stop(self) -> None:
        """Interrupt the copies and wait for the threads to end. Stopping again does nothing."""
        self._workers.stop()

    def reconfigure(self, settings: TieringSettings) -> None:
        """Apply another number of threads, another rate and another size of the cache.

        With another number of threads, copies in progress start again. After ``stop`` only the numbers change.
        """
        with self._workers.changed:
            if settings.bytes_per_second_max != self._throttle.bytes_per_second:
                self._throttle = self._throttle_of(settings.bytes_per_second_max)
                self._workers.changed.notify_all()  # a copy may have to wait very long at the earlier rate
        self._cache.resize(settings.cache_bytes_max)
        if settings.threads == self._workers.count or self._workers.is_stopping:
            return
        self._workers.stop()
        self._workers.resize(settings.threads)
        self.wake()
        self._workers.start(self._run)

    def _run(self) -> None:
        while not self._workers.is_stopping:
            if not self.work_once():
                with self._workers.changed:
                    self._workers.wait(self._idle_seconds())

    def _idle_seconds(self) -> float:
        """Return the seconds until the next partition is due, at most one second."""
        now, busy = self._clock.monotonic(), self._workers.in_progress
        free = [when - now for key, when in self._due.items() if key not in busy]
        return min(max(0.01, min(free, default=1.0)), 1.0)

    def wake(self) -> None:
        """Make all partitions due now."""
        with self._workers.changed:
            now = self._clock.monotonic()
            self._due = dict.fromkeys(self._due, now)
            self._workers.changed.notify_all()

    # --- partitions ----------------------------------------------------------------------------------------

    def follow(self, logs: Sequence[PartitionLog]) -> None:
        """Attach or detach logs by their topics' present configuration. Call it without holding their locks.

        Raises ``StorageError`` when a deletion that follows from it cannot be written.
        """
        for log in logs:
            if log.config.remote_storage_enable and log.remote is None:
                self.attach(log)
            elif not log.config.remote_storage_enable and log.remote is not None:
                with self.paused((log.topic, log.partition)):
                    log.start_at(log.first_base_offset)
                    self._write_start(log)
                    if log.is_led_here:
                        self.delete(log)
                    else:
                        self.detach(log)
                    log.remote = None

    def attach(self, log: PartitionLog) -> None:
        """Copy a partition's segments from now on, and read deleted local segments from the store."""
        folder = folder_name(log.topic, log.partition, log.topic_id)
        key = (log.topic, log.partition)
        log.remote = RemoteLog(
            log.name, folder, self._store, self._cache, index_interval_bytes=log.config.index_interval_bytes
        )
        with self._workers.changed:
            self._logs[key] = log
            self._due[key] = self._clock.monotonic()
            self._workers.changed.notify_all()

    def detach(self, log: PartitionLog) -> None:
        """Stop work on a partition; present work is interrupted, but not waited for."""
        key = (log.topic, log.partition)
        with self._workers.changed:
            self._workers.break_off(key)
            for known in (self._logs, self._due, self._attempts):
                known.pop(key, None)
        if log.remote is not None:
            log.remote.release()

    def delete(self, log: PartitionLog) -> None:
        """Remove a partition from the store, also if the broker stops before that is done.

        Call it while the partition is ``paused``. Raises ``StorageError`` when this cannot be written; nothing has
        changed then.
        """
        self._deletions.add(folder_name(log.topic, log.partition, log.topic_id))
        self.detach(log)
        with self._workers.changed:
            self._due[None] = self._clock.monotonic()
            self._workers.changed.notify_all()

    def paused(self, partition: PartitionKey) -> AbstractContextManager[None]:
        """Keep threads from a partition; present work on it is interrupted first."""
        return self._workers.paused(partition)

    def statistics(self) -> TieringStatistics:
        """Return the content of the store and the present work."""
        with self._workers.changed:
            return TieringStatistics(
                partitions={key: log.remote.statistics() for key, log in self._logs.items() if log.remote is not None},
                in_progress=tuple(key for key in self._workers.in_progress if key is not None),
                failures=self._failures,
                deletions=len(self._deletions),
                cached_bytes=self._cache.held_bytes,
            )

    # --- work ----------------------------------------------------------------------------------------------

    def work_once(self) -> bool:
        """Do the work that is due longest; returns False if nothing is due."""
        with self._workers.changed:
            now = self._clock.monotonic()
            free = filter(self._workers.is_free, self._due)
            key = min(free, key=lambda each: self._due[each], default=None)
            if self._due[key] > now or not self._workers.take(key):
                return False
            log = None if key is None else self._logs[key]
        pause_ms: float = self._settings.interval_ms
        try:
            if self._work(key, log):
                pause_ms = 0
            self._attempts.pop(key, None)
        except TieringInterruptedError as error:
            _LOG.info("%s", error.message)
        except Exception as error:  # noqa: BLE001 - the thread must live and retry; it is logged
            pause_ms = self._note_failure(key, log, error)
        finally:
            with self._workers.changed:
                if key in self._due:
                    self._due[key] = self._clock.monotonic() + pause_ms / 1000
                self._workers.done(key)
        return True

    def _note_failure(self, key: PartitionKey | None, log: PartitionLog | None, error: Exception) -> float:
        """Log a failure; returns the pause in ms."""
        attempt = self._attempts[key] = self._attempts.get(key, 0) + 1
        settings = self._settings
        pause_ms = min(settings.backoff_ms * 2.0 ** min(attempt - 1, 30), settings.backoff_max_ms)
        pause_ms *= 1 + self._random.uniform(-settings.jitter, settings.jitter)
        what = "removing deleted partitions" if log is None else log.name
        why = error.message if isinstance(error, MillraceError) else repr(error)
        trace = None if isinstance(error, MillraceError) else error
        _LOG.error("tiering, %s: %s; next attempt in %.1f s", what, why, pause_ms / 1000, exc_info=trace)
        self._failures += 1
        if log is not None and log.remote is not None:
            log.remote.problem = why
        return pause_ms

    def _work(self, key: PartitionKey | None, log: PartitionLog | None) -> bool:
        """Do the work of a partition, with at most one copy; returns whether more segments wait for a copy."""
        if log is None or key is None:
            self._deletions.carry_out(self._store)
            return False
        remote = log.remote
        assert remote is not None
        if not log.is_led_here:
            remote.look()
            remote.problem = None
            return False
        remote.remove_dropped()
        if remote.must_list:
            if remote.folder in self._deletions:
                self._deletions.carry_out(self._store)
            remote.load(log.log_end_offset)
        self._expire(log, remote)
        waiting = sources(log, remote.end_offset) if log.config.is_copied else []
        for source in waiting[:1]:
            self._copy(key, log, remote, source)
        remote.problem = None
        return len(waiting) > 1

    def _expire(self, log: PartitionLog, remote: RemoteLog) -> None:
        count = count_expired(
            remote.segments,
            log.facts(),
            now_ms=self._clock.now_ms(),
            retention_ms=log.config.retention_ms,
            retention_bytes=log.config.retention_bytes,
            log_start_offset=log.log_start_offset,
        )
        if count:
            _LOG.info("%s: %d segments are deleted from the remote store (retention)", log.name, count)
            log.start_at(remote.segments[count - 1].end_offset)
            self._write_start(log)
            remote.drop(count)
            remote.remove_dropped()

    def _copy(self, key: PartitionKey, log: PartitionLog, remote: RemoteLog, source: SourceSegment) -> None:
        def use_io(size_bytes: int) -> None:
            with self._workers.changed:  # another rate ends the wait
                self._throttle.use(size_bytes)
            if self._workers.must_end(key) or not log.is_led_here:
                raise TieringInterruptedError(f"the copying of {remote.name} to the remote store was cancelled")

        copier = SegmentCopier(self._store, self._files, use_io)
        try:
            manifest = copier.copy(source, remote.folder, self._copy_id(), self._clock.now_ms())
        except BaseException:
            remote.must_list = True  # only the store knows the leftovers, and whether the manifest was published
            raise
        remote.add(manifest)
        _LOG.info(
            "%s: offsets %d..%d are in the remote store", remote.name, source.segment.base_offset, remote.end_offset
        )


def sources(log: PartitionLog, copied_end_offset: int) -> Sequence[SourceSegment]:
    """Return the segments of a log that may be copied and are not copied yet, in order.

    Raises ``CorruptBatchError`` when the copies end before the log on the disk begins, because records are lost then.
    """
    stable_offset = min(log.last_stable_offset, log.recovery_point)
    segments, epochs = log.segments, log.epochs.entries
    start_offset = log.log_start_offset
    if start_offset < segments[0].base_offset and copied_end_offset < segments[0].base_offset:
        raise CorruptBatchError(
            f"offsets {max(copied_end_offset, start_offset)}..{segments[0].base_offset - 1} of {log.name} are neither "
            "on the disk nor in the remote store: restore one of them, or delete records up to there"
        )
    found = []
    for segment, following in pairwise(segments):
        end_offset = following.base_offset
        if end_offset > stable_offset:
            break
        if end_offset > max(copied_end_offset, start_offset):
            found.append(
                SourceSegment(
                    topic=log.topic,
                    topic_id=log.topic_id,
                    partition=log.partition,
                    segment=segment,
                    end_offset=end_offset,
                    largest_ms=segment.largest_timestamp().timestamp_ms,
                    leader_epochs=tuple((epoch, start) for epoch, start in epochs if start < end_offset),
                )
            )
    return found
