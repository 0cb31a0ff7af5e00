"""The appends of a follower to a partition's log (Kafka's ``UnifiedLog.appendAsFollower``).

Invariant: An appended batch is byte for byte the leader's batch, with its offset, epoch and times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from millrace.errors import CorruptBatchError
from millrace.records import BatchHeader
from millrace_broker.log.aborted_transactions import index_entry
from millrace_broker.log.leader_epoch_cache import LeaderEpochFileCache
from millrace_broker.log.local_log import LocalLog
from millrace_broker.log.producer_state_manager import ProducerStateManager
from millrace_broker.log.producer_state_rebuild import replayed_end
from millrace_broker.log.segment_appender import RELATIVE_OFFSET_MAX, SegmentAppender
from millrace_broker.log.validation import ReplicatedBatches

_Batches = Sequence[tuple[int, BatchHeader]]
"""The position and header of each batch."""


class FollowerAppender:
    """The appends of replicated batches to one log."""

    def __init__(self, local: LocalLog, epoch_cache: LeaderEpochFileCache, producers: ProducerStateManager) -> None:
        self._local: Final = local
        self._offsets: Final = local.offsets
        self._epoch_cache: Final = epoch_cache
        self._producers: Final = producers

    def append(self, replicated: ReplicatedBatches) -> int:
        """Append a leader's batches as ``PartitionLog.append_replicated`` does; returns the new log end offset."""
        local, batches = self._local, replicated.headers
        with local.lock:
            local.check_online()
            if batches and batches[0][1].base_offset < self._offsets.end:
                raise CorruptBatchError(
                    f"{local.name} ends at offset {self._offsets.end}, but the leader sent offset "
                    f"{batches[0][1].base_offset}"
                )
            for run in _runs(batches, local.config.segment_bytes):
                self._append_run(replicated.data, run)
            return self._offsets.end

    def _append_run(self, view: memoryview, run: _Batches) -> None:
        """Append batches that fit into one segment. A control batch is alone."""
        local, producers = self._local, self._producers
        headers = [header for _, header in run]
        start, size_bytes = run[0][0], sum(header.size_bytes for header in headers)
        records, now_ms = view[start : start + size_bytes], local.clock.now_ms()
        ended = replayed_end(producers.states, headers[0], bytes(records)) if headers[0].is_control else None
        appender = self._appender(headers, size_bytes, now_ms)
        if ended is None:
            local.write(appender, [records], headers, size_bytes)
            producers.replay(headers, now_ms)
            return
        entry, completed = ended
        is_aborted = completed is not None and completed.is_aborted
        aborted = [index_entry(completed, producers.states)] if completed is not None and is_aborted else []
        local.write(appender, [records], headers, size_bytes, aborted)
        producers.complete(completed, self._offsets.high_watermark)
        producers.update(entry, now_ms)

    def _appender(self, headers: Sequence[BatchHeader], size_bytes: int, now_ms: int) -> SegmentAppender:
        """Return an appender for these batches; write their new epochs first."""
        epochs = self._epoch_cache.epochs
        latest = -1 if epochs.latest is None else epochs.latest
        begun = []
        for header in headers:
            if header.partition_leader_epoch > latest:
                latest = header.partition_leader_epoch
                begun.append((latest, header.base_offset))
        if begun or self._epoch_cache.has_unwritten:
            self._epoch_cache.assign(*begun)
        return self._local.appender_for(headers, size_bytes, now_ms, self._producers.states)


def _runs(batches: Iterable[tuple[int, BatchHeader]], size_bytes_max: int) -> Iterator[_Batches]:
    """Cut batches into runs that fit into a segment, with at least one batch each; control batches are alone."""
    run: list[tuple[int, BatchHeader]] = []
    size_bytes = 0
    for position, header in batches:
        is_full = size_bytes + header.size_bytes > size_bytes_max
        if run and (is_full or header.is_control or header.last_offset - run[0][1].base_offset > RELATIVE_OFFSET_MAX):
            yield run
            run, size_bytes = [], 0
        run.append((position, header))
        size_bytes += header.size_bytes
        if header.is_control:
            yield run
            run, size_bytes = [], 0
    if run:
        yield run
