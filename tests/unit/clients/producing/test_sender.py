"""Tests of the sender over connections with scripted answers."""

import itertools
import threading
import time
import uuid
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from millrace.clients.metadata import MetadataCache
from millrace.clients.producing.batching import BuiltBatch
from millrace.clients.producing.futures import Outcomes
from millrace.clients.producing.sender import Sender
from millrace.config.client import ProducerConfig
from millrace.errors import (
    AbortableTransactionError,
    InvalidRecordError,
    MessageTooLargeError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderError,
    OutOfOrderSequenceError,
    RequestTimedOutError,
    StorageError,
    TopicAuthorizationError,
    UnknownServerError,
)
from millrace.protocol import millrace_pb2 as pb

from ....integration.waiting import STALL_S, eventually

TOPIC_ID = uuid.UUID(int=7).bytes


class Network:
    """Two brokers and a topic, led by ``leader``. ``refuse`` answers the first batches, as many as
    ``refusals``. Each producer id is new. ``stamps`` has the id and the first sequence number of each batch.
    """

    def __init__(self, config, refuse, refusals=1, partitions=1):
        self.config, self.refuse, self.leader, self.is_closed = config, refuse, 1, False
        self.refusals, self.partitions = refusals, partitions
        self.asked = []
        self.timeouts_s = []
        self.stamps = []
        self._producer_ids = itertools.count(1)

    def know(self, addresses):
        pass

    def call(self, method, request, **_):
        if isinstance(request, pb.InitProducerIdRequest):
            return pb.InitProducerIdResponse(producer_id=next(self._producer_ids), producer_epoch=0)
        response = pb.MetadataResponse(brokers=[pb.BrokerNode(node_id=n, host="broker", port=n) for n in (1, 2)])
        topic = response.topics.add(name="t", topic_id=TOPIC_ID)
        for number in range(self.partitions):
            topic.partitions.add(partition=number, leader=self.leader, leader_epoch=self.leader)
        return response

    def begin(self, method, request, *, address, timeout_s, on_done):
        self.asked.append(address)
        self.timeouts_s.append(timeout_s)
        records = pb.ProduceRequest.FromString(request).topics[0].partitions[0].records
        self.stamps.append((int.from_bytes(records[43:51], "big", signed=True), int.from_bytes(records[53:57], "big")))
        if len(self.asked) <= self.refusals:
            threading.Thread(target=self.refuse, args=(on_done,)).start()
            return
        response = pb.ProduceResponse()
        response.topics.add(name="t").partitions.add(partition=0, base_offset=5)
        on_done(response, None)


def _response(partitions):
    response = pb.ProduceResponse()
    topic = response.topics.add(name="t")
    for partition in range(partitions):
        topic.partitions.add(partition=partition, base_offset=5)
    return response


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


def test_an_attempt_does_not_last_beyond_the_delivery_timeout():
    limits = {"request.timeout.ms": 3_600_000, "delivery.timeout.ms": 3_600_000}
    config = ProducerConfig.of({"bootstrap.servers": "broker:1", "retry.backoff.ms": 1, **limits})
    network = Network(config, lambda on_done: on_done(None, NotLeaderError("not any more")))
    sender = Sender(config, network, MetadataCache(network), Outcomes(), None)
    sender.start(lambda: None, lambda: False)
    done = threading.Event()
    try:
        sender.enqueue("t", BuiltBatch(0, bytes(61), 1, 0), lambda *outcome: done.set())
        assert done.wait(STALL_S)
    finally:
        sender.stop()
    first, second = network.timeouts_s
    assert second < first < 3600


def test_the_delivery_timeout_begins_when_the_first_record_of_a_batch_was_sent():
    limits = {"request.timeout.ms": 3_600_000, "delivery.timeout.ms": 3_600_000}
    config = ProducerConfig.of({"bootstrap.servers": "broker:1", **limits})
    network = Network(config, None, refusals=0)
    sender = Sender(config, network, MetadataCache(network), Outcomes(), None)
    sender.start(lambda: None, lambda: False)
    done = threading.Event()
    try:
        created = time.monotonic() - 3000
        sender.enqueue("t", BuiltBatch(0, bytes(61), 1, 0), lambda *outcome: done.set(), created=created)
        assert done.wait(STALL_S)
    finally:
        sender.stop()
    assert network.timeouts_s[0] <= 600


def test_batches_fail_at_their_deadlines_while_their_request_waits_for_an_answer():
    limits = {"request.timeout.ms": 3_600_000, "delivery.timeout.ms": 3_600_000}
    config = ProducerConfig.of({"bootstrap.servers": "broker:1", **limits})
    answers, outcomes = [], defaultdict(list)
    network = Network(config, answers.append, partitions=2)
    now_s = [10_000.0]
    sender = Sender(config, network, MetadataCache(network), Outcomes(), None, lambda: now_s[0])

    def send(name, partition, created=None):
        batch = BuiltBatch(partition, bytes(61), 1, 0)
        sender.enqueue("t", batch, lambda *outcome: outcomes[name].append(outcome), created=created)

    soon = now_s[0] - 3600 + 1
    send("in flight", 0, soon)
    send("other partition", 1)
    send("behind", 0, soon)
    sender.start(lambda: None, lambda: False)
    try:
        eventually(lambda: answers, "the request")
        assert not outcomes
        now_s[0] += 1
        sender.wake()
        eventually(lambda: sum(map(len, outcomes.values())) == 2, "the deadline")
        assert list(outcomes) == ["in flight", "behind"]
        assert network.timeouts_s[0] > 3000
        (_, _, error, _), (_, _, waiting, _) = outcomes["in flight"][0], outcomes["behind"][0]
        assert isinstance(error, RequestTimedOutError)
        assert "the log may contain them" in error.message
        assert "the log may contain them" not in waiting.message
        send("after", 0)
        assert len(network.asked) == 1
        answers.pop()(_response(partitions=2), None)
        eventually(lambda: sum(map(len, outcomes.values())) == 4, "the next batch")
    finally:
        sender.stop()
    assert [len(found) for found in outcomes.values()] == [1, 1, 1, 1]
    assert outcomes["other partition"][0][2] is None
    assert network.stamps == [(1, 0), (2, 0)]  # the outcome of the first batch is unknown


class Transaction:
    """Transaction that can only be aborted after a batch has failed."""

    identity = (1, 0)
    state = SimpleNamespace(transactional_id="x")

    def __init__(self):
        self.error = None

    def add_partitions(self, partitions, timeout_ms):
        pass

    def sending_error(self):
        return self.error

    def batch_failed(self, error):
        self.error = self.error or AbortableTransactionError(error.message)


def test_batches_of_a_failed_transaction_wait_only_for_requests_that_are_not_overdue():
    limits = {"request.timeout.ms": 3_600_000, "delivery.timeout.ms": 3_600_000, "transactional.id": "x"}
    config = ProducerConfig.of({"bootstrap.servers": "broker:1", **limits})
    answers, outcomes = [], {}
    network = Network(config, answers.append, partitions=2)
    now_s = [10_000.0]
    sender = Sender(config, network, MetadataCache(network), Outcomes(), Transaction(), lambda: now_s[0])

    def send(name, partition, created):
        batch = BuiltBatch(partition, bytes(61), 1, 0)
        sender.enqueue("t", batch, lambda *outcome: outcomes.update({name: outcome[2]}), created=created)

    send("overdue", 0, now_s[0] - 3000)
    send("in flight", 1, now_s[0])
    send("behind overdue", 0, now_s[0])
    send("behind in flight", 1, now_s[0])
    sender.start(lambda: None, lambda: False)
    try:
        eventually(lambda: answers, "the request")
        now_s[0] += 601
        sender.wake()
        eventually(lambda: len(outcomes) == 2, "the deadline")
        assert list(outcomes) == ["overdue", "behind overdue"]
        assert isinstance(outcomes["overdue"], RequestTimedOutError)
        assert isinstance(outcomes["behind overdue"], AbortableTransactionError)
        answers.pop()(_response(partitions=2), None)
        eventually(lambda: len(outcomes) == 4, "the answer")
    finally:
        sender.stop()
    assert list(outcomes)[2:] == ["in flight", "behind in flight"]
    assert outcomes["in flight"] is None
    assert isinstance(outcomes["behind in flight"], AbortableTransactionError)
    assert len(network.asked) == 1


def test_a_flush_does_not_wait_for_batches_that_are_queued_after_its_begin(config):
    answers, outcomes = [], Outcomes()
    network = Network(config, answers.append, refusals=2)
    sender = Sender(config, network, MetadataCache(network), outcomes, None)
    sender.start(lambda: None, lambda: False)
    response = pb.ProduceResponse()
    response.topics.add(name="t").partitions.add(partition=0, base_offset=5)
    done = []
    try:
        sender.enqueue("t", BuiltBatch(0, bytes(61), 1, 0), lambda *outcome: done.append(1))
        with ThreadPoolExecutor(1) as pool:
            flushed = pool.submit(sender.wait_until_sent, STALL_S)
            eventually(lambda: outcomes._waiters, "the flush to wait")
            sender.enqueue("t", BuiltBatch(0, bytes(61), 1, 0), lambda *outcome: done.append(2))
            eventually(lambda: answers, "the first request").pop()(response, None)
            eventually(lambda: answers, "the second request")
            assert flushed.result(STALL_S)
        assert done == [1]
        assert not sender.wait_until_idle(0)
        answers.pop()(response, None)
        assert sender.wait_until_idle(STALL_S)
    finally:
        sender.stop()


def _stamps(errors, **options):
    """Send a batch whose attempts end with these errors, then another one. Return the stamps of all attempts."""
    config = ProducerConfig.of({"bootstrap.servers": "broker:1", "retry.backoff.ms": 1, **options})
    left = list(errors)
    network = Network(config, lambda on_done: on_done(None, left.pop(0)), refusals=len(errors))
    sender = Sender(config, network, MetadataCache(network), Outcomes(), None)
    sender.start(lambda: None, lambda: False)
    try:
        for _ in range(2):
            done = threading.Event()
            sender.enqueue("t", BuiltBatch(0, bytes(61), 1, 0), lambda *outcome: done.set())  # noqa: B023
            assert done.wait(STALL_S)
    finally:
        sender.stop()
    return network.stamps


@pytest.mark.parametrize("error", [MessageTooLargeError, InvalidRecordError, TopicAuthorizationError])
def test_the_sequence_of_a_refused_batch_is_reused(error):
    assert _stamps([error("no")]) == [(1, 0), (1, 0)]


@pytest.mark.parametrize(
    "error",
    [
        NotEnoughReplicasAfterAppendError,
        NotLeaderError,
        StorageError,
        UnknownServerError,
        OutOfOrderSequenceError,
    ],
)
def test_after_an_error_that_may_follow_the_append_the_producer_takes_a_new_id(error):
    assert _stamps([error("perhaps")], retries=0) == [(1, 0), (2, 0)]


def test_an_attempt_that_may_have_appended_counts_although_the_last_one_was_refused():
    errors = [NotEnoughReplicasAfterAppendError("appended"), NotEnoughReplicasError("refused")]
    assert _stamps(errors, retries=1) == [(1, 0), (1, 0), (2, 0)]
    assert _stamps([NotEnoughReplicasError("refused")] * 2, retries=1) == [(1, 0)] * 3
