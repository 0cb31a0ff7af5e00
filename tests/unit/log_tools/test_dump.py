"""Tests of dumps of a partition's files.

The tests cover the contents, damage, and deviations that are no damage.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from millrace.config.topic import TopicConfig
from millrace.errors import UsageError
from millrace.ids import id_text
from millrace.records import (
    Compression,
    ControlType,
    EndTransactionMarker,
    Record,
    build_columnar_batch,
    build_end_marker_batch,
    build_entries,
    build_rows_batch,
)
from millrace_broker.log import OsFiles, PartitionLog
from millrace_broker.log.partition_metadata import write_topic_id
from millrace_broker.log_tools import DumpOptions, Finding, Note, Problem, Row, dump_file, files_of
from millrace_broker.runtime.clock import SystemClock

TOPIC_ID = UUID(int=7)
LOG = f"{0:020}.log"
INDEX = f"{0:020}.index"
TIME_INDEX = f"{0:020}.timeindex"
SCHEMA = pa.schema([("offset", pa.int64()), ("city", pa.string())])


def rows_batch(*timestamps_ms: int, **options: Any) -> bytes:
    headers = (("h", b"\x00"),)
    return build_rows_batch(
        [Record(key=None, value=b"v%d" % time_ms, timestamp_ms=time_ms, headers=headers) for time_ms in timestamps_ms],
        **options,
    )


def typed_batch(**options: Any) -> bytes:
    columns = pa.record_batch({"offset": [5, 6], "city": ["Oslo", None]}, schema=SCHEMA)
    return bytes(build_columnar_batch(columns, schema_id=3, timestamps_ms=9, **options))


@pytest.fixture
def open_partition(tmp_path: Path) -> Callable[..., PartitionLog]:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    write_topic_id(OsFiles(), directory, TOPIC_ID)

    def open_(**options: Any) -> PartitionLog:
        config = {"index.interval.bytes": 1, "retention.ms": -1, "segment.bytes": 700}
        return PartitionLog(
            topic="orders",
            topic_id=TOPIC_ID,
            partition=0,
            directory=directory,
            config=TopicConfig.load(config | {name.replace("_", "."): value for name, value in options.items()}),
            files=OsFiles(),
            clock=SystemClock(),
        )

    return open_


@pytest.fixture
def partition(open_partition: Callable[..., PartitionLog]) -> Path:
    """Create a closed partition of two segments with an idempotent producer."""
    log = open_partition()
    for n in range(8):
        log.append(rows_batch(10 * n, 10 * n + 1, producer_id=4, producer_epoch=1, base_sequence=2 * n))
    log.close()
    assert len(log.segments) == 2
    return log.directory


def dump(path: Path, **options: Any) -> list[Finding]:
    chosen = DumpOptions(**options)
    return [finding for file in files_of(path, chosen) for finding in dump_file(file, chosen)]


def rows(findings: list[Finding], kind: str) -> list[dict[str, Any]]:
    return [finding.values for finding in findings if isinstance(finding, Row) and finding.kind == kind]


def problems(findings: list[Finding]) -> list[Problem]:
    return [finding for finding in findings if isinstance(finding, Problem)]


def notes(findings: list[Finding]) -> list[str]:
    return [finding.text for finding in findings if isinstance(finding, Note)]


def change(path: Path, position: int, content: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[position : position + len(content)] = content
    path.write_bytes(data)


# --- contents ------------------------------------------------------------------------------------------------


def test_a_directory_gives_all_its_files(partition: Path) -> None:
    findings = dump(partition)
    assert not problems(findings)
    assert not notes(findings)
    batches = rows(findings, "batch")
    assert [(batch["first_offset"], batch["last_offset"]) for batch in batches] == [
        (2 * n, 2 * n + 1) for n in range(8)
    ]
    assert {batch["body"] for batch in batches} == {"rows"}
    assert [(batch["base_sequence"], batch["last_sequence"]) for batch in batches[:2]] == [(0, 1), (2, 3)]
    assert rows(findings, "offset entry")[0] == {"offset": 3, "position": batches[1]["position"]}
    assert rows(findings, "time entry")[-1] == {"timestamp": 71, "offset": 15}
    assert rows(findings, "leader epoch") == [{"leader_epoch": 0, "start_offset": 0}]
    assert rows(findings, "topic") == [{"topic_id": id_text(TOPIC_ID)}]
    producer = rows(findings, "producer")[-1]
    assert (producer["producer_id"], producer["last_sequence"], producer["last_offset"]) == (4, 15, 15)


def test_records_are_dumped_with_or_without_their_content(partition: Path) -> None:
    assert rows(dump(partition / LOG, with_data=True), "record")[1] == {
        "offset": 1,
        "timestamp": 1,
        "key": None,
        "value": b"v1",
        "headers": [["h", b"\x00"]],
    }
    sizes = {"offset": 1, "timestamp": 1, "key_bytes": -1, "value_bytes": 2}
    assert rows(dump(partition / LOG, deep=True), "record")[1] == sizes


def test_typed_records_need_a_schema(tmp_path: Path) -> None:
    (tmp_path / LOG).write_bytes(typed_batch() + typed_batch(base_offset=2))
    without = dump(tmp_path / LOG, with_data=True)
    assert [batch["schema_id"] for batch in rows(without, "batch")] == [3, 3]
    assert len(notes(without)) == 1
    assert "give it with --schema" in notes(without)[0]
    found = rows(dump(tmp_path / LOG, with_data=True, schema=SCHEMA), "record")
    assert found[3] == {"offset": 3, "timestamp": 9, "value": {"offset": 6, "city": None}}
    assert rows(dump(tmp_path / LOG, deep=True, schema=SCHEMA), "record")[3] == {"offset": 3, "timestamp": 9}
    wrong = problems(dump(tmp_path / LOG, with_data=True, schema=SCHEMA.append(pa.field("n", pa.int64()))))
    assert [problem.offset for problem in wrong] == [0, 2]


def test_batches_of_all_formats_in_one_file_are_dumped(tmp_path: Path) -> None:
    marker = EndTransactionMarker(type=ControlType.ABORT, coordinator_epoch=6)
    old = [Record(value=b"old", timestamp_ms=1, offset=n) for n in range(2)]
    (tmp_path / LOG).write_bytes(
        build_entries(old, magic=1, compression=Compression.GZIP)
        + rows_batch(5, base_offset=2)
        + bytes(build_columnar_batch(pa.record_batch({"value": [b"x"]}), timestamps_ms=7, base_offset=3))
        + build_end_marker_batch(marker, base_offset=4, timestamp_ms=8, producer_id=1, producer_epoch=0)
    )
    findings = dump(tmp_path / LOG, with_data=True)
    assert not problems(findings)
    assert [(batch["magic"], batch["body"]) for batch in rows(findings, "batch")] == [
        (1, "message"),
        (2, "rows"),
        (2, "columnar"),
        (2, "rows"),
    ]
    assert [record["value"] for record in rows(findings, "record")] == [b"old", b"old", b"v5", b"x"]
    assert rows(findings, "control record") == [
        {"offset": 4, "timestamp": 8, "control": "abort", "coordinator_epoch": 6}
    ]


def test_a_dump_reports_its_progress_and_ends_at_max_bytes(partition: Path) -> None:
    steps: list[tuple[int, int]] = []
    whole = list(dump_file(partition / LOG, DumpOptions(), lambda done, total: steps.append((done, total))))
    size = (partition / LOG).stat().st_size
    assert steps[-1] == (size, size)
    assert len(steps) == len(whole)
    limited = dump(partition / LOG, max_bytes=150)
    assert len(rows(limited, "batch")) == 2
    assert "as requested" in notes(limited)[0]


# --- false signs of damage -----------------------------------------------------------------------------------


def test_an_incomplete_append_of_a_running_broker_is_no_problem(open_partition: Callable[..., PartitionLog]) -> None:
    log = open_partition(segment_index_bytes=4096)
    for n in range(3):
        log.append(rows_batch(n))
    path = log.directory / LOG
    path.write_bytes(path.read_bytes() + rows_batch(9)[:70])  # an append that was interrupted in its write
    findings = dump(log.directory)
    assert not problems(findings)
    assert len(rows(findings, "batch")) == 3
    assert any("it is being appended" in note for note in notes(findings))
    assert any("room for" in note for note in notes(findings))
    assert [entry["offset"] for entry in rows(findings, "offset entry")] == [1, 2]


@pytest.mark.parametrize("zeros", [10, 500])
def test_zeros_behind_the_last_batch_are_a_note_and_no_problem(partition: Path, zeros: int) -> None:
    last = max(partition.glob("*.log"))
    last.write_bytes(last.read_bytes() + bytes(zeros))
    findings = dump(last)
    assert not problems(findings)
    assert len(notes(findings)) == 1


def test_files_that_wait_to_be_removed_are_left_out_unless_named(partition: Path) -> None:
    gone = (partition / LOG).rename(partition / (LOG + ".deleted"))
    (partition / INDEX).rename(partition / (INDEX + ".deleted"))
    assert gone not in files_of(partition, DumpOptions())
    assert len(rows(dump(gone), "batch")) == len(rows(dump(gone, max_bytes=10**6), "batch")) > 2
    assert not problems(dump(partition / (INDEX + ".deleted")))


# --- damage --------------------------------------------------------------------------------------------------


def test_a_wrong_checksum_is_named_and_passed_over(partition: Path) -> None:
    position = rows(dump(partition / LOG), "batch")[1]["position"]
    change(partition / LOG, position + 70, b"\xff")
    findings = dump(partition / LOG, with_data=True)
    (problem,) = problems(findings)
    assert str(problem) == f"position {position}, offset 2: fails its checksum"
    assert 2 not in [record["offset"] for record in rows(findings, "record")]
    assert [batch["is_valid"] for batch in rows(findings, "batch")].count(False) == 1


@pytest.mark.parametrize(("at", "content"), [(8, b"\x00\x00\x00\x05"), (16, b"\x07"), (8, b"\x7f\xff\xff\xff")])
def test_nothing_is_read_behind_a_length_or_magic_that_cannot_be(partition: Path, at: int, content: bytes) -> None:
    position = rows(dump(partition / LOG), "batch")[2]["position"]
    change(partition / LOG, position + at, content)
    findings = dump(partition / LOG)
    (problem,) = problems(findings)
    assert problem.position == position
    assert len(rows(findings, "batch")) == 2


def test_offsets_that_do_not_ascend_are_a_problem(tmp_path: Path) -> None:
    (tmp_path / f"{5:020}.log").write_bytes(rows_batch(1, base_offset=6) + rows_batch(1, base_offset=4))
    (problem,) = problems(dump(tmp_path / f"{5:020}.log"))
    assert problem.offset == 4


@pytest.mark.parametrize("only", ["entries", "only_disagreements"])
def test_index_entries_that_disagree_with_the_log_are_problems(partition: Path, only: str) -> None:
    entry = rows(dump(partition / INDEX), "offset entry")[1]
    change(partition / INDEX, 8 + 4, struct.pack(">i", entry["position"] - 1))
    change(partition / TIME_INDEX, 12, struct.pack(">q", 22))
    findings = dump(partition, **({} if only == "entries" else {only: True}))
    assert [problem.offset for problem in problems(findings)][:2] == [5, 5]
    assert bool(rows(findings, "offset entry")) == (only == "entries")
    assert not problems(dump(partition, only_sanity=True))


def test_damage_inside_an_index_is_a_problem(partition: Path) -> None:
    change(partition / INDEX, 0, struct.pack(">i", 99))
    (partition / TIME_INDEX).write_bytes((partition / TIME_INDEX).read_bytes() + b"\x00")
    found = problems(dump(partition, only_sanity=True))
    assert "does not follow" in found[0].text
    assert "no multiple" in found[1].text


def test_an_index_without_its_log_is_dumped_and_not_compared(partition: Path) -> None:
    (partition / LOG).unlink()
    findings = dump(partition / INDEX)
    assert rows(findings, "offset entry")
    assert "not compared" in notes(findings)[0]
    assert not problems(findings)


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "partition.metadata", f"{16:020}.snapshot"])
def test_a_damaged_epoch_metadata_or_snapshot_file_is_a_problem(partition: Path, name: str) -> None:
    assert (partition / name).is_file()
    change(partition / name, 4, b"\x00\xff!")
    assert len(problems(dump(partition / name))) == 1


def test_the_checkpoints_of_a_data_directory_are_dumped(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_text("0\n1\norders 2 17\n")
    assert rows(dump(path), "checkpoint") == [{"topic": "orders", "partition": 2, "offset": 17}]


def test_paths_without_files_of_a_partition_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("x")
    for path, text in (
        (tmp_path, "holds no files"),
        (tmp_path / "none", "no such"),
        (tmp_path / "other.txt", "not a file of a partition"),
    ):
        with pytest.raises(UsageError, match=text):
            files_of(path, DumpOptions())
