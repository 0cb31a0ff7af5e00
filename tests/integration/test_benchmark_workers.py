"""Tests of benchmark workers in their own processes, against a broker."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from benchmarks import backfill, idle_fetches, quota_isolation, slow_consumers

from millrace.clients import Admin, Producer, TopicPartition
from millrace_broker.testing import EmbeddedBroker

from .waiting import eventually


def test_idle_fetches_wait_beside_a_producer_and_are_all_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FETCHES": 40, "FRAME_CONNECTIONS": 10, "RECORDS": 20, "_WARM_UP": 1}.items():
        monkeypatch.setattr(idle_fetches, name, value)
    with (
        EmbeddedBroker(tmp_path / "data") as broker,
        idle_fetches.serve_producer(bootstrap=broker.bootstrap_servers) as produce,
        idle_fetches.serve_fetches(bootstrap=broker.bootstrap_servers) as wake,
    ):
        eventually(lambda: broker.server.broker.statistics().admission.parked == 40)
        taken = produce()
        assert taken["p99_ms"] > 0
        assert wake() == {"waited": 40, "answered": 40}


def test_slow_consumers_keep_answers_waiting_that_they_could_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_consumers, "CONSUMERS", 4)
    options = {"queued.max.request.bytes": slow_consumers.FETCH_BYTES}
    with EmbeddedBroker(tmp_path / "data", options=options) as broker:
        with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
            admin.create_topic("unread", partitions=1)
            for _ in range(slow_consumers.FETCH_BYTES // slow_consumers._VALUE_BYTES):
                producer.send("unread", bytes(slow_consumers._VALUE_BYTES), partition=0)
        with slow_consumers.serve(targets=[(broker.port, 0)]) as look:
            # One response takes all memory for responses, and the other consumers wait for it.
            eventually(lambda: broker.server.broker.statistics().admission.parked == 3)
            eventually(lambda: look() == {"filled": 1})


def test_a_limited_producer_is_held_to_its_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The worker looks at the clock between two sends, which may take seconds.
    for name, value in {"_WARM_UP_SECONDS": 0.5, "SECONDS": 1.5, "_UNDER_WAY_SECONDS": 0}.items():
        monkeypatch.setattr(quota_isolation, name, value)
    monkeypatch.setattr(backfill, "SECONDS", 8)
    partition = TopicPartition(quota_isolation._TOPIC, 0)
    with EmbeddedBroker(tmp_path / "data") as broker, Admin(broker.bootstrap_servers) as admin:
        began = time.monotonic()
        with quota_isolation.serve_limited(bootstrap=broker.bootstrap_servers) as send:
            assert send()["bytes_per_second"] > 0
        sent = admin.list_offsets({partition: "latest"})[partition].offset * quota_isolation._VALUE_BYTES
        # Two producers sent one after the other, and each may exceed the rate at its start.
        assert sent <= 1.5 * quota_isolation.BYTES_PER_SECOND * (time.monotonic() - began)
