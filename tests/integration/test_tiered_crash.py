"""Tests of a broker with a remote directory that is repeatedly killed.

The kill is SIGKILL. No acknowledged record is lost.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace import errors
from millrace.records import decode_range
from millrace_broker.log.tiered.names import parse_manifest_name, parse_object_name

from .waiting import STALL_S, Stall, eventually

OPTIONS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "20",
    "log.retention.check.interval.ms": "20",
    "log.initial.task.delay.ms": "0",
    "log.segment.delete.delay.ms": "0",
}
CONFIGS = {
    "remote.storage.enable": "true",
    "segment.bytes": "2000",
    "local.retention.bytes": "1",
    "flush.ms": "10",
}
KILLED_AFTER = 40
"""The acknowledged batches of every other round before the broker may be killed. They fill more than three segments."""


def start_broker(data: Path, remote: Path) -> tuple[subprocess.Popen[str], str]:
    command = [str(Path(sys.executable).with_name("millrace")), "broker", "--data-dir", str(data)]
    command += ["--listen", "127.0.0.1:0"]
    for name, value in (OPTIONS | {"remote.log.storage.uri": remote.as_uri()}).items():
        command += ["-o", f"{name}={value}"]
    with data.with_suffix(".stderr").open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().rpartition(" ")[2].strip()


@contextlib.contextmanager
def running(data: Path, remote: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a broker, and return its process and address. Kill the process at the end."""
    process, address = start_broker(data, remote)
    assert process.stdout is not None
    with process.stdout:
        try:
            yield process, address
        finally:
            process.kill()
            process.wait(STALL_S)


@pytest.mark.dial("BROKER_KILL_ROUNDS", seconds=10)
def test_acknowledged_records_survive_kill_9_while_segments_move_to_the_store(
    tmp_path: Path, calls_to: Callable[[str], Any], rounds: int
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    data, remote = tmp_path / "data", tmp_path / "remote"
    acknowledged: dict[int, bytes] = {}
    for round_number in range(rounds):
        with running(data, remote) as (process, address):
            killer = threading.Timer(chance.uniform(0.3, 1.5), process.kill)
            if round_number % 2:  # at any moment, perhaps before an acknowledgement
                killer.start()
            try:
                calls = calls_to(address)
                if not round_number:
                    calls.create("t", configs=CONFIGS)
                for number in range(100_000):
                    if number == KILLED_AFTER and not round_number % 2:
                        killer.start()
                    values = [b"%d-%d-%d" % (round_number, number, each) for each in range(10)]
                    result = calls.produce("t", calls.batch(*values))
                    if result.error.code == 0:
                        acknowledged.update(enumerate(values, result.base_offset))
            except errors.MillraceError as error:
                assert isinstance(error, errors.BrokerUnavailableError | errors.RequestTimedOutError), error  # noqa: PT017
            assert process.wait(STALL_S) == -signal.SIGKILL
    with running(data, remote) as (process, address):
        check(calls_to(address), acknowledged, remote)
        process.send_signal(signal.SIGTERM)
        process.wait(STALL_S)


def check(calls: Any, acknowledged: dict[int, bytes], remote: Path) -> None:
    def local_start() -> int:
        return calls.offset("t", -4).offset

    # All segments but one are only in the store.
    eventually(lambda: local_start() >= calls.offset("t", -1).offset - 200, "local deletion", progress=local_start)
    assert calls.offset("t", -2).offset == 0
    found: dict[int, bytes] = {}
    end_offset = calls.offset("t", -1).offset
    stall = Stall("all records")
    while len(found) < end_offset:
        stall.check(len(found))
        result = calls.fetch("t", len(found))
        assert result.error.code in (0, errors.RemoteStorageError.code), result.error
        for batch in decode_range(pa.py_buffer(result.records), len(found), end_offset, no_schema):
            found.update(zip(batch.offsets().to_pylist(), batch.columns.column("value").to_pylist(), strict=True))
    assert {offset: found[offset] for offset in acknowledged} == acknowledged
    assert acknowledged
    names = [path.name for path in remote.rglob("*") if path.is_file()]
    complete = {parsed.copy for name in names if (parsed := parse_manifest_name(name)) is not None}
    assert len({copy.base_offset for copy in complete}) == len(complete) > 3, "one copy for each segment"
    objects = {parsed[0] for name in names if (parsed := parse_object_name(name)) is not None}
    assert objects >= complete


def no_schema(schema_id: int) -> pa.Schema:
    raise AssertionError(f"schema {schema_id}")
