"""Tests of the sender over connections with scripted answers."""

import threading
import uuid

import pytest

from millrace.clients.metadata import MetadataCache
from millrace.clients.producing.batching import BuiltBatch
from millrace.clients.producing.futures import Outcomes
from millrace.clients.producing.sender import Sender
from millrace.config.client import ProducerConfig
from millrace.errors import NotLeaderError
from millrace.protocol import millrace_pb2 as pb

from ....integration.waiting import STALL_S

TOPIC_ID = uuid.UUID(int=7).bytes


class Network:
    """Two brokers and a topic of one partition, led by ``leader``. ``refuse`` answers the first batch."""

    def __init__(self, config, refuse):
        self.config, self.refuse, self.leader, self.is_closed = config, refuse, 1, False
        self.asked = []

    def know(self, addresses):
        pass

    def call(self, method, request, **_):
        response = pb.MetadataResponse(brokers=[pb.BrokerNode(node_id=n, host="broker", port=n) for n in (1, 2)])
        topic = response.topics.add(name="t", topic_id=TOPIC_ID)
        topic.partitions.add(partition=0, leader=self.leader, leader_epoch=self.leader)
        return response

    def begin(self, method, request, *, address, timeout_s, on_done):
        self.asked.append(address)
        if len(self.asked) == 1:
            threading.Thread(target=self.refuse, args=(on_done,)).start()
            return
        response = pb.ProduceResponse()
        response.topics.add(name="t").partitions.add(partition=0, base_offset=5)
        on_done(response, None)


@pytest.fixture
def config():
    return ProducerConfig.of({"bootstrap.servers": "broker:1", "enable.idempotence": False, "retry.backoff.ms": 200})


def test_the_leader_is_looked_up_when_a_batch_is_sent_again_and_not_before(config):
    looked = threading.Event()

    def refuse(on_done):
        on_done(None, NotLeaderError("not any more"))
        metadata.topic("t")  # a client asks before the next leader is elected
        network.leader = 2
        looked.set()

    network = Network(config, refuse)
    metadata = MetadataCache(network)
    sender = Sender(config, network, metadata, Outcomes(), None)
    sender.start(lambda: None, lambda: False)
    done = threading.Event()
    try:
        sender.enqueue("t", BuiltBatch(0, bytes(61), 1, 0), lambda *outcome: done.set())
        assert looked.wait(STALL_S)
        assert done.wait(STALL_S)
    finally:
        sender.stop()
    assert network.asked == ["broker:1", "broker:2"]
