"""Tests of the clients' transports, and of the search for listeners.

Callers see no difference.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import Admin, Consumer, Producer
from millrace.errors import (
    BrokerUnavailableError,
    ClientClosedError,
    EnvironmentProblemError,
    InvalidConfigError,
    InvalidRequestError,
    MessageTooLargeError,
    UnknownTopicOrPartitionError,
    WakeupError,
)
from millrace_broker.testing import EmbeddedBroker

from .frame_calls import framing
from .waiting import AN_HOUR_MS, STALL_S, eventually


def _frames(broker: EmbeddedBroker) -> int:
    """Return the number of open connections in Kafka's framing at the broker."""
    return len(framing(broker.server)._connections)


@pytest.fixture(params=["auto", "grpc"])
def transport(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def config(module_broker: EmbeddedBroker, transport: str) -> dict[str, Any]:
    return {"bootstrap.servers": module_broker.bootstrap_servers, "transport": transport}


@pytest.fixture
def ready(config: dict[str, Any], topic: str) -> str:
    with Admin(config) as admin:
        admin.create_topic(topic, partitions=2, configs={"max.message.bytes": "40000000"})
    return topic


# --- the same over both -----------------------------------------------------------------------------------------------


def test_the_transport_is_the_one_that_was_asked_for(tmp_path: Path, transport: str) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        with Admin({"bootstrap.servers": broker.bootstrap_servers, "transport": transport}) as admin:
            admin.list_topics()
            eventually(lambda: _frames(broker) == (transport == "auto"))
        eventually(lambda: _frames(broker) == 0)


def test_an_unknown_transport_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="transport"):
        Admin({"bootstrap.servers": "localhost:1", "transport": "pigeon"})


def test_records_large_and_small_come_back_in_order(config: dict[str, Any], ready: str) -> None:
    values = [os.urandom(size) for size in (0, 10, 70_000, 9_000_000, 300_000, 12_000_000, 1)]
    with Producer({**config, "max.request.size": 30_000_000}) as producer:
        for value in values:
            producer.send(ready, value, partition=0)
    with Consumer({**config, "auto.offset.reset": "earliest", "direct.reads": "never"}) as consumer:
        consumer.assign(consumer.partitions_for(ready))
        received: list[Any] = []
        while len(received) < len(values):
            received += [record.value for record in consumer.poll(20_000)]
    assert received == values


def test_errors_are_of_the_same_class(config: dict[str, Any], ready: str) -> None:
    with Admin(config) as admin, pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
        admin.describe_topic("nowhere")
    with Producer({**config, "max.request.size": 200_000_000}) as producer:
        error = producer.send(ready, bytes(120_000_000)).exception(STALL_S)
        assert isinstance(error, MessageTooLargeError)
        assert producer.send(ready, b"x").result(STALL_S).offset >= 0


def test_a_wake_up_ends_a_poll_and_the_next_continues(config: dict[str, Any], ready: str) -> None:
    with Consumer({**config, "auto.offset.reset": "earliest"}) as consumer, Producer(config) as producer:
        consumer.assign(consumer.partitions_for(ready))
        for number in range(3):
            waker = threading.Timer(0.1, consumer.wakeup)
            waker.start()
            with pytest.raises(WakeupError):
                consumer.poll(30_000)
            waker.join()
            producer.send(ready, str(number)).result(STALL_S)
            assert [record.value for record in consumer.poll(30_000)] == [str(number).encode()]


def test_closing_ends_a_poll(config: dict[str, Any], ready: str) -> None:
    consumer = Consumer(config)
    consumer.assign(consumer.partitions_for(ready))
    threading.Timer(0.2, consumer._connections.close).start()
    with pytest.raises(ClientClosedError):
        consumer.poll(30_000)
    consumer.close()


def test_a_long_poll_ends_with_the_first_record(config: dict[str, Any], ready: str) -> None:
    with Consumer({**config, "fetch.max.wait.ms": AN_HOUR_MS}) as consumer, Producer(config) as producer:
        partitions = consumer.partitions_for(ready)
        consumer.assign(partitions)
        consumer.seek_to_end(*partitions)
        assert not list(consumer.poll(100))
        threading.Timer(0.2, lambda: producer.send(ready, b"late")).start()
        assert [record.value for record in consumer.poll(STALL_S * 1000)] == [b"late"]


def test_groups_and_transactions_work_over_each_transport(config: dict[str, Any], ready: str) -> None:
    group = {**config, "group.id": f"group-{ready}", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    with Producer({**config, "transactional.id": f"id-{ready}"}) as producer:
        producer.init_transactions()
        with producer.transaction():
            for number in range(10):
                producer.send(ready, str(number))
        producer.begin_transaction()
        producer.send(ready, b"aborted")
        producer.abort_transaction()
    with Consumer({**group, "isolation.level": "read_committed"}) as consumer:
        consumer.subscribe([ready])
        values: list[Any] = []
        while len(values) < 10:
            values += [record.value for record in consumer.poll(20_000)]
        consumer.commit()
        committed = consumer.committed(consumer.assignment())
    assert sorted(values) == [str(number).encode() for number in range(10)]
    assert sum(place.offset for place in committed.values()) >= 10


def test_threads_share_a_client(config: dict[str, Any], ready: str) -> None:
    with Producer(config) as producer, Admin(config) as admin:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for at in range(50):
                    producer.send(ready, f"{number}-{at}").result(STALL_S)
                    admin.describe_topic(ready)
            except BaseException as error:  # noqa: BLE001 - raised below
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(STALL_S)
        assert not failures


def test_callbacks_come_in_a_thread_of_the_producers(config: dict[str, Any], ready: str) -> None:
    # A caller that waits for a result may hold a lock that a callback needs.
    held, called = threading.Lock(), []

    def on_delivery(metadata: Any, error: Any) -> None:
        with held:
            called.append(threading.current_thread())

    with Producer(config) as producer:
        producer.send(ready, b"x").result(STALL_S)
        for number in range(20):
            with held:
                producer.send(ready, b"x", on_delivery=on_delivery).result(STALL_S)
            eventually(lambda count=number + 1: len(called) == count)  # type: ignore[misc]
        assert threading.current_thread() not in called


# --- discovery --------------------------------------------------------------------------------------------------------


def test_an_address_for_grpc_is_refused_with_the_right_one(module_broker: EmbeddedBroker) -> None:
    with Admin(module_broker.grpc_address) as admin, pytest.raises(InvalidConfigError) as caught:
        admin.list_topics()
    assert f"set bootstrap.servers={module_broker.bootstrap_servers}, or transport=grpc" in caught.value.message
    config = {"bootstrap.servers": module_broker.grpc_address, "transport": "grpc"}
    with Admin(config) as admin:
        assert admin.describe_cluster().cluster_id == module_broker.server.cluster_id


def test_a_server_of_another_protocol_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(100)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        config = {"bootstrap.servers": f"127.0.0.1:{port}", "socket.connection.setup.timeout.ms": 2000}
        with Admin(config) as admin, pytest.raises(InvalidRequestError, match="listener of another protocol"):
            admin.list_topics()
        server.shutdown(socket.SHUT_RDWR)
    serving.join(STALL_S)


def test_a_live_broker_is_asked_although_the_brokers_before_it_do_not_answer(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(2)]
        broker = stack.enter_context(EmbeddedBroker(tmp_path / "data"))
        servers = ",".join([*(f"127.0.0.1:{port}" for port in silent), broker.bootstrap_servers])
        options = {"socket.connection.setup.timeout.ms": 2000}
        admin = stack.enter_context(Admin({"bootstrap.servers": servers, **options}))
        assert [node.port for node in admin.describe_cluster().brokers] == [broker.port]


def test_a_client_learns_the_address_of_the_listener_by_which_it_came(tmp_path: Path) -> None:
    listeners = "INTERNAL://127.0.0.1:0,EXTERNAL://127.0.0.1:0,GRPC://127.0.0.1:0,FOREIGN://127.0.0.1:0"
    options = {"listeners": listeners, "listener.protocol.map": "GRPC:grpc,FOREIGN:grpc"}
    with EmbeddedBroker(tmp_path / "data", options=options) as broker:
        ports = broker.server.ports
        assert len(set(ports.values())) == 4
        for name in ("INTERNAL", "EXTERNAL"):
            with Admin(f"127.0.0.1:{ports[name]}") as admin:
                assert [each.port for each in admin.describe_cluster().brokers] == [ports[name]]
        for name in ("GRPC", "FOREIGN"):
            with Admin({"bootstrap.servers": f"127.0.0.1:{ports[name]}", "transport": "grpc"}) as admin:
                assert [each.port for each in admin.describe_cluster().brokers] == [ports[name]]


def test_a_broker_without_a_listener_for_grpc_is_reached_by_frames_alone(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data", options={"listeners": "PLAINTEXT://127.0.0.1:0"}) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=1)
            assert [topic.name for topic in admin.list_topics()] == ["t"]
            with Producer(broker.bootstrap_servers) as producer:
                end = producer.send("t", b"x").result(STALL_S).offset + 1
            assert b"".join(admin.read_range("t", 0, 0, end))
        config = {"bootstrap.servers": broker.bootstrap_servers, "transport": "grpc"}
        with Admin(config) as admin, pytest.raises(InvalidConfigError, match="GRPC://host:port"):
            admin.list_topics()


def test_a_broker_that_comes_back_with_another_port_for_grpc_is_found(tmp_path: Path, transport: str) -> None:
    with EmbeddedBroker(tmp_path / "data") as first:
        port = first.port
    config = {"bootstrap.servers": f"127.0.0.1:{port}", "retry.backoff.ms": 10, "transport": transport}
    with (
        EmbeddedBroker(tmp_path / "data", port=port) as broker,
        Admin(config) as admin,
        Producer(config) as producer,
        Consumer({**config, "auto.offset.reset": "earliest"}) as consumer,
    ):
        admin.create_topic("t", partitions=1)
        consumer.assign(consumer.partitions_for("t"))
        ports = set()
        for number in range(3):
            ports.add(broker.grpc_address)
            producer.send("t", str(number)).result(STALL_S)
            assert [record.value for record in consumer.poll(30_000)] == [str(number).encode()]
            broker.stop()
            broker.start()
        producer.send("t", b"last").result(STALL_S)
        assert [topic.name for topic in admin.list_topics()] == ["t"]
    assert len(ports) > 1


def test_a_process_that_was_forked_has_connections_of_its_own(module_broker: EmbeddedBroker, topic: str) -> None:
    with Admin(module_broker.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=1)
        before = admin.describe_topic(topic)
        child = os.fork()
        if not child:
            status = 1
            try:
                for _ in range(20):
                    Admin.describe_topic(admin, topic)
                status = 0
            finally:
                os._exit(status)
        for _ in range(20):
            assert admin.describe_topic(topic) == before
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_grpc_in_a_process_that_was_forked_is_refused(module_broker: EmbeddedBroker) -> None:
    child = os.fork()
    if not child:
        status = 1
        try:
            with Admin({"bootstrap.servers": module_broker.bootstrap_servers, "transport": "grpc"}) as admin:
                try:
                    admin.list_topics()
                except EnvironmentProblemError as error:
                    status = 0 if "GRPC_ENABLE_FORK_SUPPORT=1" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_programs_start_while_grpc_works(
    module_broker: EmbeddedBroker, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    # PySpark starts its JVM with preexec_fn, which forks instead of vforking.
    over = threading.Event()
    with Admin({"bootstrap.servers": module_broker.bootstrap_servers, "transport": "grpc"}) as admin:
        admin.create_topic(topic, partitions=1)

        def call() -> None:
            while not over.is_set():
                admin.describe_topic(topic)

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            ends = [subprocess.Popen(["true"], preexec_fn=lambda: None).wait(STALL_S) for _ in range(60)]
        finally:
            over.set()
            for thread in threads:
                thread.join()
    assert not any(ends)
    assert "fork" not in capfd.readouterr().err


# --- kill -9 ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Any]:
    """Return a function that starts brokers in processes of their own, on the same data and port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running: list[subprocess.Popen[str]] = []

    def start() -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "millrace.cli.main", "broker", "--data-dir", str(tmp_path / "data")]
        made = subprocess.Popen(
            [*command, "--listen", f"127.0.0.1:{port}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        running.append(made)
        assert made.stdout is not None
        while "listens at" not in made.stdout.readline():
            assert made.poll() is None
        return made, f"127.0.0.1:{port}"

    yield start
    for each in running:
        each.kill()
        each.wait()
        assert each.stdout is not None
        each.stdout.close()


def test_clients_continue_after_their_broker_is_killed_during_calls(process: Any, transport: str) -> None:
    broker, address = process()
    config = {"bootstrap.servers": address, "transport": transport, "retry.backoff.ms": 20}
    with (
        Admin({**config, "socket.connection.setup.timeout.ms": 300}) as admin,
        Producer(config) as producer,
        Consumer({**config, "auto.offset.reset": "earliest"}) as consumer,
    ):
        admin.create_topic("t", partitions=1)
        consumer.assign(consumer.partitions_for("t"))
        producer.send("t", b"before").result(STALL_S)
        assert [record.value for record in consumer.poll(20_000)] == [b"before"]
        sent = [producer.send("t", str(number)) for number in range(1000)]
        broker.send_signal(signal.SIGKILL)  # one fetch is parked there, and records are in flight
        broker.wait()
        with pytest.raises(BrokerUnavailableError, match="no broker answers"):
            admin.list_topics()
        process()
        for future in sent:
            future.result(STALL_S)
        received: list[Any] = []
        while len(received) < 1000:
            received += [record.value for record in consumer.poll(20_000)]
        assert received == [str(number).encode() for number in range(1000)]
