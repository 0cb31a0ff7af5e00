"""Tests of producer options.

The tests cover lists, callbacks, partitioners, interceptors, limits, and growing topics.
"""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.clients import (
    Admin,
    BatchMetadata,
    Consumer,
    ConsumerRecord,
    Partitioner,
    Producer,
    ProducerInterceptor,
    ProducerRecord,
    RecordMetadata,
    TopicDescription,
)
from millrace.errors import (
    BufferExhaustedError,
    InvalidRecordError,
    InvalidTopicError,
    MillraceError,
    RequestTimedOutError,
    SchemaMismatchError,
    UnknownTopicOrPartitionError,
    UsageError,
)
from millrace_broker.testing import EmbeddedBroker

from .waiting import STALL_S, eventually


@pytest.fixture
def producer(module_broker: EmbeddedBroker) -> Iterator[Producer]:
    with Producer(module_broker.bootstrap_servers) as client:
        yield client


def _read(broker: EmbeddedBroker, topic: str) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    config = {"bootstrap.servers": broker.bootstrap_servers, "auto.offset.reset": "earliest"}
    with Consumer(config) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        ends = consumer.end_offsets(consumer.assignment())
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            records += consumer.poll(1000)
    return records


def test_a_list_of_values_pairs_and_dicts_is_sent_as_records(
    admin: Admin, producer: Producer, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("lists", partitions=3, configs={"retention.ms": "-1"})
    records: list[Any] = [
        b"value",
        "text",
        None,
        ("key", "pair"),
        {"value": b"v", "key": b"k", "headers": {"h": b"x"}, "timestamp_ms": 7, "partition": 2},
        ProducerRecord("lists", b"record", key=b"key"),
    ]
    future = producer.send_batch("lists", records)
    places = future.result(STALL_S)
    assert future.done()
    found = {(record.partition, record.offset): record for record in _read(module_broker, "lists")}
    values = [found[place.partition, place.offset].value for place in places]
    assert values == [b"value", b"text", None, b"pair", b"v", b"record"]
    whole = found[places[4].partition, places[4].offset]
    assert (whole.partition, whole.timestamp_ms, whole.key, whole.headers) == (2, 7, b"k", (("h", b"x"),))
    assert producer.send_batch("lists", []).result(STALL_S) == []
    called = threading.Event()
    producer.send_batch("lists", [b"%d" % number for number in range(50_000)]).add_done_callback(
        lambda done: called.set()
    )
    assert called.wait(STALL_S)


def test_lists_are_checked_before_anything_is_sent(admin: Admin, producer: Producer) -> None:
    admin.create_topic("checked", partitions=1, schema="id INT NOT NULL")
    admin.create_topic("raw", partitions=1)
    for topic, records, message in [
        ("checked", [{"id": 1}, {"id": "x"}], "record 1: column id: 'x' is not a valid INT"),
        ("raw", [b"x", 3], "record 1: the value of a record in an opaque topic is bytes"),
        ("raw", [{"val": 1}], "record 0: topic raw is opaque: a dict has"),
        ("raw", [(1, 2, 3)], "record 0: a tuple is a key and a value"),
        ("raw", [{"value": b"x", "timestamp_ms": -5}], "record 0: timestamp_ms=-5 is out of range"),
    ]:
        with pytest.raises(SchemaMismatchError, match=message):
            producer.send_batch(topic, records)
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 7"):
        producer.send_batch("raw", [b"x"], partition=7)
    producer.flush(STALL_S)
    assert producer.send_batch("raw", [b"x"]).result(STALL_S)[0].offset == 0


def test_an_invalid_record_is_refused_with_the_reason(admin: Admin, producer: Producer) -> None:
    admin.create_topic("particular", partitions=1)
    for options, message in [
        ({"timestamp_ms": "now"}, "timestamp_ms is milliseconds"),
        ({"timestamp_ms": -1}, "timestamp_ms=-1 is out of range"),
        ({"headers": 7}, "headers are a mapping"),
        ({"headers": {1: b"x"}}, "the name of a header is text"),
        ({"headers": {"h": 1}}, "header h"),
        ({"key": 1}, "the key of a record"),
    ]:
        with pytest.raises(SchemaMismatchError, match=message):
            producer.send("particular", b"x", **options)  # type: ignore[arg-type]


def test_a_compacted_topic_takes_no_record_without_a_key(admin: Admin, producer: Producer) -> None:
    admin.create_topic("compacted", partitions=1, configs={"cleanup.policy": "compact"})
    assert isinstance(producer.send("compacted", b"x").exception(STALL_S), InvalidRecordError)
    assert producer.send("compacted", b"x", key=b"k").result(STALL_S).offset == 0


def test_on_delivery_is_called_in_the_order_of_each_partition(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("told", partitions=2, configs={"max.message.bytes": 3000})
    told: list[tuple[int, RecordMetadata | None, MillraceError | None]] = []
    config = {"bootstrap.servers": module_broker.bootstrap_servers, "batch.size": 200}
    with Producer(config) as producer:
        for number in range(500):
            size = 5000 if number == 250 else 20
            producer.send(
                "told", b"x" * size, partition=number % 2, on_delivery=lambda m, e, n=number: told.append((n, m, e))
            )  # type: ignore[misc]
        producer.flush(STALL_S)
        assert len(told) == 500  # flushing waits for callbacks too
    for partition in range(2):
        assert [number for number, _, _ in told if number % 2 == partition] == list(range(partition, 500, 2))
    assert [number for number, _, error in told if error is not None] == [250]
    offsets = [metadata.offset for number, metadata, _ in told if metadata is not None and number % 2]
    assert offsets == list(range(250))


def test_a_callback_may_send_but_not_wait_for_its_own_producer(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("called-back", partitions=1)
    outcomes: list[Any] = []
    called = threading.Event()
    with Producer(module_broker.bootstrap_servers) as producer:

        def call_back(metadata: object, error: object) -> None:
            for call in (producer.flush, producer.close):
                try:
                    call()
                except UsageError as refusal:
                    outcomes.append(refusal)
            outcomes.append(producer.send("called-back", b"from the callback"))
            called.set()

        producer.send("called-back", b"x", on_delivery=call_back)
        assert called.wait(STALL_S)
        assert [type(outcome) for outcome in outcomes[:2]] == [UsageError, UsageError]
        assert outcomes[2].result(STALL_S).offset == 1


def test_partitions_added_meanwhile_are_found(admin: Admin, producer: Producer) -> None:
    admin.create_topic("widened", partitions=1)
    producer.send("widened", b"x").result(STALL_S)
    admin.create_partitions("widened", 3)
    assert producer.send("widened", b"x", partition=2).result(STALL_S).partition == 2
    admin.create_partitions("widened", 4)
    assert producer.send_table("widened", {"value": [b"x"]}, partition=3).result(STALL_S)[0].partition == 3
    admin.create_partitions("widened", 5)
    assert producer.send_batch("widened", [b"x"], partition=4).result(STALL_S)[0].partition == 4
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 5: its partitions are 0 to 4"):
        producer.send("widened", b"x", partition=5)


def test_columns_added_meanwhile_are_found_for_records_too(admin: Admin, producer: Producer) -> None:
    admin.create_topic("columned", partitions=1, schema="id INT")
    for _ in range(2):
        producer.send("columned", {"id": 1}).result(STALL_S)
    with pytest.raises(SchemaMismatchError, match="column name is not in the topic's schema"):
        producer.send("columned", {"id": 1, "name": "x"})
    admin.evolve_schema("columned", "id INT, name STRING")
    for _ in range(2):
        producer.send("columned", {"id": 2, "name": "two"}).result(STALL_S)


class _FirstLetter(Partitioner):
    """A partitioner by the first letter of the value. Values that begin with ``?`` have no partition."""

    def partition(self, record: ProducerRecord, topic: TopicDescription) -> int:
        first = bytes(record.value)[:1]
        return -1 if first == b"?" else first[0] % topic.num_partitions


def test_a_partitioner_class_of_the_user_chooses_partitions(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("chosen", partitions=4)
    config = {"bootstrap.servers": module_broker.bootstrap_servers, "partitioner.class": _FirstLetter}
    with Producer(config) as producer:
        futures = [producer.send("chosen", letter, key=b"ignored") for letter in (b"a", b"b", b"c")]
        assert [future.result(STALL_S).partition for future in futures] == [letter % 4 for letter in b"abc"]
        assert producer.send("chosen", b"a", partition=3).result(STALL_S).partition == 3
        assert producer.send("chosen", b"?").result(STALL_S).partition in range(4)
        batches = producer.send_table("chosen", {"value": [b"a", b"b", b"a"]}).result(STALL_S)
        assert sorted((batch.partition, batch.num_records) for batch in batches) == [(97 % 4, 2), (98 % 4, 1)]
        places = producer.send_batch("chosen", [b"c", b"b"]).result(STALL_S)
        assert [place.partition for place in places] == [99 % 4, 98 % 4]
    round_robin = "millrace.clients.producing.partitioning:RoundRobinPartitioner"
    with Producer({**config, "partitioner.class": round_robin}) as producer:
        futures = [producer.send("chosen", b"x", key=b"same") for _ in range(4)]
        assert sorted(future.result(STALL_S).partition for future in futures) == [0, 1, 2, 3]
    with Producer({"bootstrap.servers": module_broker.bootstrap_servers, "partitioner.ignore.keys": True}) as producer:
        rows = {"key": [b"%d" % n for n in range(20)], "value": [b"x"] * 20}
        assert len(producer.send_table("chosen", rows).result(STALL_S)) == 1


class _Stamping(ProducerInterceptor):
    """An interceptor that adds a header, and records acknowledgements."""

    def __init__(self) -> None:
        self.acknowledged: list[RecordMetadata | BatchMetadata | None] = []
        self.errors: list[MillraceError] = []
        self.is_closed = False

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record._replace(headers=(*record.headers, ("stamped", b"yes")))

    def on_send_table(self, topic: str, rows: Any) -> Any:
        return rows if isinstance(rows, list) else {"value": [*rows["value"], b"added"]}

    def on_acknowledgement(self, metadata: RecordMetadata | BatchMetadata | None, error: MillraceError | None) -> None:
        self.acknowledged.append(metadata)
        if error is not None:
            self.errors.append(error)

    def close(self) -> None:
        self.is_closed = True


class _Broken(ProducerInterceptor):
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise ValueError("broken")

    def on_acknowledgement(self, metadata: object, error: object) -> None:
        raise ValueError("broken")


def test_interceptors_see_everything_and_stop_nothing(
    admin: Admin, module_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topic("seen", partitions=1, configs={"max.message.bytes": 2000})
    stamping = _Stamping()
    config = {"bootstrap.servers": module_broker.bootstrap_servers, "interceptor.classes": [_Broken, stamping]}
    told: list[Any] = []
    with Producer(config) as producer:
        producer.send("seen", b"x", on_delivery=lambda metadata, error: told.append(metadata)).result(STALL_S)
        producer.send_table("seen", {"value": [b"y"]}).result(STALL_S)
        producer.send_batch("seen", [b"z"]).result(STALL_S)
        assert producer.send("seen", b"x" * 5000).exception(STALL_S) is not None
    records = _read(module_broker, "seen")
    assert [record.value for record in records] == [b"x", b"y", b"added", b"z"]
    assert records[0].headers == (("stamped", b"yes"),)
    assert told == stamping.acknowledged[:1]
    assert [type(seen) for seen in stamping.acknowledged] == [RecordMetadata, BatchMetadata, RecordMetadata, type(None)]
    assert len(stamping.errors) == 1
    assert stamping.is_closed
    assert "interceptor _Broken.on_send failed" in caplog.text


def test_with_max_block_ms_0_a_send_fails_instead_of_waiting(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("impatient", partitions=1)
    config = {
        "bootstrap.servers": module_broker.bootstrap_servers,
        "max.block.ms": 0,
        "buffer.memory": 20_000,
        "batch.size": 20_000,
        "linger.ms": 60_000,
        "delivery.timeout.ms": 100_000,
    }
    with Producer(config) as producer:
        with pytest.raises(RequestTimedOutError, match=r"topic impatient has no metadata yet.*try again"):
            producer.send("impatient", b"x")

        def is_taken() -> bool:
            with contextlib.suppress(RequestTimedOutError):
                producer.send("impatient", b"x")
                return True
            return False

        eventually(is_taken, "the topic's metadata")
        with pytest.raises(BufferExhaustedError, match=r"max\.block\.ms=0"):
            _fill(producer, "impatient", 30_000)
        producer.flush(STALL_S)
        producer.send("impatient", b"x")


def _fill(producer: Producer, topic: str, size_bytes: int) -> None:
    producer.send_table(topic, pa.table({"value": [b"x" * 9_000] * (size_bytes // 9_000 * 100)}), partition=0)


def test_unknown_topics_are_created_where_that_is_enabled(tmp_path: Path) -> None:
    options = {"auto.create.topics.enable": "true", "num.partitions": "3"}
    with EmbeddedBroker(tmp_path, options=options) as broker:
        with Producer(broker.bootstrap_servers) as producer:
            producer.send("sprung-up", b"x").result(STALL_S)
            assert producer.partitions_for("sprung-up") == 3
            with pytest.raises((InvalidTopicError, UnknownTopicOrPartitionError)):
                producer.send("__consumer_offsets", b"x").result(STALL_S)
        with Admin(broker.bootstrap_servers) as admin, pytest.raises(UnknownTopicOrPartitionError):
            admin.describe_topic("only-looked-at")
    with (
        EmbeddedBroker(tmp_path / "off") as broker,
        Producer(broker.bootstrap_servers) as producer,
        pytest.raises(UnknownTopicOrPartitionError, match=r"auto\.create\.topics\.enable is off at the broker"),
    ):
        producer.send("misspelt", b"x")


def test_statistics_count_what_was_done(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("counted", partitions=1, configs={"max.message.bytes": 2000})
    with Producer(module_broker.bootstrap_servers) as producer:
        producer.send("counted", b"x").result(STALL_S)
        assert producer.send("counted", b"x" * 5000).exception(STALL_S) is not None
        producer.flush()
        counts = producer.statistics()
    assert (counts.records_sent, counts.records_failed, counts.batches_sent, counts.batches_waiting) == (1, 1, 1, 0)
    assert counts.bytes_sent > 0
    assert counts.buffer_bytes == 0
