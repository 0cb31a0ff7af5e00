"""A broker's logs on a simulated disk, and their promises.

A seed drives them. ``World.run`` works on two topics, one of them compacted. It appends, rolls, flushes, applies
retention, compacts, truncates, writes checkpoints, restarts cleanly, and deletes and creates topics. Retention and
truncation come on a full disk now and then. Before each change of the disk it may draw what a kill or a power failure
would leave there, and pass that to ``check``. Now and then it continues from there.

These rules are checked on such a disk:

* Every record on it was appended at its offset (*none is invented*), and offsets ascend.
* Every record that was synced before a power failure, or appended before a kill, is there (*none is lost*). The
  exceptions are records that retention or compaction had already removed.
* A deleted key does not come back. Epochs, producers and transactions are those of the batches, and lookups by time
  agree with them.
* No temporary file is left, and the log can be appended to, closed and opened again.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final
from uuid import UUID

import pyarrow as pa

from millrace.config.topic import TopicConfig
from millrace.errors import DiskFullError, UnknownSchemaError
from millrace.records import (
    ControlType,
    EndTransactionMarker,
    Record,
    build_rows_batch,
)
from millrace.schemas import encode_keys
from millrace_broker.log import LogManager, PartitionLog
from millrace_broker.log.cleaning.batches import TopicKeys
from millrace_broker.log.cleaning.cleaner import Cleaner, CleanerLimits
from millrace_broker.log.cleaning.cleaner_manager import cleanable_range
from millrace_broker.log.cleaning.partition_view import PartitionView

from .contents import TRANSACTIONAL, batches, last_sequence, latest_epoch, read_all, verify_transactions
from .disk import SimulatedDisk
from .promises import Entry, Partition

DATA: Final = Path("/data")
NOW_MS: Final = 1_700_000_000_000
PRODUCER: Final = 7
OPTIONS: Final = {
    "segment.bytes": 700,
    "index.interval.bytes": 150,
    "segment.index.bytes": 96,
    "file.delete.delay.ms": 2000,
    "retention.ms": -1,
    "delete.retention.ms": 0,
}
POLICIES: Final = {"events": "delete", "latest": "compact"}


class Crash(BaseException):
    """A signal that the world continues from another disk. Only ``World`` may catch it."""

    def __init__(self, disk: SimulatedDisk, *, was_kill: bool) -> None:
        super().__init__("crash")
        self.disk = disk
        self.was_kill = was_kill


class WorldClock:
    """A clock that only tests advance."""

    def __init__(self) -> None:
        self.ms = NOW_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


def _no_schema(schema_id: int) -> pa.Schema:
    raise UnknownSchemaError(f"schema {schema_id}")


class World:
    """The world of this module.

    ``look`` is the probability that a change of the disk is checked. ``go_on`` is the probability that the run
    continues from that crash.
    """

    def __init__(self, seed: int, *, look: float = 0.1, go_on: float = 0.05) -> None:
        self.choose: Final = random.Random(seed)
        self.clock: Final = WorldClock()
        self.look = look
        self.go_on = go_on
        self.images = 0
        self.doing = "open"
        self.recovers_from_power_loss = False
        self.made = 0
        self.partitions: dict[str, Partition] = {}
        disk = SimulatedDisk(seed=seed)
        try:
            self._boot(disk)
        except Crash as crash:
            self._go_on_from(crash)

    # --- life ------------------------------------------------------------------------------------------------

    def _boot(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        disk.now_ms = self.clock.now_ms
        disk.on_step = self._step
        self.manager = self._open(disk)

    def _open(self, disk: SimulatedDisk) -> LogManager:
        return LogManager.open(
            [DATA],
            broker_id=1,
            cluster_id="rivers",
            defaults=self._config("events"),
            configs={topic: self._config(topic) for topic in POLICIES},
            files=disk,
            clock=self.clock,
            checkpoint_interval_ms=5000,
        )

    def _config(self, topic: str, **options: object) -> TopicConfig:
        return TopicConfig.load(OPTIONS | {"cleanup.policy": POLICIES[topic]} | options)

    def _step(self) -> None:
        if self.choose.random() >= self.look:
            return
        was_kill = self.choose.random() < 0.25
        self.images += 1
        image = self.disk.after_kill() if was_kill else self.disk.after_power_loss(self.choose)
        if self.choose.random() < self.go_on:
            raise Crash(image, was_kill=was_kill)
        self.check(image, was_kill=was_kill)

    def run(self, steps: int) -> None:
        """Do so many random actions, with crashes between them."""
        for _ in range(steps):
            try:
                self._do_something()
            except Crash as crash:
                self._go_on_from(crash)

    def _go_on_from(self, crash: Crash) -> None:
        for partition in self.partitions.values():
            if (log := self._log_of(partition)) is not None:
                self._note(log, partition)
        while True:
            self.recovers_from_power_loss |= not crash.was_kill
            try:
                self.doing = f"recovery after {self.doing}"[:200]
                self._boot(crash.disk)
            except Crash as again:  # in the middle of recovery
                crash = again
                continue
            self.disk.on_step = lambda: None
            for partition in list(self.partitions.values()):
                self._take_over(partition)
            self.recovers_from_power_loss = False
            self.disk.on_step = self._step
            return

    def _take_over(self, partition: Partition) -> None:
        log = self.manager.get(partition.topic, 0)
        if log is None:
            assert not partition.is_settled, f"{partition.topic} is gone"
            del self.partitions[partition.topic]
            return
        if log.topic_id != partition.topic_id:
            assert not partition.is_settled
            raise AssertionError(f"{partition.topic} came back as another topic")
        self.verify(log, partition, promised=partition.synced if self.recovers_from_power_loss else partition.end)
        partition.is_settled = True
        left = {offset for offset, _ in read_all(log)}
        partition.records = {offset: entry for offset, entry in partition.records.items() if offset in left}
        partition.markers = {offset for offset in partition.markers if offset < log.log_end_offset}
        partition.end = partition.synced = log.log_end_offset
        partition.end_max = 0
        partition.start = log.log_start_offset
        if log.epochs.entries:
            partition.epoch = log.epochs.entries[-1][0]
        partition.sequence = last_sequence(log, PRODUCER) + 1
        partition.transactional_sequence = last_sequence(log, TRANSACTIONAL) + 1

    # --- actions ---------------------------------------------------------------------------------------------

    def _do_something(self) -> None:
        actions: list[tuple[Callable[[], None], int]] = [
            (self._append, 14),
            (self._transact, 5),
            (self._roll, 2),
            (self._flush, 3),
            (self._retain, 2),
            (self._clean, 3),
            (self._tick, 3),
            (self._checkpoint, 2),
            (self._restart, 1),
            (self._create, 4),
            (self._delete, 1),
            (self._truncate, 2),
        ]
        action = self.choose.choices([action for action, _ in actions], [weight for _, weight in actions])[0]
        self.doing = action.__name__
        action()

    def _any(self) -> tuple[PartitionLog, Partition] | None:
        if not self.partitions:
            return None
        partition = self.partitions[self.choose.choice(sorted(self.partitions))]
        log = self.manager.get(partition.topic, 0)
        return None if log is None else (log, partition)

    def _create(self) -> None:
        missing = [topic for topic in POLICIES if topic not in self.partitions]
        if missing:
            topic = self.choose.choice(missing)
            self.made += 1
            partition = Partition(topic, UUID(int=self.made), POLICIES[topic] == "compact")
            self.partitions[topic] = partition
            self.manager.create_log(topic, partition.topic_id, 0, self._config(topic))
            partition.is_settled = True

    def _delete(self) -> None:
        if self.choose.random() < 0.2 and (found := self._any()):
            found[1].is_settled = False
            self.manager.delete_log(found[1].topic, 0)
            del self.partitions[found[1].topic]

    def _append(self) -> None:
        if (found := self._any()) is None:
            return
        log, partition = found
        if self.choose.random() < 0.1:
            partition.epoch += self.choose.randint(1, 2)
        is_idempotent = self.choose.random() < 0.4
        batches, offset = [], partition.end
        for _ in range(1 if is_idempotent else self.choose.randint(1, 3)):
            records = [self._record(partition, offset + n) for n in range(self.choose.randint(1, 4))]
            for n, record in enumerate(records):
                sequence = partition.sequence + n if is_idempotent else -1
                partition.records[offset + n] = Entry(
                    record.key or b"", record.value, record.timestamp_ms, partition.epoch, sequence
                )
            offset += len(records)
            producer = {"producer_id": PRODUCER, "producer_epoch": 0, "base_sequence": partition.sequence}
            batches.append(build_rows_batch(records, **(producer if is_idempotent else {})))
        log.append(b"".join(batches), leader_epoch=partition.epoch)
        if is_idempotent:
            partition.sequence += offset - partition.end
        partition.end = offset
        self._note(log, partition)

    def _transact(self) -> None:
        """Send a batch in a transaction, or end the transaction. The compacted topic has no transactions."""
        if (found := self._any()) is None or found[1].is_compacted:
            return
        log, partition = found
        offset = partition.end
        if self.choose.random() < 0.5:
            type_ = self.choose.choice([ControlType.ABORT, ControlType.COMMIT])
            partition.markers.add(offset)
            partition.records.pop(offset, None)
            marker = EndTransactionMarker(type=type_, coordinator_epoch=0)
            result = log.append_end_marker_unsynced(TRANSACTIONAL, 0, marker, leader_epoch=partition.epoch)
            assert result is not None
            if log.must_sync(result):
                log.flush(result.last_offset + 1)
        else:
            record, sequence = self._record(partition, offset), partition.transactional_sequence
            entry = Entry(record.key or b"", record.value, record.timestamp_ms, partition.epoch, -1)
            partition.records[offset] = entry
            partition.markers.discard(offset)
            batch = build_rows_batch(
                [record], producer_id=TRANSACTIONAL, producer_epoch=0, base_sequence=sequence, is_transactional=True
            )
            log.append(batch, leader_epoch=partition.epoch, in_transaction=True)
            partition.transactional_sequence += 1
        partition.end += 1
        self._note(log, partition)

    def _record(self, partition: Partition, offset: int) -> Record:
        key = b"k%d" % self.choose.randrange(6)
        value = b"%d" % offset + b"." * self.choose.randrange(40)
        is_deletion = partition.is_compacted and self.choose.random() < 0.25
        time_ms = self.clock.ms + self.choose.randint(-100, 100)
        return Record(key=key, value=None if is_deletion else value, timestamp_ms=time_ms)

    def _note(self, log: PartitionLog, partition: Partition) -> None:
        partition.synced = max(partition.synced, log.recovery_point)
        partition.start = max(partition.start, log.log_start_offset)

    def _roll(self) -> None:
        if found := self._any():
            found[0].roll()

    def _flush(self) -> None:
        if found := self._any():
            found[0].flush()
            self._note(*found)

    def _retain(self) -> None:
        if (found := self._any()) and not found[1].is_compacted:
            found[0].config = self._config(found[1].topic, **{"retention.bytes": self.choose.randint(0, 3000)})
            with self._full_disk():
                found[0].apply_retention()
            self._note(*found)

    def _truncate(self) -> None:
        """Truncate as a follower does where its leader's log diverges from its own, usually close to the end."""
        if (found := self._any()) is None:
            return
        log, partition = found
        # A compacted record gave way to records that all replicas have, so these are never truncated.
        least = log.segments[-1].base_offset if partition.is_compacted else log.log_start_offset
        offset = self.choose.randint(max(least, log.log_end_offset - 30), log.log_end_offset)
        if self.choose.random() < 0.5:  # otherwise readers may have read the truncated records
            log.hold_watermark(offset)
        # The log ends with a batch, and compaction may have left a gap after the last one.
        whole = [header.next_offset for _, _, header in batches(log) if header.next_offset <= offset]
        partition.end_max = partition.end
        partition.end = partition.synced = min(partition.synced, max(whole, default=0))
        with self._full_disk():
            failed = self.manager.truncate({(partition.topic, 0): offset})
        assert all(isinstance(error, DiskFullError) for error in failed.values()), failed
        log.release_watermark()
        partition.end, partition.synced = log.log_end_offset, min(partition.synced, log.log_end_offset)
        partition.end_max = 0
        partition.records = {each: entry for each, entry in partition.records.items() if each < partition.end}
        partition.markers = {each for each in partition.markers if each < partition.end}
        partition.sequence = last_sequence(log, PRODUCER) + 1
        partition.transactional_sequence = last_sequence(log, TRANSACTIONAL) + 1
        self.verify(log, partition, promised=partition.end)
        self._note(log, partition)

    @contextlib.contextmanager
    def _full_disk(self) -> Iterator[None]:
        """Let the disk be full now and then, while the log frees space or truncates."""
        if self.choose.random() < 0.3:
            self.disk.fill(DATA)
        try:
            yield
        finally:
            self.disk.mend()

    def _clean(self) -> None:
        if (found := self._any()) and found[1].is_compacted:
            log = found[0]
            log.flush()
            self._note(*found)
            self.manager.checkpoint()
            self.clean(log, self.disk)

    def clean(self, log: PartitionLog, disk: SimulatedDisk) -> None:
        """Compact all sealed segments of a log as a cleaner thread does."""
        view = PartitionView(log, disk)
        dirty = cleanable_range(
            view.segments,
            config=log.config,
            checkpoint=None,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            last_stable_offset=log.last_stable_offset,
            now_ms=self.clock.ms,
        )
        limits = CleanerLimits(map_slots=5000, map_load_factor=0.9, chunk_bytes=500)
        keys = TopicKeys(schema_of=_no_schema, key_columns=(), encode=encode_keys)
        Cleaner(limits=limits, files=disk, use_io=lambda _: None).clean(view, dirty, keys, self.clock.ms)

    def _tick(self) -> None:
        self.clock.ms += self.choose.randint(0, 3000)
        self.manager.tick()
        for topic, partition in self.partitions.items():
            if (log := self.manager.get(topic, 0)) is not None:
                self._note(log, partition)

    def _checkpoint(self) -> None:
        self.manager.checkpoint()

    def _restart(self) -> None:
        self.manager.close()
        for partition in self.partitions.values():
            partition.synced = partition.end
        self.doing = "opening after a clean stop"
        self.manager = self._open(self.disk)

    # --- checking --------------------------------------------------------------------------------------------

    def check(self, disk: SimulatedDisk, *, was_kill: bool) -> None:
        """Check the disk after a crash, as the next process finds it."""
        disk.now_ms = self.clock.now_ms
        manager = self._open(disk)
        assert manager.offline() == {}, manager.offline()
        known = {(log.topic, log.topic_id) for log in manager.logs()}
        for topic, partition in self.partitions.items():
            if (topic, partition.topic_id) not in known:
                assert not partition.is_settled, f"{topic} is gone"
                continue
            log = manager.get(topic, 0)
            assert log is not None
            self.verify(log, partition, promised=self._promised(partition, was_kill=was_kill))
            self.verify_use(log, partition)
        strays = [path.name for path in disk.paths(DATA) if path.suffix in (".swap", ".cleaned", ".tmp", ".deleted")]
        assert strays == []
        if self.choose.random() < 0.2:
            manager.close()
            again = self._open(disk)
            assert [log.log_end_offset for log in again.logs()] == [log.log_end_offset for log in manager.logs()]

    def _log_of(self, partition: Partition) -> PartitionLog | None:
        """Return the log of a promise, or None if it does not belong to this world any more."""
        log = self.manager.get(partition.topic, 0) if hasattr(self, "manager") else None
        return log if log is not None and log.topic_id == partition.topic_id else None

    def _promised(self, partition: Partition, *, was_kill: bool) -> int:
        if was_kill and not self.recovers_from_power_loss:
            return partition.end
        log = self._log_of(partition)
        return max(partition.synced, 0 if log is None else log.recovery_point)

    def _start(self, partition: Partition) -> int:
        log = self._log_of(partition)
        return max(partition.start, 0 if log is None else log.log_start_offset)

    def verify(self, log: PartitionLog, partition: Partition, *, promised: int) -> None:
        """Check a recovered log, which must have every record before ``promised``."""
        found = read_all(log)
        offsets = [offset for offset, _ in found]
        assert offsets == sorted(set(offsets)), f"offsets do not ascend: {offsets}"
        records = dict(found)
        for offset, (key, value, time_ms) in found:
            entry = partition.records.get(offset)
            assert entry is not None, f"offset {offset} was never appended"
            assert (key, value, time_ms) == (entry.key, entry.value, entry.time_ms), f"offset {offset} was changed"
        assert log.log_end_offset >= promised, f"ends at {log.log_end_offset}, promised {promised}"
        assert log.log_end_offset <= max(
            partition.end, partition.end_max, max(partition.records.keys() | partition.markers, default=-1) + 1
        )
        start = self._start(partition)
        assert log.log_start_offset <= max(start, log.first_base_offset)
        if partition.is_compacted:
            self._verify_keys(partition, records, start, promised)
        else:
            lost = [offset for offset in partition.records if start <= offset < promised and offset not in records]
            assert not lost, f"lost {lost} of {start}..{promised - 1}"
        self._verify_memory(log, partition, records)

    def _verify_keys(
        self, partition: Partition, records: dict[int, tuple[bytes, bytes | None, int]], start: int, promised: int
    ) -> None:
        last: dict[bytes, int] = {}
        for offset in sorted(partition.records):
            if start <= offset < promised:
                last[partition.records[offset].key] = offset
        for key, offset in last.items():
            later = [other for other in records if other > offset and records[other][0] == key]
            older = [other for other in records if other < offset and records[other][0] == key]
            is_there = offset in records or bool(later)
            is_deleted = partition.records[offset].value is None and not older
            assert is_there or is_deleted, f"key {key!r}: lost offset {offset}, and has {older} of older ones"

    def _verify_memory(
        self, log: PartitionLog, partition: Partition, records: dict[int, tuple[bytes, bytes | None, int]]
    ) -> None:
        start = self._start(partition)
        # a deleted record may come back, but its epoch may not
        for offset in (offset for offset in records if offset >= start):
            epoch = next((epoch for epoch, start in reversed(log.epochs.entries) if start <= offset), None)
            assert epoch == partition.records[offset].epoch, f"offset {offset}: {log.epochs.entries}"
        if not partition.is_compacted and records:
            times = [time_ms for _, _, time_ms in records.values()]
            wanted = self.choose.choice(times)
            expected = next((offset, t) for offset, (_, _, t) in sorted(records.items()) if t >= wanted)
            found = log.offset_for_time(wanted)
            is_marker = found is not None and found[0] in partition.markers and found[0] < expected[0]
            assert found == expected or is_marker, f"time {wanted}: {found} and not {expected}"
            sequences = [partition.records[offset].sequence for offset in records]
            known = last_sequence(log, PRODUCER)
            headers = [header for _, _, header in batches(log)]
            has_hole = any(after.base_offset > before.next_offset for before, after in pairwise(headers))
            has_hole |= headers[-1].next_offset < log.log_end_offset
            if not has_hole and log.first_base_offset == log.log_start_offset == 0:
                verify_transactions(log)
            assert known == max(sequences) or max(sequences) < 0 or has_hole, f"{sequences}, remembered {known}"

    def verify_use(self, log: PartitionLog, partition: Partition) -> None:
        """Check that a recovered log accepts appends and returns them."""
        end = log.log_end_offset
        record = Record(key=b"new", value=b"after", timestamp_ms=NOW_MS)
        result = log.append(build_rows_batch([record]), leader_epoch=max(partition.epoch, latest_epoch(log)))
        assert result.base_offset == end
        assert (end, (b"new", b"after", NOW_MS)) in read_all(log)
