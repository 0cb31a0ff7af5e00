"""Tests of killed brokers.

No acknowledged record is lost, and none is invented.
"""

from __future__ import annotations

import importlib.util
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from millrace.config.topic import TopicConfig
from millrace.records import read_rows, scan_headers
from millrace_broker.log import LogManager, PartitionLog

SCRIPT = Path(__file__).with_name("appending_process.py")
BATCH_RECORDS_MAX = 30


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("appending_process", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def append_until_killed(directory: Path, seed: int) -> list[tuple[int, int]]:
    """Run the appending process, kill it at a random moment, and return the offsets that it acknowledged."""
    choose = random.Random(seed)
    with subprocess.Popen([sys.executable, str(SCRIPT), str(directory), str(seed)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        # A separate timer kills at any moment, not just after an acknowledgement.
        timer = threading.Timer(choose.uniform(0, 0.25), process.send_signal, [signal.SIGKILL])
        timer.start()
        lines = process.stdout.read().splitlines()
        timer.join()
        assert process.wait() == -signal.SIGKILL
    return [(int(first), int(last)) for first, last in (line.split() for line in lines)]


def reopen(directory: Path) -> tuple[LogManager, PartitionLog]:
    manager = LogManager.open([directory], broker_id=0, cluster_id="crash", defaults=TopicConfig())
    log = manager.get("orders", 0)
    assert log is not None, manager.offline()
    return manager, log


def all_values(log: PartitionLog) -> Iterator[tuple[int, bytes | None]]:
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20)
        for position, header in scan_headers(data):
            for at, record in enumerate(read_rows(data, position, header), start=header.base_offset):
                yield at, record.value
            offset = header.next_offset


@pytest.mark.dial("LOG_KILL_ROUNDS", seconds=2)
def test_a_log_killed_at_random_moments_keeps_acknowledged_records(
    tmp_path: Path, script: ModuleType, rounds: int
) -> None:
    acknowledged_end = 0
    for seed in range(rounds):
        acknowledged = append_until_killed(tmp_path, seed)
        if acknowledged:
            assert acknowledged[0][0] >= acknowledged_end
            acknowledged_end = acknowledged[-1][1] + 1
        manager, log = reopen(tmp_path)
        # The last batch may have been written without an acknowledgement.
        assert acknowledged_end <= log.log_end_offset <= acknowledged_end + BATCH_RECORDS_MAX, f"seed {seed}"
        for expected, (offset, value) in enumerate(all_values(log)):
            assert (offset, value) == (expected, script.value_at(expected)), f"seed {seed}"
        acknowledged_end = log.log_end_offset
        if acknowledged_end:
            assert log.offset_for_time(1000 + acknowledged_end // 2) == (
                acknowledged_end // 2,
                1000 + acknowledged_end // 2,
            )
        manager.close()
    assert acknowledged_end > 1000


def test_a_log_killed_again_before_a_clean_stop_keeps_acknowledged_records(tmp_path: Path, script: ModuleType) -> None:
    # Recovery follows recovery without a clean shutdown marker. The kills leave torn tails and lost indexes.
    choose = random.Random(7)
    for seed in range(100, 106):
        append_until_killed(tmp_path, seed)
        partition = tmp_path / "orders-0"
        last = max(partition.glob("*.log"))
        with last.open("ab") as file:
            file.write(choose.randbytes(choose.randint(0, 200)))
        for index in partition.glob("*.index"):
            index.unlink()
    manager, log = reopen(tmp_path)
    assert log.log_end_offset > 0
    assert [value for _, value in all_values(log)] == [script.value_at(n) for n in range(log.log_end_offset)]
    manager.close()
