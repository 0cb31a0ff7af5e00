"""Tests of partition directories that Kafka wrote.

Opening, look-ups and recovery must give the same results as in Kafka.

Cases come from the directory in ``ORACLES`` (by default those beside this suite). Two differences are intended:

- A batch with a damaged offset field ends the log. Kafka refuses to open such a log.
- If a clean directory has lost its snapshots, producers are read from the log again. Kafka forgets them.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millrace.config.topic import TopicConfig
from millrace.errors import MillraceError, OffsetOutOfRangeError
from millrace.records import BatchEntry, MessageEntry, read_entries, read_header, scan_headers
from millrace.segments import OffsetIndex, TimeIndex
from millrace_broker.log import OsFiles, PartitionLog
from millrace_broker.log.leader_epochs import LeaderEpochs
from millrace_broker.log.producer_snapshots import read_snapshot
from millrace_broker.log.producer_states import ProducerEntry
from millrace_broker.runtime.clock import SystemClock

ORACLES = Path(os.environ.get("ORACLES") or Path(__file__).parents[1] / "oracles") / "segments"
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
Expectation = dict[str, Any]


def cases(kind: str) -> Iterator[Any]:
    for path in sorted(ORACLES.glob("*/expect.json")):
        expect = json.loads(path.read_text(encoding="utf-8"))
        if (kind == "damaged" and "filesBefore" in expect) or (kind == "closed" and "lookups" in expect):
            yield pytest.param(path.parent, expect, id=f"segments-{path.parent.name}")


def open_log(
    directory: Path, expect: Expectation, *, was_clean: bool, recovery_point: int | None = None
) -> PartitionLog:
    options = {name: value for name, value in expect["config"].items() if name != "segment.index.bytes"}
    return PartitionLog(
        topic="topic",
        topic_id=UUID(int=1),
        partition=0,
        directory=directory,
        config=TopicConfig.load(options | {"file.delete.delay.ms": 0}),
        files=OsFiles(),
        clock=SystemClock(),
        was_clean=was_clean,
        recovery_point=recovery_point,
        log_start_offset=expect.get("logStartOffset", 0),
    )


def copy_writable(source: Path, target: Path) -> Path:
    target.mkdir()
    for path in source.iterdir():
        shutil.copyfile(path, target / path.name)
    return target


@pytest.mark.parametrize(("case", "expect"), list(cases("closed")))
def test_looks_up_as_kafka_does(case: Path, expect: Expectation, tmp_path: Path) -> None:
    directory = copy_writable(case / "topic-0", tmp_path / "topic-0")
    log = open_log(directory, expect, was_clean=True)
    lookups = expect["lookups"]

    assert (log.log_start_offset, log.log_end_offset) == (expect["logStartOffset"], expect["logEndOffset"])
    assert [list(entry) for entry in log.epochs.entries] == expect["leaderEpochs"]
    assert newest_batches(seen(entry) for entry in log.producers) == newest_batches(expect["producers"])
    check_indexes(directory, expect)
    check_reads(log, rows(lookups, "read1"))
    check_records(log, directory)
    check_times(log, rows(lookups, "offsetForTimestamp"))
    check_index_lookups(directory, lookups)
    check_epoch_ends(expect, rows(lookups, "endOffsetForEpoch"))
    log.close()


def rows(lookups: Expectation, name: str) -> list[list[Any]]:
    (found,) = (value for key, value in lookups.items() if key.split("[")[0] == name)
    listed: list[list[Any]] = found
    return listed


def check_indexes(directory: Path, expect: Expectation) -> None:
    for segment in expect["segments"]:
        offsets, times = indexes(directory, segment["baseOffset"])
        assert [list(entry) for entry in offsets] == segment["offsetIndex"]
        assert [list(entry) for entry in times] == segment["timeIndex"]


def indexes(directory: Path, base_offset: int) -> tuple[OffsetIndex, TimeIndex]:
    stem = directory / f"{base_offset:020d}"
    return (
        OffsetIndex.of_file(stem.with_suffix(".index").read_bytes(), base_offset),
        TimeIndex.of_file(stem.with_suffix(".timeindex").read_bytes(), base_offset),
    )


def check_reads(log: PartitionLog, reads: list[list[Any]]) -> None:
    for offset, *expected in reads:
        if expected == ["OffsetOutOfRangeException"]:
            with pytest.raises(OffsetOutOfRangeError):
                log.read(offset, 1)
            continue
        batches = log.read(offset, 1)
        if expected[0] is None:
            assert batches == b"", offset
        else:
            assert read_header(batches).base_offset == expected[0], offset
            if len(batches) != expected[1]:  # the log was made of messages of magic 0 or 1
                assert expected[1] in sizes_of_messages(log)


def sizes_of_messages(log: PartitionLog) -> set[int]:
    return {
        entry.size_bytes
        for segment in log.segments
        for entry in read_entries(segment.path.read_bytes())
        if isinstance(entry, MessageEntry)
    }


def check_records(log: PartitionLog, directory: Path) -> None:
    """Check that readers get the records in the files, as batches."""
    stored = [record for path in sorted(directory.glob("*.log")) for record in records_of(path.read_bytes())]
    found: list[tuple[Any, ...]] = []
    at = log.log_start_offset
    while at < log.log_end_offset and (data := log.read(at, 1000)):
        found += [record for record in records_of(data) if record[0] >= at]
        at = max(header.next_offset for _, header in scan_headers(data))
    assert found == [record for record in stored if record[0] >= log.log_start_offset]


def records_of(data: bytes) -> list[tuple[Any, ...]]:
    return [
        (record.offset, record.key, record.value, record.timestamp_ms)
        for entry in read_entries(data)
        if not (isinstance(entry, BatchEntry) and entry.header.is_control)
        for record in entry.records()
    ]


def check_times(log: PartitionLog, times: list[list[Any]]) -> None:
    for timestamp, offset, found, _ in times:
        if timestamp in (LATEST, EARLIEST, EARLIEST_LOCAL):
            assert (log.log_end_offset if timestamp == LATEST else log.log_start_offset) == offset
            continue
        answer = log.max_timestamp_offset() if timestamp == MAX_TIMESTAMP else log.offset_for_time(timestamp)
        expected = None if offset is None or offset < 0 else (offset, found)
        assert answer == expected, timestamp


def check_index_lookups(directory: Path, lookups: Expectation) -> None:
    for base_offset, target, *expected in rows(lookups, "offsetIndexLookup"):
        assert list(indexes(directory, base_offset)[0].lookup(target)) == expected
    for base_offset, target, *expected in rows(lookups, "timeIndexLookup"):
        assert list(indexes(directory, base_offset)[1].lookup(target)) == expected


def check_epoch_ends(expect: Expectation, ends: list[list[Any]]) -> None:
    epochs = LeaderEpochs(tuple(entry) for entry in expect["leaderEpochs"])
    for asked, epoch, end_offset in ends:
        expected = None if epoch is None else (epoch, end_offset)
        assert epochs.end_offset_of(asked, expect["logEndOffset"]) == expected, asked


@pytest.mark.parametrize(("case", "expect"), list(cases("damaged")))
def test_recovers_as_kafka_does(case: Path, expect: Expectation, tmp_path: Path) -> None:
    with tarfile.open(case / "logs.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    before = copy_writable(tmp_path / "before" / "topic-0", tmp_path / "topic-0")
    was_clean = case.name.startswith("open-clean")

    if "throws" in expect:
        if was_clean:
            with pytest.raises(MillraceError):
                open_log(before, expect, was_clean=True)
        else:
            log = open_log(before, expect, was_clean=False)
            assert log.log_end_offset < 59, "the log ends in the segment of the damaged batch"
        return

    log = open_log(before, expect, was_clean=was_clean)
    assert (log.log_start_offset, log.log_end_offset) == (expect["logStartOffset"], expect["logEndOffset"])
    assert [list(entry) for entry in log.epochs.entries] == expect["leaderEpochs"]
    if case.name != "open-clean-no-snapshots":
        assert newest_batches(seen(entry) for entry in log.producers) == newest_batches(expect["producers"])
    log.close()
    check_files(before, tmp_path / "after" / "topic-0", was_clean=was_clean)


def check_files(directory: Path, after: Path, *, was_clean: bool) -> None:
    """Check that logs, epochs, and undamaged indexes and snapshots are byte for byte the same as Kafka's."""
    suffixes = {".log", ""} if was_clean else {".log", "", ".index", ".timeindex", ".snapshot"}
    assert contents(directory, suffixes) == contents(after, suffixes)


def contents(directory: Path, suffixes: set[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(directory.iterdir()):
        if path.suffix in suffixes:
            data = path.read_bytes()
            found[path.name] = [seen(entry) for entry in read_snapshot(data)] if path.suffix == ".snapshot" else data
    return found


def seen(entry: ProducerEntry) -> dict[str, Any]:
    return {
        "producerId": entry.producer_id,
        "producerEpoch": entry.epoch,
        "coordinatorEpoch": entry.coordinator_epoch,
        "lastTimestamp": entry.last_timestamp_ms,
        "currentTxnFirstOffset": entry.open_transaction_offset,
        "lastSeq": entry.last_sequence,
        "lastDataOffset": entry.last_offset,
        "batches": [
            {
                "firstSeq": batch.first_sequence,
                "lastSeq": batch.last_sequence,
                "firstOffset": batch.first_offset,
                "lastOffset": batch.last_offset,
                "timestamp": batch.timestamp_ms,
            }
            for batch in entry.batches
        ],
    }


def newest_batches(producers: Iterable[Expectation]) -> list[Expectation]:
    """Return the last batch of each producer without its own timestamp, as in a snapshot. The log may have more."""
    return [entry | {"batches": [without_time(batch) for batch in entry["batches"][-1:]]} for entry in producers]


def without_time(batch: Expectation) -> Expectation:
    return {name: value for name, value in batch.items() if name != "timestamp"}
