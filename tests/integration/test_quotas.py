"""Tests of quotas with real clients and the command line.

The clients are those of Kafka and of millrace. No listener of these brokers authenticates, so every client is the user
ANONYMOUS. Bytes are counted by the broker, over the broker's own clock.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import confluent_kafka
import pytest

from millrace import errors
from millrace.cli.main import main
from millrace.clients import Admin, Consumer, Producer
from millrace.clients.transport import calls
from millrace.kafka_protocol.calls.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from millrace.kafka_protocol.calls.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.kafka_protocol.calls.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from millrace.kafka_protocol.calls.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.kafka_protocol.calls.metadata import MetadataRequest, MetadataRequestTopic
from millrace.kafka_protocol.calls.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.quotas import QuotaEntity
from millrace.records import Record, build_rows_batch
from millrace_broker.listeners.connection import Connection
from millrace_broker.listeners.connection_states import State
from millrace_broker.listeners.tcp_listener import TcpListener
from millrace_broker.network.sockets import has_hung_up
from millrace_broker.testing import EmbeddedBroker

from .consumer_groups import QUICK_GROUPS
from .documented import Reader
from .kafka_clients import create_topic, producer, read, send
from .kafka_wire import KafkaWire, written
from .quota_use import RATE, RECORD, check_rate, use_of
from .waiting import STALL_S, Stall, eventually

MIB = 2**20
THROTTLING_QUOTA_EXCEEDED = 89
INVALID_REQUEST = 42


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker that tests share. Each test has client ids of its own, and so has its quotas."""
    options = {**QUICK_GROUPS, "metrics.port": "0", "auto.create.topics.enable": "true"}
    with EmbeddedBroker(tmp_path_factory.mktemp("quotas"), options=options) as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: EmbeddedBroker) -> Iterator[Admin]:
    with Admin({"bootstrap.servers": broker.bootstrap_servers, "client.id": "admin"}) as client:
        yield client


@pytest.fixture
def connect(broker: EmbeddedBroker) -> Iterator[Callable[[], KafkaWire]]:
    """Return a function that makes connections, which are closed after the test."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(KafkaWire(broker))


@pytest.fixture
def limit(admin: Admin, topic: str) -> Iterator[Callable[..., str]]:
    """Return a function that sets quotas of a new client id, which it returns."""
    entity = QuotaEntity.of([("client-id", topic)])
    keys: set[str] = set()

    def change(**quotas: float) -> str:
        admin.alter_client_quotas(entity, quotas)
        keys.update(quotas)
        return topic

    yield change
    admin.alter_client_quotas(entity, {}, remove=keys)


# --- produce and consume -----------------------------------------------------------------------------------------


def test_librdkafka_is_throttled_to_its_rate(broker: EmbeddedBroker, topic: str, limit: Callable[..., str]) -> None:
    create_topic(broker, topic)
    client_id = limit(producer_byte_rate=RATE, consumer_byte_rate=RATE)
    throttled: list[float] = []

    def note(event: Any) -> None:
        throttled.append(event.throttle_time)

    servers = {"bootstrap.servers": broker.bootstrap_servers, "client.id": client_id, "throttle_cb": note}
    client = confluent_kafka.Producer({**servers, "batch.size": len(RECORD)})
    began = time.monotonic()
    count = 48
    times: list[float] = []
    for record in [{"value": RECORD}] * count:
        client.produce(topic, on_delivery=lambda error, _: times.append(time.monotonic()), **record)
    stall = Stall("acknowledgements")
    while len(times) < count:
        stall.check(len(times))
        client.poll(0.1)
    check_rate(count * len(RECORD), began, times[-1])
    assert max(throttled) > 0
    assert use_of(broker, client_id, "producer_byte_rate").throttled_s > 0
    options = {"group.id": topic, "fetch.message.max.bytes": 200_000}
    reader = confluent_kafka.Consumer({**servers, **options})
    throttled.clear()
    began = time.monotonic()
    reader.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    got: list[float] = []
    read(reader, count, lambda _: got.append(time.monotonic()))
    reader.close()
    check_rate(count * len(RECORD), began, got[-1])
    assert max(throttled) > 0


@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_a_client_of_millrace_waits_as_its_quota_wants(
    broker: EmbeddedBroker, admin: Admin, topic: str, limit: Callable[..., str], transport: str
) -> None:
    admin.create_topic(topic)
    client_id = limit(producer_byte_rate=RATE, consumer_byte_rate=RATE)
    options = {"bootstrap.servers": broker.bootstrap_servers, "client.id": client_id, "transport": transport}
    count = 48
    began = time.monotonic()
    with Producer({**options, "batch.size": "65536"}) as client:
        for future in [client.send(topic, RECORD) for _ in range(count)]:
            future.result(STALL_S)
    check_rate(count * len(RECORD), began, time.monotonic())
    assert use_of(broker, client_id, "producer_byte_rate").throttled_s > 0
    began = time.monotonic()
    with Consumer({**options, "auto.offset.reset": "earliest", "direct.reads": "never"}) as reader:
        reader.assign([(topic, 0)])
        received = 0
        stall = Stall("records")
        while received < count:
            stall.check(received)
            received += len(reader.poll(1.0))
    check_rate(count * len(RECORD), began, time.monotonic())
    assert use_of(broker, client_id, "consumer_byte_rate").throttled_s > 0


@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_a_throttled_producers_other_calls_go_on(
    broker: EmbeddedBroker,
    admin: Admin,
    topic: str,
    limit: Callable[..., str],
    transport: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "_THROTTLE_S_MAX", 1.0)  # from then on the broker holds the call back
    admin.create_topic(topic)
    options = {
        "bootstrap.servers": broker.bootstrap_servers,
        "client.id": limit(producer_byte_rate=1),
        "transport": transport,
    }
    with Producer(options) as client, Admin(options) as other:
        client.send(topic, RECORD).result(STALL_S)  # after it, the client is throttled for hours
        second = client.send(topic, b"later")
        assert other.describe_topic(topic).name == topic
        assert not second.done()
        limit(producer_byte_rate=100_000_000)
        second.result(STALL_S)


def test_another_client_is_not_delayed(broker: EmbeddedBroker, topic: str, limit: Callable[..., str]) -> None:
    create_topic(broker, topic)
    limited = producer(broker, **{"client.id": limit(producer_byte_rate=1)})
    send(limited, topic, [{"value": RECORD}])
    limited.produce(topic, value=RECORD)
    other = producer(broker, **{"client.id": "another"})
    send(other, topic, [{"value": RECORD}] * 10)
    assert len(limited) == 1  # still muted
    limited.purge()


# --- new connections ---------------------------------------------------------------------------------------------


@pytest.fixture
def fetch(broker: EmbeddedBroker, topic: str) -> FetchRequest:
    """Return a request for the records of the test's topic, which has a megabyte."""
    create_topic(broker, topic)
    send(producer(broker), topic, [{"value": RECORD}] * 16)
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=MIB)
    topics = (FetchTopic(topic=topic, partitions=(partition,)),)
    return FetchRequest(replica_id=-1, max_wait_ms=10, min_bytes=1, max_bytes=MIB, isolation_level=0, topics=topics)


def connection_of(broker: EmbeddedBroker, wire: KafkaWire) -> Connection | None:
    """Return the broker's end of a connection."""
    listeners = broker.server.listeners.by_name.values()
    found = (each for listener in listeners if isinstance(listener, TcpListener) for each in listener._connections)
    return next((each for each in found if each.client_address.port == wire.port), None)


def fetched(wire: KafkaWire) -> Any:
    return wire.receive(FetchRequest.API_KEY, 4)[1]


def test_fetches_are_held_to_their_rate_if_each_has_a_new_connection(
    broker: EmbeddedBroker, limit: Callable[..., str], fetch: FetchRequest
) -> None:
    data = written(fetch, 4, client_id=limit(consumer_byte_rate=RATE))
    began, received = time.monotonic(), 0
    for _ in range(5):
        with KafkaWire(broker) as wire:
            wire.sock.sendall(data)
            received += (size := len(fetched(wire).responses[0].partitions[0].records))
    check_rate(received - size, began, time.monotonic())  # nobody has waited for the last one


def test_a_call_waits_for_the_debt_of_other_connections(
    broker: EmbeddedBroker, limit: Callable[..., str], fetch: FetchRequest
) -> None:
    data = written(fetch, 4, client_id=limit(consumer_byte_rate=1))
    with KafkaWire(broker) as first, KafkaWire(broker) as second:
        first.sock.sendall(data)
        assert fetched(first).throttle_time_ms == 300_000  # a longer debt is forgotten
        second.sock.sendall(data[:16])  # the client id has not arrived
        eventually(lambda: (own := connection_of(broker, second)) is not None and len(own._rest) == 16)
        second.sock.sendall(data[16:])
        eventually(lambda: (own := connection_of(broker, second)) is not None and own._state is State.MUTED)
        limit(consumer_byte_rate=100_000_000)
        assert fetched(second).throttle_time_ms == 0


def test_a_throttled_producer_with_acks_0_loses_no_batch_when_it_closes_its_connections(
    broker: EmbeddedBroker, admin: Admin, topic: str, limit: Callable[..., str]
) -> None:
    admin.create_topic(topic)
    batch = bytes(build_rows_batch([Record(value=b"v", timestamp_ms=1)]))
    partitions = (PartitionProduceData(index=0, records=batch),)
    request = ProduceRequest(
        acks=0, timeout_ms=1000, topic_data=(TopicProduceData(name=topic, partition_data=partitions),)
    )
    data = written(request, 9, client_id=limit(producer_byte_rate=1))
    muted: list[Connection] = []
    for _ in range(2):  # the first is muted after its first batch, and the second before it
        with KafkaWire(broker) as wire:
            wire.sock.sendall(data)
            eventually(lambda: (own := connection_of(broker, wire)) is not None and own._state is State.MUTED)
            muted += [own for own in [connection_of(broker, wire)] if own is not None]
            wire.sock.sendall(data * 2)
    eventually(lambda: all(has_hung_up(each._transport.get_extra_info("socket")) for each in muted))
    limit(producer_byte_rate=100_000_000)
    eventually(lambda: (log := broker.server.broker.logs.get(topic, 0)) is not None and log.log_end_offset == 6)


# --- time, mutations, connections --------------------------------------------------------------------------------


def metadata(wire: KafkaWire) -> int:
    answer = wire.call(MetadataRequest(topics=None), 12)
    throttle_ms: int = answer.throttle_time_ms
    return throttle_ms


def test_the_processor_time_of_calls_is_limited(admin: Admin, connect: Callable[[], KafkaWire]) -> None:
    entity = QuotaEntity.of([("client-id", "wire")])
    wire = connect()
    assert metadata(wire) == 0
    admin.alter_client_quotas(entity, {"request_percentage": 0.001})
    try:
        began = time.monotonic()
        throttles = [metadata(wire) for _ in range(2)]
        took_s = time.monotonic() - began
    finally:
        admin.alter_client_quotas(entity, {}, remove=["request_percentage"])
    assert 0 < max(throttles) <= 1000
    assert took_s >= throttles[0] / 1000  # the broker does not read a client that does not wait
    assert metadata(wire) == 0


def created(wire: KafkaWire, name: str, version: int) -> tuple[int, int, str | None]:
    request = CreateTopicsRequest(
        topics=(CreatableTopic(name=name, num_partitions=30, replication_factor=1, assignments=(), configs=()),),
        timeout_ms=60_000,
        validate_only=False,
    )
    answer = wire.call(request, version)
    (result,) = answer.topics
    return result.error_code, answer.throttle_time_ms, result.error_message


def test_mutations_beyond_the_quota_are_refused_or_throttle_older_clients(
    admin: Admin, topic: str, connect: Callable[[], KafkaWire]
) -> None:
    entity = QuotaEntity.of([("client-id", "wire")])
    admin.alter_client_quotas(entity, {"controller_mutation_rate": 0.2})
    try:
        code, throttle_ms, _ = created(connect(), f"{topic}-1", 7)
        assert code == 0
        assert throttle_ms > 1000  # 30 partitions are more than eleven windows allow, by more than two minutes
        code, throttle_ms, text = created(connect(), f"{topic}-2", 7)
        assert (code, throttle_ms > 1000) == (THROTTLING_QUOTA_EXCEEDED, True)
        assert "controller_mutation_rate=0.2 is used up: try again in" in (text or "")
        code, throttle_ms, _ = created(connect(), f"{topic}-3", 5)
        assert (code, throttle_ms > 10_000) == (0, True)
    finally:
        admin.alter_client_quotas(entity, {}, remove=["controller_mutation_rate"])


def test_topics_that_metadata_creates_count_as_mutations(
    admin: Admin, topic: str, connect: Callable[[], KafkaWire]
) -> None:
    entity = QuotaEntity.of([("client-id", "wire")])
    admin.alter_client_quotas(entity, {"controller_mutation_rate": 0.05})  # one partition is more than its burst
    try:
        wanted = MetadataRequest(topics=(MetadataRequestTopic(name=topic),), allow_auto_topic_creation=True)
        answer = connect().call(wanted, 9)
        assert (answer.topics[0].error_code, answer.throttle_time_ms > 1000) == (0, True)
    finally:
        admin.alter_client_quotas(entity, {}, remove=["controller_mutation_rate"])


def test_connections_beyond_an_addresss_rate_are_closed(
    broker: EmbeddedBroker, admin: Admin, connect: Callable[[], KafkaWire]
) -> None:
    entity = QuotaEntity.of([("ip", "127.0.0.1")])
    before = broker.server.broker.client_quotas.connections.refused
    admin.alter_client_quotas(entity, {"connection_creation_rate": 1})
    try:
        ends: list[str] = []
        while "closed" not in ends and len(ends) < 200:  # many more than a second has, on any machine
            try:
                metadata(connect())
                ends.append("answered")
            except (EOFError, ConnectionResetError):
                ends.append("closed")
    finally:
        admin.alter_client_quotas(entity, {}, remove=["connection_creation_rate"])
    assert ends[0] == "answered"
    assert "closed" in ends
    assert broker.server.broker.client_quotas.connections.refused > before


def test_connections_beyond_an_addresss_rate_are_refused_over_grpc(broker: EmbeddedBroker, admin: Admin) -> None:
    entity = QuotaEntity.of([("ip", "127.0.0.1")])
    config = {"bootstrap.servers": f"127.0.0.1:{broker.server.ports['GRPC']}", "transport": "grpc"}
    rates = broker.server.broker.client_quotas.connections
    before, connections = rates.refused, 0
    admin.alter_client_quotas(entity, {"connection_creation_rate": 1})
    try:
        while rates.refused == before and connections < 200:  # many more than a second has, on any machine
            with Admin(config) as other:
                other.list_topics()  # a refused one is tried again
            connections += 1
    finally:
        admin.alter_client_quotas(entity, {}, remove=["connection_creation_rate"])
    assert rates.refused > before


# --- administration ----------------------------------------------------------------------------------------------


def altered(wire: KafkaWire, entity: list[tuple[str, str | None]], **quotas: float | None) -> tuple[int, str]:
    entry = AlterClientQuotasRequestEntryData(
        entity=tuple(AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in entity),
        ops=tuple(
            OpData(key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in quotas.items()
        ),
    )
    (result,) = wire.call(AlterClientQuotasRequest(entries=(entry,), validate_only=False), 1).entries
    return result.error_code, result.error_message or ""


def described(wire: KafkaWire, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    request = DescribeClientQuotasRequest(
        components=tuple(
            ComponentData(entity_type=kind, match_type=match, match=name) for kind, match, name in components
        ),
        strict=strict,
    )
    answer = wire.call(request, 1)
    if answer.error_code:
        return answer.error_code
    return {
        tuple((each.entity_type, each.entity_name) for each in entry.entity): {
            each.key: each.value for each in entry.values
        }
        for entry in answer.entries
    }


def test_kafkas_calls_set_show_and_remove_quotas(connect: Callable[[], KafkaWire]) -> None:
    wire = connect()
    both: list[tuple[str, str | None]] = [("client-id", None), ("user", "carol")]
    assert altered(wire, both, producer_byte_rate=1024.0, request_percentage=12.5) == (0, "")
    assert altered(wire, [("user", "carol")], consumer_byte_rate=2048.0) == (0, "")
    quotas = {"producer_byte_rate": 1024.0, "request_percentage": 12.5}
    assert described(wire, ("user", 0, "carol")) == {
        tuple(both): quotas,
        (("user", "carol"),): {"consumer_byte_rate": 2048.0},
    }
    assert described(wire, ("user", 0, "carol"), strict=True) == {(("user", "carol"),): {"consumer_byte_rate": 2048.0}}
    assert described(wire, ("client-id", 1, None)) == {tuple(both): quotas}
    assert described(wire, ("user", 3, None)) == INVALID_REQUEST
    assert described(wire, ("user", 0, None)) == INVALID_REQUEST
    assert described(wire, ("group", 2, None)) == errors.UnsupportedVersionError.code
    assert described(wire, ("", 2, None)) == INVALID_REQUEST
    assert altered(wire, both, producer_byte_rate=None, request_percentage=None) == (0, "")
    assert altered(wire, [("user", "carol")], consumer_byte_rate=None) == (0, "")
    assert described(wire, ("user", 0, "carol")) == {}


def test_answers_have_the_order_of_kafka_whatever_the_order_of_the_request(connect: Callable[[], KafkaWire]) -> None:
    """Client programs compare the lists as they are, so their order is that of Kafka's hash maps."""
    wire = connect()
    entity: list[tuple[str, str | None]] = [("user", "dora"), ("client-id", "reader")]
    quotas: dict[str, float | None] = {"producer_byte_rate": 1.0, "consumer_byte_rate": 2.0, "request_percentage": 3.0}
    entry = AlterClientQuotasRequestEntryData(
        entity=tuple(AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in entity),
        ops=(OpData(key="producer_byte_rate", value=1.0, remove=False),),
    )
    (result,) = wire.call(AlterClientQuotasRequest(entries=(entry,), validate_only=True), 1).entries
    assert [each.entity_type for each in result.entity] == ["client-id", "user"]
    assert altered(wire, entity, **quotas) == (0, "")
    ((found, values),) = described(wire, ("user", 0, "dora"), ("client-id", 0, "reader")).items()
    assert found == (("client-id", "reader"), ("user", "dora"))
    assert list(values) == ["consumer_byte_rate", "request_percentage", "producer_byte_rate"]
    assert altered(wire, entity, **dict.fromkeys(quotas)) == (0, "")


def test_an_impossible_quota_is_refused_with_the_remedy(admin: Admin, connect: Callable[[], KafkaWire]) -> None:
    wire = connect()
    code, text = altered(wire, [("user", "carol")], producer_byte_rate=0.0)
    assert code == INVALID_REQUEST
    assert "producer_byte_rate=0 of user carol is impossible: set a number above 0" in text
    code, text = altered(wire, [("ip", "nowhere")], connection_creation_rate=5.0)
    assert (code, "nowhere is no IP address" in text) == (INVALID_REQUEST, True)
    with pytest.raises(errors.InvalidRequestError, match="is no quota of user carol"):
        admin.alter_client_quotas(QuotaEntity.of([("user", "carol")]), {"connection_creation_rate": 5.0})


def test_the_command_sets_shows_and_removes_quotas(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_BOOTSTRAP_SERVERS", broker.bootstrap_servers)

    def run(*arguments: str, status: int = 0) -> str:
        capsys.readouterr()
        assert main(["configs", *arguments]) == status, capsys.readouterr().err
        captured = capsys.readouterr()
        return captured.out if status == 0 else captured.err

    for names in (["users", "dora"], ["clients", "default"], ["users", "default", "--client", "app"]):
        run("alter", *names, "--add", "producer_byte_rate=1048576000", "--add", "request_percentage=99.5")
        shown = run("describe", *names)
        assert "1048576000" in shown
        assert "99.5" in shown
        run("alter", *names, "--delete", "producer_byte_rate", "--delete", "request_percentage")
        assert "1048576000" not in run("describe", *names)
    run("alter", "ips", "192.0.2.7", "--add", "connection_creation_rate=5")
    assert "new connections a second" in run("describe", "ips", "192.0.2.7")
    run("alter", "ips", "192.0.2.7", "--delete", "connection_creation_rate")
    assert "above 0" in run("alter", "users", "dora", "--add", "producer_byte_rate=0", status=1)
    assert "expected a number" in run("alter", "users", "dora", "--add", "producer_byte_rate=fast", status=2)
    assert "--client is for users" in run("describe", "ips", "192.0.2.7", "--client", "app", status=2)


def test_metrics_have_kafkas_names(broker: EmbeddedBroker, topic: str, limit: Callable[..., str]) -> None:
    create_topic(broker, topic)
    client_id = limit(producer_byte_rate=1)
    client = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": client_id})
    send(client, topic, [{"value": b"v"}])
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics", timeout=STALL_S) as answer:
        text = answer.read().decode()
    assert f'millrace_produce_byte_rate{{client_id="{client_id}",user=""}}' in text
    assert f'millrace_produce_throttle_time_total{{client_id="{client_id}",user=""}}' in text
    assert "millrace_connections_refused_total" in text


def test_the_page_sets_quotas(page_reader: Reader) -> None:
    printed = page_reader.follow("docs/quotas.md")
    assert "changed the quotas of user alice, client-id reports" in printed
    assert "changed the quotas of default ip" in printed
