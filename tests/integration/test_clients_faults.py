"""Tests of broken connections and broker restarts.

Clients lose, duplicate and reorder no records.
"""

import asyncio
import contextlib
import random
import select
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millrace.clients import Admin, Consumer, Producer, ShareConsumer, TopicPartition
from millrace.clients.aio import AsyncProducer
from millrace.errors import (
    AbortableTransactionError,
    BrokerUnavailableError,
    BufferExhaustedError,
    ClientClosedError,
    RequestTimedOutError,
)
from millrace_broker.testing import EmbeddedBroker

from .waiting import AN_HOUR_MS, STALL_S, eventually


class Proxy:
    """A proxy between clients and both ports of a broker. It can drop answers and cut connections."""

    def __init__(self, transport: str) -> None:
        self.transport = transport
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.port, self.grpc_port = (listener.getsockname()[1] for listener in self._listeners)
        self.target: EmbeddedBroker | None = None
        self.swallow_answers = False
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._opening = threading.Lock()
        """No pair is half open while it is held."""
        for listener in self._listeners:
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client, listener), daemon=True).start()

    def _open(self, client: socket.socket, listener: socket.socket) -> tuple[socket.socket, socket.socket] | None:
        """Connect a client to the present target, if the target accepts connections."""
        with self._opening:
            port = 1
            if self.target is not None:
                server = self.target.server
                port = server.port if listener is self._listeners[0] else server.grpc_address.port
            try:
                pair = (client, socket.create_connection(("127.0.0.1", port), STALL_S))
            except OSError:
                client.close()
                return None
            pair[1].settimeout(None)
            self._pairs.add(pair)
            return pair

    def _serve(self, client: socket.socket, listener: socket.socket) -> None:
        pair = self._open(client, listener)
        if pair is None:
            return
        broker = pair[1]
        with contextlib.suppress(OSError, ValueError):
            while True:
                for readable in select.select(pair, [], [])[0]:
                    data = readable.recv(65536)
                    if not data:
                        raise ConnectionResetError
                    if readable is client:
                        broker.sendall(data)
                    elif not self.swallow_answers:
                        client.sendall(data)
        self._cut(pair)

    def _cut(self, pair: tuple[socket.socket, socket.socket]) -> None:
        self._pairs.discard(pair)
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def cut_all(self) -> None:
        """Cut the connections to the present target, and to earlier ones."""
        with self._opening:
            pairs = list(self._pairs)
        for pair in pairs:
            self._cut(pair)

    def close(self) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.cut_all()


@pytest.fixture(params=["auto", "grpc"])
def proxy(request: pytest.FixtureRequest) -> Iterator[Proxy]:
    made = Proxy(request.param)
    yield made
    made.close()


@pytest.fixture
def proxied_broker(tmp_path: Path, proxy: Proxy) -> Iterator[EmbeddedBroker]:
    options = {
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port},GRPC://127.0.0.1:{proxy.grpc_port}",
    }
    with EmbeddedBroker(tmp_path / "broker", options=options) as broker:
        proxy.target = broker
        yield broker


def _config(proxy: Proxy, **options: object) -> dict[str, object]:
    named = {name.replace("_", "."): value for name, value in options.items()}
    common = {"bootstrap.servers": f"127.0.0.1:{proxy.port}", "transport": proxy.transport, "retry.backoff.ms": 10}
    return {**common, **named}


def _read_all(proxy: Proxy, topic: str) -> list[bytes]:
    values: list[bytes] = []
    with Consumer(_config(proxy, auto_offset_reset="earliest")) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        ends = consumer.end_offsets(consumer.assignment())
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            values += [record.value for record in consumer.poll(1000)]  # type: ignore[misc]
    return values


def _end_offset(server: EmbeddedBroker, topic: str) -> int:
    log = server.server
    import grpc

    from millrace.protocol import millrace_pb2 as pb
    from millrace.protocol.millrace_pb2_grpc import BrokerStub

    with grpc.insecure_channel(str(log.grpc_address)) as channel:
        times = [pb.ListOffsetsRequest.PartitionTime(partition=0, timestamp=-1)]
        topics = [pb.ListOffsetsRequest.TopicTimes(name=topic, partitions=times)]
        response = BrokerStub(channel).ListOffsets(pb.ListOffsetsRequest(topics=topics))
    return response.topics[0].partitions[0].offset


def test_lost_answers_do_not_duplicate_records(proxied_broker: EmbeddedBroker, proxy: Proxy) -> None:
    with Admin(_config(proxy)) as admin:
        admin.create_topic("once", partitions=1)
    with Producer(_config(proxy, linger_ms=5)) as producer:
        producer.send("once", b"0").result(STALL_S)
        for round_number in range(1, 4):
            proxy.swallow_answers = True
            reached = _end_offset(proxied_broker, "once")
            future = producer.send("once", b"%d" % round_number)
            after = [producer.send("once", b"%d.%d" % (round_number, n)) for n in range(3)]
            eventually(lambda: _end_offset(proxied_broker, "once") > reached or future.done())  # noqa: B023
            proxy.cut_all()
            proxy.swallow_answers = False
            assert future.result(STALL_S).offset == (round_number - 1) * 4 + 1
            assert [late.result(STALL_S).offset for late in after] == [(round_number - 1) * 4 + 2 + n for n in range(3)]
    expected = [b"0"] + [value for n in (1, 2, 3) for value in (b"%d" % n, b"%d.0" % n, b"%d.1" % n, b"%d.2" % n)]
    assert _read_all(proxy, "once") == expected


def test_a_table_survives_broken_connections(proxied_broker: EmbeddedBroker, proxy: Proxy) -> None:
    with Admin(_config(proxy)) as admin:
        admin.create_topic("many", partitions=4)
    stop = threading.Event()

    def cut_now_and_then() -> None:
        while not stop.wait(0.05):
            proxy.cut_all()

    values = [b"%06d" % n for n in range(20_000)]
    cutter = threading.Thread(target=cut_now_and_then)
    with Producer(_config(proxy, batch_size=2_000, linger_ms=1, socket_connection_setup_timeout_ms=60_000)) as producer:
        producer.partitions_for("many")
        cutter.start()
        try:
            batches = producer.send_table("many", {"value": values}).result(STALL_S)
        finally:
            stop.set()
            cutter.join()
    assert sum(batch.num_records for batch in batches) == len(values)
    assert sorted(_read_all(proxy, "many")) == values


def test_producer_and_consumer_survive_a_restart(proxied_broker: EmbeddedBroker, proxy: Proxy) -> None:
    with Admin(_config(proxy)) as admin:
        admin.create_topic("restarted", partitions=1)
    consumer = Consumer(_config(proxy, auto_offset_reset="earliest"))
    consumer.assign(consumer.partitions_for("restarted"))
    with Producer(_config(proxy)) as producer, consumer:
        producer.send("restarted", b"before").result(STALL_S)
        assert [record.value for record in consumer.poll(10_000)] == [b"before"]
        proxied_broker.stop()
        proxy.target = None
        proxy.cut_all()
        future = producer.send("restarted", b"during")
        assert not consumer.poll(200)
        proxied_broker.start()
        proxy.target = proxied_broker
        assert future.result(STALL_S).offset == 1
        records: list[bytes] = []
        eventually(lambda: bool(records.extend(record.value for record in consumer.poll(500)) or records))  # type: ignore[func-returns-value, misc]
        assert records == [b"during"]


def test_an_outage_longer_than_a_look_up_loses_no_accepted_record(proxied_broker: EmbeddedBroker, proxy: Proxy) -> None:
    with Admin(_config(proxy)) as admin:
        admin.create_topic("outage", partitions=1)
    with Producer(_config(proxy, socket_connection_setup_timeout_ms=200)) as producer:
        producer.send("outage", b"before").result(STALL_S)
        proxy.target = None
        proxy.cut_all()
        futures = [producer.send("outage", b"0")]
        eventually(lambda: producer._metadata.known("outage") is None, "the first attempt to fail")
        for number in (1, 2):
            futures.append(producer.send("outage", b"%d" % number))
            with pytest.raises(RequestTimedOutError):
                producer.flush(0)
        proxy.target = proxied_broker
        assert [future.result(STALL_S).offset for future in futures] == [1, 2, 3]


def test_an_outage_refuses_no_record_of_a_known_topic(proxied_broker: EmbeddedBroker, proxy: Proxy) -> None:
    with Admin(_config(proxy)) as admin:
        admin.create_topic("known", partitions=2)
        admin.create_topic("known-typed", partitions=2, schema="id INT")
    limits = {"socket_connection_setup_timeout_ms": 200, "metadata_max_age_ms": 1}
    with Producer(_config(proxy, **limits)) as producer:
        for number in (0, 1):
            producer.send("known", b"before", partition=number).result(STALL_S)
        producer.send("known-typed", {"id": 0}, partition=0).result(STALL_S)
        proxy.target = None
        proxy.cut_all()
        futures = [
            producer.send("known", b"1", partition=0),
            producer.send("known", b"2", partition=0, key=b"key"),
            producer.send("known", b"3", partition=0, headers={"name": b"value"}),
            producer.send("known", b"4", partition=0, timestamp_ms=7),
            producer.send("known-typed", {"id": 1}, partition=0, headers={"name": b"value"}),
        ]
        batch = producer.send_batch("known", [b"5", b"6"], partition=0)
        table = producer.send_table("known", {"value": [b"7", b"8"]}, partition=0)
        with pytest.raises(BrokerUnavailableError):
            producer.send("unknown", b"x")
        proxy.target = proxied_broker
        assert [future.result(STALL_S).offset for future in futures] == [1, 2, 3, 4, 1]
        assert [place.offset for place in batch.result(STALL_S)] == [5, 6]
        assert [(place.base_offset, place.num_records) for place in table.result(STALL_S)] == [(7, 2)]


def test_an_outage_refuses_no_record_of_an_asyncio_producer(proxied_broker: EmbeddedBroker, proxy: Proxy) -> None:
    with Admin(_config(proxy)) as admin:
        admin.create_topic("known", partitions=1)

    async def work() -> None:
        limits = {"socket_connection_setup_timeout_ms": 200, "metadata_max_age_ms": 1}
        async with AsyncProducer(_config(proxy, **limits)) as producer:
            await producer.send_and_wait("known", b"before")
            proxy.target = None
            proxy.cut_all()
            futures = [await producer.send("known", b"x", headers={"name": b"value"}, partition=0) for _ in range(2)]
            proxy.target = proxied_broker
            assert [(await future).offset for future in futures] == [1, 2]

    asyncio.run(asyncio.wait_for(work(), STALL_S))


def test_reading_a_range_continues_after_a_cut(proxied_broker: EmbeddedBroker, proxy: Proxy) -> None:
    with Admin(_config(proxy)) as admin:
        admin.create_topic("ranged", partitions=1)
        with Producer(_config(proxy, batch_size=100_000)) as producer:
            producer.send_table("ranged", {"value": [b"x" * 1000] * 8000}).result(STALL_S)
        received = []
        for number, chunk in enumerate(admin.read_range("ranged", 0, 0, 8000)):
            received.append(chunk)
            if number == 1:
                proxy.cut_all()
    import pyarrow as pa

    from millrace.records import decode_range

    offsets = [
        offset
        for batch in decode_range(pa.py_buffer(b"".join(received)), 0, 8000, lambda schema_id: pa.schema([]))
        for offset in batch.offsets().to_pylist()
    ]
    assert offsets == list(range(8000))


def test_records_that_cannot_be_delivered_fail_in_time(proxied_broker: EmbeddedBroker, proxy: Proxy) -> None:
    with Admin(_config(proxy)) as admin:
        admin.create_topic("late", partitions=1)
    limits = {"delivery_timeout_ms": 600, "request_timeout_ms": 300, "socket_connection_setup_timeout_ms": 200}
    with Producer(_config(proxy, **limits)) as producer:
        producer.send("late", b"fine").result(STALL_S)
        proxy.swallow_answers = True
        stuck = producer.send("late", b"no answer").exception(STALL_S)
        # The last attempt has no answer to the greeting of its connection, or to the request.
        assert isinstance(stuck, RequestTimedOutError | BrokerUnavailableError)
        assert "delivery.timeout.ms=600; the log may contain them" in str(stuck)
        proxy.target = None
        proxy.swallow_answers = False
        proxy.cut_all()
        away = producer.send("late", b"no broker").exception(STALL_S)
        assert isinstance(away, BrokerUnavailableError)
        proxy.target = proxied_broker
        # The producer continues under a new producer id after a reconnect, which may take longer than a record's
        # timeout.
        eventually(lambda: _is_delivered(producer))


def test_a_commit_and_a_close_end_in_time_without_an_answer(proxied_broker: EmbeddedBroker, proxy: Proxy) -> None:
    with Admin(_config(proxy)) as admin:
        admin.create_topic("committed", partitions=1)
    options = {"group_id": "g", "request_timeout_ms": AN_HOUR_MS, "default_api_timeout_ms": AN_HOUR_MS}
    with ThreadPoolExecutor(1) as pool:
        consumer = Consumer(_config(proxy, **options))
        consumer.assign([("committed", 0)])
        consumer.commit({("committed", 0): 0})
        proxy.swallow_answers = True
        commit = pool.submit(consumer.commit, {TopicPartition("committed", 0): 0}, 200)
        assert isinstance(commit.exception(STALL_S), RequestTimedOutError | BrokerUnavailableError)
        pool.submit(consumer.close, 200).result(STALL_S)


def _is_delivered(producer: Producer) -> bool:
    try:
        return producer.send("late", b"again").result(STALL_S).offset >= 1
    except BrokerUnavailableError:
        return False


def _send_many(producer: Producer, count: int) -> None:
    for _ in range(count):
        producer.send("full", b"x" * 1000)


def test_a_full_buffer_blocks_and_then_fails(proxied_broker: EmbeddedBroker, proxy: Proxy) -> None:
    with Admin(_config(proxy)) as admin:
        admin.create_topic("full", partitions=1)
    limits = {"buffer_memory": 100_000, "batch_size": 10_000, "max_block_ms": 200}
    producer = Producer(_config(proxy, **limits))
    producer.send("full", b"x").result(STALL_S)
    proxy.swallow_answers = True
    with pytest.raises(BufferExhaustedError, match=r"buffer\.memory=100000"):
        producer.send_table("full", {"value": [b"x" * 1000] * 1000})
    with pytest.raises(BufferExhaustedError):
        _send_many(producer, 1000)
    producer.close(timeout=0.1)


def test_closing_without_waiting_fails_what_is_left(proxied_broker: EmbeddedBroker, proxy: Proxy) -> None:
    with Admin(_config(proxy)) as admin:
        admin.create_topic("abandoned", partitions=1)
    producer = Producer(_config(proxy))
    producer.send("abandoned", b"x").result(STALL_S)
    proxy.swallow_answers = True
    futures = [producer.send("abandoned", b"y") for _ in range(5)]
    producer.close(timeout=0)
    assert {type(future.exception(STALL_S)) for future in futures} == {ClientClosedError}


def test_closing_without_waiting_ends_a_look_up(proxied_broker: EmbeddedBroker, proxy: Proxy) -> None:
    with Admin(_config(proxy)) as admin:
        admin.create_topic("sought", partitions=1)
    timeouts = ("request_timeout_ms", "delivery_timeout_ms", "socket_connection_setup_timeout_ms")
    producer = Producer(_config(proxy, **dict.fromkeys(timeouts, AN_HOUR_MS)))
    producer.send("sought", b"x").result(STALL_S)
    proxy.target = None
    proxy.cut_all()
    future = producer.send("sought", b"y")
    eventually(lambda: producer._metadata.known("sought") is None, "a look-up of the leader")
    closing = threading.Thread(target=producer.close, args=(0,), daemon=True)
    closing.start()
    closing.join(STALL_S)
    assert not closing.is_alive()
    assert isinstance(future.exception(STALL_S), ClientClosedError)


@pytest.mark.parametrize("hangs", ["the acknowledgement", "the heartbeat"])
def test_a_share_consumer_closes_in_time_although_the_broker_hangs(
    proxied_broker: EmbeddedBroker, proxy: Proxy, hangs: str
) -> None:
    with Admin(_config(proxy)) as admin, Producer(_config(proxy)) as producer:
        admin.create_topic("shared", partitions=1)
        admin.alter_configs("sharers", {"share.auto.offset.reset": "earliest"}, resource="group")
        producer.send("shared", b"x").result(STALL_S)
    timeouts = dict.fromkeys(("request_timeout_ms", "default_api_timeout_ms"), AN_HOUR_MS)
    consumer = ShareConsumer(_config(proxy, group_id="sharers", **timeouts))
    consumer.subscribe("shared")
    eventually(lambda: list(consumer.poll(200)), "a record")
    if hangs == "the heartbeat":
        eventually(consumer.commit)
        proxy.swallow_answers = True
        consumer.subscribe(["shared", "another"])  # this sends a heartbeat at once
    proxy.swallow_answers = True
    closed = threading.Event()

    def close() -> None:
        consumer.close(timeout_ms=300)
        closed.set()

    threading.Thread(target=close, daemon=True).start()
    assert closed.wait(STALL_S)


def test_transactions_are_whole_through_lost_answers(proxied_broker: EmbeddedBroker, proxy: Proxy) -> None:
    # Answers to any call are lost, during a transaction or at its end. The transaction counts once or not at all.
    with Admin(_config(proxy)) as admin:
        admin.create_topic("booked", partitions=2)
    stop = threading.Event()
    chance = random.Random(5)

    def lose_answers() -> None:
        while not stop.wait(chance.uniform(0.01, 0.06)):
            proxy.swallow_answers = True
            stop.wait(chance.uniform(0.0, 0.03))
            proxy.cut_all()
            proxy.swallow_answers = False

    options = {"transactional_id": "clerk", "socket_connection_setup_timeout_ms": 60_000, "request_timeout_ms": 2_000}
    expected: list[bytes] = []
    loser = threading.Thread(target=lose_answers)
    with Producer(_config(proxy, **options)) as producer:
        producer.init_transactions()
        loser.start()
        try:
            for number in range(15):
                values = [b"%03d.%d" % (number, part) for part in range(4)]
                is_kept = number % 3 != 2
                if _transact(producer, values, is_kept=is_kept):
                    expected += values
        finally:
            stop.set()
            loser.join()
    with Consumer(_config(proxy, auto_offset_reset="earliest", isolation_level="read_committed")) as consumer:
        consumer.assign(consumer.partitions_for("booked"))
        ends = consumer.end_offsets(consumer.assignment())
        found: list[bytes] = []
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            found += [record.value for record in consumer.poll(1000)]  # type: ignore[misc]
    assert sorted(found) == expected
    assert len(expected) >= 20


def _transact(producer: Producer, values: list[bytes], *, is_kept: bool) -> bool:
    """Send values in a transaction. Return False if it was, or had to be, aborted."""
    producer.begin_transaction()
    try:
        futures = [producer.send("booked", value, partition=at % 2) for at, value in enumerate(values)]
        if is_kept:
            producer.commit_transaction()
            assert all(future.done() and future.exception() is None for future in futures)
            return True
    except AbortableTransactionError:
        pass
    producer.abort_transaction()
    return False
