"""Tests of the durability of acknowledged records, and of a full disk."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millrace import errors
from millrace.clients import Admin, Producer
from millrace_broker.log import ProducedBatches
from millrace_broker.testing import EmbeddedBroker

from .waiting import STALL_S, eventually

SYNCED = {"flush.before.ack": "true"}
TMPFS_BYTES = 4 * 2**20


def test_many_clients_share_syncs_and_each_sees_its_records_at_once(
    module_broker: EmbeddedBroker, calls: Any, calls_to: Callable[[str], Any], topic: str
) -> None:
    calls.create(topic, partitions=2, configs=SYNCED)
    clients = [calls_to(module_broker.bootstrap_servers) for _ in range(8)]

    def produce(number: int) -> list[tuple[int, int]]:
        client, found = clients[number], []
        for _ in range(20):
            result = client.produce(topic, client.batch(b"x"), partition=number % 2)
            assert not result.error.code
            found.append((number % 2, result.base_offset))
            assert client.offset(topic, -1, partition=number % 2).offset > result.base_offset
        return found

    before = module_broker.server.broker.statistics().fsyncs
    with ThreadPoolExecutor(8) as threads:
        answers = [answer for found in threads.map(produce, range(8)) for answer in found]
    assert sorted(answers) == [(partition, offset) for partition in (0, 1) for offset in range(80)]
    after = module_broker.server.broker.statistics().fsyncs
    # An append does not wait if its records were already synced together with an earlier append.
    assert 0 < after.syncs - before.syncs <= after.waits - before.waits <= 160
    for number in (0, 1):
        log = module_broker.server.broker.logs.get(topic, number)
        assert log is not None
        assert log.recovery_point == log.high_watermark == 80


def test_records_that_are_not_synced_yet_are_neither_fetched_nor_found(
    module_broker: EmbeddedBroker, calls: Any, topic: str
) -> None:
    calls.create(topic, configs=SYNCED)
    calls.produce(topic, calls.batch(b"seen"))
    log = module_broker.server.broker.logs.get(topic, 0)
    assert log is not None
    log.append_unsynced(ProducedBatches(calls.batch(b"not yet"), log.config))
    fetched = calls.fetch(topic, 0)
    assert calls.offsets_in(fetched.records) == [range(1)]
    assert fetched.high_watermark == 1
    assert calls.fetch(topic, 1).records == b""
    assert calls.offset(topic, -1).offset == 1
    assert calls.offset(topic, -3).offset == 0
    fetching: list[Any] = []
    request = calls.fetch_request({topic: {0: 1}}, max_wait_ms=30_000)
    waiting = threading.Thread(target=lambda: fetching.append(calls.call("Fetch", request)))
    waiting.start()
    calls.produce(topic, calls.batch(b"and more"))
    waiting.join(STALL_S)
    assert calls.offsets_in(fetching[0].topics[0].partitions[0].records) == [range(1, 2), range(2, 3)]


def test_flush_ms_is_kept_to_the_millisecond(module_broker: EmbeddedBroker, calls: Any, topic: str) -> None:
    calls.create(topic, configs={"flush.ms": "20"})
    calls.produce(topic, calls.batch(b"a"))
    log = module_broker.server.broker.logs.get(topic, 0)
    assert log is not None
    eventually(lambda: log.recovery_point == 1, "the flush")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of a few megabytes."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("options", [{}, SYNCED])
def test_a_full_disk_refuses_says_so_and_serves_again_once_there_is_space(
    small_disk: Path, calls_to: Callable[[str], Any], options: dict[str, str]
) -> None:
    ballast = small_disk / "ballast"
    with EmbeddedBroker(small_disk / "data") as broker:
        calls = calls_to(broker.bootstrap_servers)
        calls.create("orders", configs={"segment.bytes": "300000", **options})
        ballast.write_bytes(bytes(TMPFS_BYTES // 2))
        acknowledged = 0
        while not (refused := calls.produce("orders", calls.batch(b"%06d" % acknowledged * 5000))).error.code:
            assert refused.base_offset == acknowledged
            acknowledged += 1
        assert refused.error.code == errors.DiskFullError.code
        assert "free space on that disk" in refused.error.message
        assert calls.offset("orders", -1).offset == acknowledged
        assert calls.fetch("orders", 0).records
        ballast.unlink()
        assert calls.produce("orders", calls.batch(b"again")).base_offset == acknowledged
    with EmbeddedBroker(small_disk / "data") as broker:
        calls = calls_to(broker.bootstrap_servers)
        assert not broker.server.broker.logs.offline()
        offset = 0
        while offset <= acknowledged:
            offset = calls.offsets_in(calls.fetch("orders", offset).records)[-1].stop
        assert offset == acknowledged + 1


def test_a_producer_waits_for_space_and_then_continues(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    ballast = small_disk / "ballast"
    with EmbeddedBroker(small_disk / "data") as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("orders")
        ballast.write_bytes(bytes(TMPFS_BYTES - 512 * 2**10))
        with Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0}) as producer:
            sent = [producer.send("orders", b"v" * 60_000) for _ in range(20)]
            eventually(lambda: "append failed" in caplog.text, "the full disk")
            assert not all(future.done() for future in sent)
            ballast.unlink()
            assert sorted(future.result(STALL_S).offset for future in sent) == list(range(20))
