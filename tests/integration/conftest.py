"""Fixtures that integration tests share.

``calls`` and ``calls_to`` send raw calls that no client of ours would send. ``admin`` and ``group`` are clients of the
module's broker. ``spark`` is the one Spark session.
"""

from __future__ import annotations

import re
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest
from kafka.net.inet import KafkaNetSocket

from millrace.clients import Admin
from millrace.clients.transport import Links
from millrace.config.client import ClientConfig
from millrace.errors import MillraceError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol import millrace_pb2_grpc as rpc
from millrace.protocol.status import error_from_rpc
from millrace.records import build_columnar_batch, scan_headers
from millrace.schemas import parse_schema, serialize_schema
from millrace_broker.testing import EmbeddedBroker
from pyspark_millrace import session

from ..jvm import both_compilers
from .consumer_groups import Group
from .documented import Reader
from .reader_model import Model, ModelFactory
from .replica_cluster import ReplicaCluster
from .waiting import AN_HOUR_MS, STALL_S
from .zookeeper_server import ZooKeeperServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = 1_700_000_000_000
FOREVER = {"retention.ms": "-1"}


def grpc_address(address: str) -> str:
    """Return the address for gRPC that a broker names at ``address``."""
    links = Links(ClientConfig.of(address))
    try:
        return links.to(address)._find_grpc()
    finally:
        links.close()


@pytest.fixture(autouse=True)
def _closed_sockets_of_kafka_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close what kafka-python 3.0 forgets: the socket of a connection that begins while its client is closed.

    Otherwise the garbage collector would find it, and fail whatever test runs then.
    """
    made: list[socket.socket] = []
    create = KafkaNetSocket.socket

    def remembered(self: KafkaNetSocket, *args: int) -> socket.socket:
        made.append(create(self, *args))
        return made[-1]

    monkeypatch.setattr(KafkaNetSocket, "socket", remembered)
    yield
    for sock in made:
        sock.close()


class Calls:
    """A gRPC stub with shorter names. An error of a whole request is raised as ``MillraceError``.

    ``address`` is that of a broker, which names its listener for gRPC.
    """

    def __init__(self, address: str) -> None:
        options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),  # a connection of its own
        ]
        self.address = grpc_address(address)
        self.channel = grpc.insecure_channel(self.address, options=options)
        self.stub = rpc.BrokerStub(self.channel)

    def call(self, name: str, request: Any, timeout_s: float = STALL_S) -> Any:
        try:
            return getattr(self.stub, name)(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None

    def error(self, name: str, request: Any) -> MillraceError:
        """Return the error of a request as a whole."""
        try:
            self.call(name, request)
        except MillraceError as error:
            return error
        raise AssertionError(f"{name} did not fail")

    def create(self, name: str, partitions: int = 1, **fields: Any) -> pb.CreateTopicsResponse.Result:
        """Create a topic that keeps all records. ``ddl`` makes it typed."""
        ddl = fields.pop("ddl", None)
        if ddl is not None:
            fields["arrow_schema"] = serialize_schema(parse_schema(ddl))
        topic = pb.NewTopic(
            **{
                "name": name,
                "num_partitions": partitions,
                "replication_factor": -1,
                **fields,
                "configs": FOREVER | fields.get("configs", {}),
            }
        )
        return self.call("CreateTopics", pb.CreateTopicsRequest(topics=[topic], timeout_ms=AN_HOUR_MS)).results[0]

    def produce(
        self, topic: str, records: bytes, partition: int = 0, acks: int = -1, topic_id: bytes = b""
    ) -> pb.ProduceResponse.PartitionResult:
        data = pb.ProduceRequest.PartitionData(partition=partition, records=records)
        topic_data = pb.ProduceRequest.TopicData(name=topic, topic_id=topic_id, partitions=[data])
        return self.call("Produce", pb.ProduceRequest(acks=acks, topics=[topic_data])).topics[0].partitions[0]

    def fetch(self, topic: str, offset: int, partition: int = 0, **options: Any) -> pb.FetchResponse.PartitionRecords:
        return self.call("Fetch", self.fetch_request({topic: {partition: offset}}, **options)).topics[0].partitions[0]

    def offset(self, topic: str, when: int, partition: int = 0) -> pb.ListOffsetsResponse.PartitionOffset:
        wanted = pb.ListOffsetsRequest.PartitionTime(partition=partition, timestamp=when)
        times = pb.ListOffsetsRequest.TopicTimes(name=topic, partitions=[wanted])
        return self.call("ListOffsets", pb.ListOffsetsRequest(topics=[times])).topics[0].partitions[0]

    def topics(self, *names: str, include_schemas: bool = False) -> dict[str, pb.Topic]:
        request = pb.MetadataRequest(topics=names, include_schemas=include_schemas)
        return {topic.name: topic for topic in self.call("Metadata", request).topics}

    @staticmethod
    def batch(*values: bytes | None, **options: Any) -> bytes:
        columns = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
        return bytes(build_columnar_batch(columns, timestamps_ms=NOW_MS, **options))

    @staticmethod
    def fetch_request(
        offsets: dict[str, dict[int, int]],
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 2**20,
        partition_max_bytes: int = 2**20,
        epoch: int = -1,
    ) -> pb.FetchRequest:
        topics = [
            pb.FetchRequest.TopicFetch(
                name=name,
                partitions=[
                    pb.FetchRequest.PartitionFetch(
                        partition=partition,
                        fetch_offset=offset,
                        partition_max_bytes=partition_max_bytes,
                        current_leader_epoch=epoch,
                    )
                    for partition, offset in wanted.items()
                ],
            )
            for name, wanted in offsets.items()
        ]
        return pb.FetchRequest(
            replica_id=-1, max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, topics=topics
        )

    @staticmethod
    def offsets_in(records: bytes) -> list[range]:
        """Return the offset ranges of the batches in ``records``."""
        return [range(header.base_offset, header.next_offset) for _, header in scan_headers(records)]


@pytest.fixture
def calls_to() -> Iterator[Callable[[str], Calls]]:
    """Return a function that makes ``Calls`` to an address. The calls are closed after the test."""
    opened: list[Calls] = []

    def connect(address: str) -> Calls:
        opened.append(Calls(address))
        return opened[-1]

    yield connect
    for calls in opened:
        calls.channel.close()


@pytest.fixture
def calls(module_broker: EmbeddedBroker, calls_to: Callable[[str], Calls]) -> Calls:
    """Return calls to a broker that the module's tests share."""
    return calls_to(module_broker.bootstrap_servers)


@pytest.fixture(scope="module")
def admin(module_broker: EmbeddedBroker) -> Iterator[Admin]:
    """Return an admin client of the broker that the module's tests share."""
    with Admin(module_broker.bootstrap_servers) as client:
        yield client


@pytest.fixture(scope="module")
def new_model(module_broker: EmbeddedBroker, admin: Admin) -> Iterator[ModelFactory]:
    """Return a function that creates topics at that broker, each with a list model of its records."""
    with ModelFactory(module_broker.bootstrap_servers, admin) as create:
        yield create


@pytest.fixture(scope="module")
def filled(new_model: ModelFactory) -> Model:
    """Create such a topic of three partitions, one of them with most of the records."""
    model = new_model(3)
    for _ in range(8):
        for partition, count in [(0, 150), (1, 30), (2, 7)]:
            model.append(partition, count)
    return model


@pytest.fixture
def group(module_broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Iterator[Group]:
    """Create a group for one test at that broker. Its topic has the same name."""
    made = Group(module_broker, re.sub(r"\W+", "-", request.node.name))
    yield made
    made.close()


@pytest.fixture
def topic() -> str:
    """Return a topic name that no other test uses."""
    return f"topic-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return the Spark session of all tests.

    A process has one JVM, and the first session decides which JARs that loads.
    """
    with both_compilers():
        running = session(
            "millrace tests",
            master="local[2]",
            profile="low-latency",
            checkpoint_root=tmp_path_factory.getbasetemp(),
            **{"spark.ui.enabled": False},
        )
    running.sparkContext.setLogLevel("OFF")
    yield running
    running.stop()


@pytest.fixture
def reader(
    broker: EmbeddedBroker, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reader]:
    """Return a user who runs the blocks of the documents."""
    yield Reader(broker, spark, tmp_path, monkeypatch)
    for query in spark.streams.active:
        query.stop()
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in (getattr(module, "__file__", None) or ""):
            del sys.modules[name]


@pytest.fixture
def page_reader(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reader]:
    """Return a user who runs the blocks of a page without Spark, at a broker of the page's own."""
    with EmbeddedBroker(tmp_path_factory.mktemp("page")) as alone:
        yield Reader(alone, None, tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """Start a real ZooKeeper on loopback for all tests. Each test uses its own chroot, directly below the root."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReplicaCluster]:
    """Start three brokers whose controller is the test. Modules with another kind of cluster have their own fixture."""
    with ReplicaCluster(tmp_path) as running:
        yield running


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ReplicaCluster]:
    """Start two brokers whose controller is the test."""
    with ReplicaCluster(tmp_path, brokers=2) as running:
        yield running
