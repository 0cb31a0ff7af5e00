"""Tests of copies, which equal the segment in every byte.

They cover all batch sizes and formats.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millrace.config.topic import TopicConfig
from millrace.records import read_entries
from millrace.segments.transaction_index import AbortedTransaction, pack_aborted, read_aborted
from millrace_broker.log import OsFiles, PartitionLog
from millrace_broker.log.remote_log_manager import RemoteLogManager
from millrace_broker.log.tiered import copying

ORACLES = Path(os.environ.get("ORACLES") or Path(__file__).parents[3] / "oracles") / "segments"


@pytest.mark.parametrize("chunk_bytes", [12, 26, 62, 100, 10**6])
def test_batches_larger_than_a_chunk_are_copied_whole(
    tiered_log: Callable[..., PartitionLog],
    manager: RemoteLogManager,
    settle: Callable[[RemoteLogManager], None],
    remote_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    chunk_bytes: int,
) -> None:
    monkeypatch.setattr(copying, "CHUNK_BYTES", chunk_bytes)
    log = tiered_log(segments=1)
    settle(manager)
    (copy,) = remote_directory.rglob("*.log")
    assert copy.read_bytes() == log.segments[0].path.read_bytes()


@pytest.mark.parametrize("name", ["magic-v1", "magic-mixed", "transactions-2", "codecs", "plain"])
def test_kafkas_own_segments_are_copied_and_read_from_the_store(
    name: str,
    manager: RemoteLogManager,
    settle: Callable[[RemoteLogManager], None],
    tmp_path: Path,
    clock: Any,
) -> None:
    directory = tmp_path / "topic-0"
    directory.mkdir()
    for path in (ORACLES / name / "topic-0").iterdir():
        shutil.copyfile(path, directory / path.name)
    options = {
        "remote.storage.enable": "true",
        "retention.ms": "-1",
        "local.retention.bytes": "0",
        "file.delete.delay.ms": "0",
    }
    log = PartitionLog(
        topic="topic",
        topic_id=UUID(int=1),
        partition=0,
        directory=directory,
        config=TopicConfig.load(options),
        files=OsFiles(),
        clock=clock,
        was_clean=True,
    )
    before = entries_of(log)
    log.roll()
    log.flush()
    stable = [segment.base_offset for segment in log.segments[1:] if segment.base_offset <= log.last_stable_offset]
    manager.attach(log)
    settle(manager)
    assert log.remote is not None
    assert log.remote.problem is None
    log.apply_retention()
    assert log.remote.end_offset == max(stable, default=0), "an open transaction may still change it, so it stays"
    assert log.first_base_offset == max(stable, default=0)
    assert entries_of(log) == before


def entries_of(log: PartitionLog) -> list[bytes]:
    offset, found = log.log_start_offset, []
    while offset < log.high_watermark:
        data = log.read(offset, 100)
        for entry in read_entries(data):
            found.append(data[entry.position : entry.position + entry.size_bytes])
            offset = entry.last_offset + 1
    return found


def test_transaction_indexes_go_along(
    tiered_log: Callable[..., PartitionLog],
    manager: RemoteLogManager,
    settle: Callable[[RemoteLogManager], None],
    tmp_path: Path,
) -> None:
    log = tiered_log(segments=2, local_retention_bytes="1")
    aborted = AbortedTransaction(producer_id=7, first_offset=1, last_offset=5, last_stable_offset=6)
    (log.directory / f"{0:020d}.txnindex").write_bytes(pack_aborted(aborted))
    settle(manager)
    log.apply_retention()
    assert log.remote is not None
    assert list(read_aborted(log.remote.segments[0].transaction_index())) == [aborted]
    assert log.remote.segments[1].transaction_index() == b""
