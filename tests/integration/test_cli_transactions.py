"""Tests of ``millrace transactions``, which shows open transactions and ends hanging ones."""

import json
import subprocess
from collections.abc import Callable, Iterator
from functools import partial

import grpc
import pyarrow as pa
import pytest

from millrace.clients import Admin, Producer, TopicPartition
from millrace.clients.producing.wire import ProducerStamp, encode_produce_request, stamped_parts
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.millrace_pb2_grpc import BrokerStub
from millrace.records import build_columnar_batch
from millrace_broker.testing import EmbeddedBroker

from .commands import run_millrace
from .waiting import STALL_S

Run = Callable[..., subprocess.CompletedProcess[str]]
NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def module_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Start a broker that accepts records of unknown transactions, as brokers before KIP-890 do."""
    options = {"transaction.partition.verification.enable": "false", "log.retention.ms": "-1"}
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), options=options) as running:
        yield running


@pytest.fixture
def run(module_broker: EmbeddedBroker) -> Run:
    environment = {"MILLRACE_BOOTSTRAP_SERVERS": module_broker.bootstrap_servers}
    return partial(run_millrace, "transactions", environment=environment)


def test_open_transactions_are_listed_and_described(admin: Admin, module_broker: EmbeddedBroker, run: Run) -> None:
    admin.create_topic("shown", partitions=2)
    config = {"bootstrap.servers": module_broker.bootstrap_servers, "transactional.id": "shown-1"}
    with Producer(config) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("shown", b"x", partition=1).result(STALL_S)
        listed = json.loads(run("list", "--state", "Ongoing", "--json").stdout)
        assert [row["TransactionalId"] for row in listed] == ["shown-1"]
        header = run("list").stdout.splitlines()[0].split()
        assert header == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"]
        (row,) = json.loads(run("describe", "--transactional-id", "shown-1", "--json").stdout)
        assert (row["TransactionState"], row["TopicPartitions"]) == ("Ongoing", "shown-1")
        assert row["TransactionDurationMs"] >= 0
        producers = json.loads(run("describe-producers", "--topic", "shown", "--partition", "1", "--json").stdout)
        assert [(row["ProducerId"], row["CurrentTransactionStartOffset"]) for row in producers] == [
            (listed[0]["ProducerId"], 0)
        ]
        assert json.loads(run("find-hanging", "--max-transaction-timeout", "0", "--json").stdout) == []
        producer.commit_transaction()
    assert json.loads(run("list", "--state", "Ongoing", "--json").stdout) == []
    assert "is not a state of a transaction" in run("list", "--state", "Sleeping", code=2).stderr
    assert "nobody" in run("describe", "--transactional-id", "nobody", code=1).stderr


def _leave_hanging(broker: EmbeddedBroker, topic: str) -> None:
    """Write a record in a transaction that no coordinator knows."""
    batch = build_columnar_batch(pa.record_batch({"value": pa.array([b"x"], pa.binary())}), timestamps_ms=NOW_MS)
    parts = stamped_parts(batch, ProducerStamp(4711, 0, 0, is_transactional=True))
    request = encode_produce_request(-1, 10_000, [(topic, [(0, parts)])], transactional_id="ghost")
    with grpc.insecure_channel(broker.grpc_address) as channel:
        response = BrokerStub(channel).Produce(pb.ProduceRequest.FromString(request))
    assert not response.topics[0].partitions[0].error.code, response


def test_a_hanging_transaction_is_found_and_ended(admin: Admin, module_broker: EmbeddedBroker, run: Run) -> None:
    admin.create_topic("hung", partitions=1)
    _leave_hanging(module_broker, "hung")
    partition = TopicPartition("hung", 0)
    stable = admin.list_offsets({partition: "latest"}, isolation_level="read_committed")[partition].offset
    assert stable == 0
    found = json.loads(run("find-hanging", "--topic", "hung", "--max-transaction-timeout", "0", "--json").stdout)
    assert [(row["Topic"], row["Partition"], row["StartOffset"]) for row in found] == [("hung", 0, 0)]
    assert "name the transaction" in run("abort", "--topic", "hung", "--partition", "0", code=2).stderr
    wrong = run("abort", "--topic", "hung", "--partition", "0", "--start-offset", "7", code=1).stderr
    assert "begins at offset 7" in wrong
    run("abort", "--topic", "hung", "--partition", "0", "--start-offset", "0")
    assert admin.list_offsets({partition: "latest"}, isolation_level="read_committed")[partition].offset == 2
    assert json.loads(run("find-hanging", "--topic", "hung", "--max-transaction-timeout", "0", "--json").stdout) == []
