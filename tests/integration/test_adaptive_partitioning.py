"""Tests of the adaptive partitioner (KIP-794).

Records without a key go to partitions with short queues.
"""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from millrace.clients import Admin, Producer
from millrace_broker.testing import EmbeddedBroker

from .waiting import STALL_S

AHEAD = 20
MORE = 60


@pytest.mark.parametrize("is_adaptive", [True, False])
def test_a_partition_with_a_long_queue_gets_less(broker: EmbeddedBroker, is_adaptive: bool) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("orders", partitions=2)
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "batch.size": 1000,
        "partitioner.adaptive.partitioning.enable": is_adaptive,
    }
    batch = {"value": [b"x" * 100] * 10}
    go_on = threading.Event()
    with Producer(config) as producer:
        for partition in (0, 1):
            producer.send_table("orders", batch, partition=partition).result(STALL_S)
        # the broker answers nothing, so the queues do not shrink
        broker._loop.call_soon_threadsafe(go_on.wait, STALL_S)
        try:
            ahead = [producer.send_table("orders", batch, partition=0) for _ in range(AHEAD)]
            spread = [producer.send_table("orders", batch) for _ in range(MORE)]
        finally:
            go_on.set()
        for sent in ahead:
            sent.result(STALL_S)
        placed = Counter(each.partition for sent in spread for each in sent.result(STALL_S))
    if is_adaptive:
        assert placed[1] - placed[0] > AHEAD // 2
    else:
        assert abs(placed[1] - placed[0]) <= 2
