"""Tests of log cleaning against Kafka's cleaner.

Records, batches, segments, headers and checkpoints are equal. Cases come from the directory in ``ORACLES`` (by default
those beside this suite). Logs of magic 2 are cleaned as a broker's partitions, and opened again after each round. A
broker does not serve logs of magic 0 and 1, so these are cleaned from their bare directories.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from millrace.config.topic import TopicConfig
from millrace.records import BatchEntry, MessageEntry, read_entries
from millrace.segments.names import LOG, segment_file_name
from millrace.segments.transaction_index import AbortedTransaction
from millrace_broker.log import OsFiles, PartitionLog
from millrace_broker.log.cleaning.batch_filter import LastRecord
from millrace_broker.log.cleaning.batches import TopicKeys
from millrace_broker.log.cleaning.cleaner import Cleaner, CleanerLimits
from millrace_broker.log.cleaning.cleaner_manager import CleanableRange, cleanable_range
from millrace_broker.log.cleaning.partition_view import PartitionView
from millrace_broker.log.cleaning.statistics import CleaningStatistics
from millrace_broker.log.segment_replacement import CleanedSegment, promote, take_place
from millrace_broker.runtime.clock import SystemClock

ORACLES = Path(os.environ.get("ORACLES") or Path(__file__).parents[1] / "oracles") / "compaction"
LOAD_FACTOR = 0.9
CHUNK_BYTES = 64 * 1024
Expectation = dict[str, Any]


def cases() -> Iterator[Any]:
    for path in sorted(ORACLES.glob("*/expect.json")):
        expect = json.loads(path.read_text(encoding="utf-8"))
        yield pytest.param(path.parent, expect, id=f"compaction/{path.parent.name}")


def opaque(schema_id: int) -> pa.Schema:
    raise AssertionError(f"no batch has schema {schema_id}")


KEYS = TopicKeys(schema_of=opaque, key_columns=(), encode=lambda batch, columns: batch.column(columns[0]))


class OracleView(PartitionView):
    """A partition view with the producers that the case names.

    The case also names the end of the last transaction.
    """

    __slots__ = ("active_producers",)

    def last_records(self) -> Mapping[int, LastRecord]:
        return self.active_producers

    active_producers: Mapping[int, LastRecord]


@dataclass
class BareSegment:
    """A segment of a directory without indexes.

    These cases do not use indexes.
    """

    path: Path

    @property
    def base_offset(self) -> int:
        return int(self.path.stem)

    @property
    def size_bytes(self) -> int:
        return self.path.stat().st_size

    def read(self, position: int, size_bytes: int) -> bytes:
        return self.path.read_bytes()[position : position + size_bytes]

    def position_of(self, offset: int) -> int:
        return 0

    def index_bytes(self) -> tuple[int, int]:
        return 0, 0

    def modified_ms(self) -> int:
        return self.path.stat().st_mtime_ns // 1_000_000

    def largest_time_ms(self) -> int:
        times = [entry.max_timestamp_ms for entry in read_entries(self.path.read_bytes())]
        return max(times, default=-1) if max(times, default=-1) >= 0 else self.modified_ms()

    def first_time_ms(self) -> int:
        return next((entry.max_timestamp_ms for entry in read_entries(self.path.read_bytes())), -1)


@dataclass
class BareLog:
    """A log of old messages in a directory."""

    directory: Path
    config: TopicConfig
    name: str = "topic-0"

    @property
    def segments(self) -> Sequence[BareSegment]:
        return [BareSegment(path) for path in sorted(self.directory.glob("*.log"))]

    def last_records(self) -> Mapping[int, LastRecord]:
        return {}

    def aborted_transactions(self, start_offset: int, end_offset: int) -> Sequence[AbortedTransaction]:
        return []

    def replace(self, replaced: Sequence[BareSegment], cleaned: CleanedSegment) -> None:
        promote(OsFiles(), self.directory, cleaned)
        bases = [segment.base_offset for segment in replaced]
        for path in take_place(OsFiles(), self.directory, cleaned, bases):
            path.unlink()


class Case:
    """The log of one case through its rounds."""

    def __init__(self, directory: Path, expect: Expectation) -> None:
        self.directory = directory
        self.expect = expect
        self.config = TopicConfig.load(expect["config"] | {"file.delete.delay.ms": 0})
        self.is_old = any(path.read_bytes()[16:17] in (b"\x00", b"\x01") for path in directory.glob("*.log"))
        self.end_offset = expect["logEndOffset"]
        self.last_stable_offset = expect["lastStableOffset"]
        self.active_producers = expect["activeProducers"]
        self.set_times(expect["segmentLastModified"])

    def set_times(self, times: dict[str, int | None]) -> None:
        for base_offset, time_ms in times.items():
            if time_ms is not None:
                OsFiles().set_modified_ms(self.directory / segment_file_name(int(base_offset), LOG), time_ms)

    def clean(self, limits: CleanerLimits, checkpoint: int | None, now_ms: int) -> Outcome:
        partition = None
        log: Any
        if self.is_old:
            log = BareLog(self.directory, self.config)
        else:
            partition = self.open()
            log = OracleView(partition, OsFiles())
            object.__setattr__(log, "active_producers", last_records(self.active_producers))
        dirty = cleanable_range(
            log.segments,
            config=self.config,
            checkpoint=checkpoint,
            log_start_offset=self.expect["logStartOffset"],
            log_end_offset=self.end_offset,
            last_stable_offset=self.last_stable_offset,
            now_ms=now_ms,
        )
        done = Cleaner(limits=limits, files=OsFiles(), use_io=lambda size: None).clean(log, dirty, KEYS, now_ms)
        if partition is not None:
            partition.tick(producer_expiration_ms=2**62)
            partition.close()
        return Outcome(dirty, done)

    def open(self) -> PartitionLog:
        return PartitionLog(
            topic="topic",
            topic_id=UUID(int=1),
            partition=0,
            directory=self.directory,
            config=self.config,
            files=OsFiles(),
            clock=SystemClock(),
            was_clean=True,
            log_start_offset=self.expect["logStartOffset"],
        )


@dataclass
class Outcome:
    dirty: CleanableRange
    done: CleaningStatistics | None


def last_records(producers: list[Expectation]) -> dict[int, LastRecord]:
    return {
        each["producerId"]: LastRecord(
            each["lastDataOffset"] if (each["lastDataOffset"] or -1) >= 0 else None, each["producerEpoch"]
        )
        for each in producers
    }


@pytest.mark.parametrize(("path", "expect"), list(cases()))
def test_cleans_as_kafka_does(path: Path, expect: Expectation, tmp_path: Path) -> None:
    with tarfile.open(path / "logs.tar.gz") as archive:
        archive.extractall(tmp_path / "kafka", filter="data")
    case = Case(copied(tmp_path / "kafka" / "input" / "topic-0", tmp_path / "topic-0"), expect)
    limits = CleanerLimits(map_slots=expect["offsetMapSlots"], map_load_factor=LOAD_FACTOR, chunk_bytes=CHUNK_BYTES)
    for wanted in expect["rounds"]:
        number = wanted["round"]
        if wanted.get("appendedBefore"):
            shutil.rmtree(case.directory)
            copied(tmp_path / "kafka" / f"round{number}-appended" / "topic-0", case.directory)
            case.last_stable_offset = wanted["lastStableOffset"]
            case.end_offset = wanted.get("logEndOffset", wanted["lastStableOffset"])
            case.active_producers = wanted["activeProducers"]
        outcome = case.clean(limits, wanted["lastCleanCheckpoint"], wanted["now"])
        check_choice(outcome, wanted)
        check_log(case.directory, tmp_path / "kafka" / f"round{number}" / "topic-0", wanted)
        if any(batch["compression"] != "none" for segment in wanted["segments"] for batch in segment["batches"]):
            # Compressors differ in a few bytes, and the sizes decide the next steps.
            shutil.rmtree(case.directory)
            copied(tmp_path / "kafka" / f"round{number}" / "topic-0", case.directory)
        case.set_times(wanted["segmentLastModifiedAfter"])


def copied(source: Path, target: Path) -> Path:
    target.mkdir()
    for path in source.iterdir():
        shutil.copyfile(path, target / path.name)
    return target


def check_choice(outcome: Outcome, wanted: Expectation) -> None:
    dirty, done = outcome.dirty, outcome.done
    assert dirty.first_dirty_offset == wanted["firstDirtyOffset"]
    assert dirty.first_unstable_offset == wanted["firstUncleanableDirtyOffset"]
    assert dirty.first_uncleanable_offset == wanted["firstUncleanableOffset"]
    assert (dirty.clean_bytes, dirty.cleanable_bytes) == (wanted["cleanBytes"], wanted["cleanableBytes"])
    assert dirty.ratio == pytest.approx(wanted["cleanableRatio"])
    if done is None:  # where Kafka's settings allow no cleaning at all, its cleaning ends at offset 0
        assert wanted["endOffset"] == wanted["messagesRead"] == 0
        return
    assert done.end_offset == wanted["endOffset"]
    assert (done.records_read, done.records_written) == (wanted["messagesRead"], wanted["messagesWritten"])
    assert done.records_without_key == wanted["invalidMessages"]


def check_log(directory: Path, kafkas: Path, wanted: Expectation) -> None:
    ours, theirs = (sorted(path.name for path in each.glob("*.*")) for each in (directory, kafkas))
    kinds = (".log", ".txnindex")
    assert [name for name in ours if name.endswith(kinds)] == [name for name in theirs if name.endswith(kinds)]
    survivors: list[int] = []
    for segment in wanted["segments"]:
        name = segment_file_name(segment["baseOffset"], LOG)
        mine, kafkas_own = entries(directory / name), entries(kafkas / name)
        assert [seen(entry) for entry in mine] == [seen(entry) for entry in kafkas_own], name
        for entry, kafkas_entry, batch in zip(mine, kafkas_own, segment["batches"], strict=True):
            if batch["compression"] == "none":
                assert raw(directory / name, entry) == raw(kafkas / name, kafkas_entry)
        survivors += [record.offset for entry in mine for record in entry.records()]
    assert survivors == wanted["survivors"]
    for path in kafkas.glob("*.txnindex"):
        assert (directory / path.name).read_bytes() == path.read_bytes()


def entries(path: Path) -> list[BatchEntry | MessageEntry]:
    return list(read_entries(path.read_bytes()))


def raw(path: Path, entry: BatchEntry | MessageEntry) -> bytes:
    return path.read_bytes()[entry.position : entry.position + entry.size_bytes]


def seen(entry: BatchEntry | MessageEntry) -> list[Any]:
    """Return all fields of a batch that do not depend on the compressor, which excludes positions, length and
    checksum.
    """
    entry.check()
    fields: dict[str, int] = {}
    if isinstance(entry, BatchEntry):
        fields = {name: value for name, value in entry.fields.items() if name not in ("crc", "batch_length")}
    facts = [entry.magic, entry.compression, entry.timestamp_type, entry.max_timestamp_ms, entry.last_offset]
    return [facts, fields, list(entry.records())]
