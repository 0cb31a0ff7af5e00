"""Tests of transactional producers against a real broker.

Transactions are committed, aborted, fenced, prepared and restarted, also with offsets.
"""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import Admin, Consumer, ConsumerGroupMetadata, OffsetAndMetadata, Producer, TopicPartition
from millrace.errors import (
    AbortableTransactionError,
    BufferExhaustedError,
    ClientClosedError,
    InvalidConfigError,
    InvalidProducerEpochError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    MessageTooLargeError,
    ProducerFencedError,
    SchemaMismatchError,
    TransactionAbortedError,
    UnknownTopicOrPartitionError,
    UsageError,
)
from millrace_broker.testing import EmbeddedBroker

from ..ports import free_port
from .passing_time import pass_time
from .waiting import STALL_S, Stall, eventually


@pytest.fixture(scope="module")
def module_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    options = {"transaction.state.log.num.partitions": "4", "offsets.topic.num.partitions": "4"}
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), options=options) as running:
        yield running


TIMEOUT_MS = 300_000


def _producer(broker: EmbeddedBroker, name: str, **options: Any) -> Producer:
    named = {option.replace("_", "."): value for option, value in options.items()}
    return Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name, **named})


def _read(broker: EmbeddedBroker, topic: str, isolation: str = "read_committed") -> list[bytes]:
    values: list[bytes] = []
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "auto.offset.reset": "earliest",
        "isolation.level": isolation,
    }
    with Consumer(config) as consumer:
        partitions = consumer.partitions_for(topic)
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        stall = Stall("all records")
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            stall.check(len(values))
            values += [record.value for record in consumer.poll(100)]  # type: ignore[misc]
    return sorted(values)


def test_committed_records_are_read_and_aborted_ones_are_not(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("ledger", partitions=3)
    with _producer(module_broker, "ledger") as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            places = [producer.send("ledger", b"%d.%d" % (number, part), partition=part) for part in range(3)]
            producer.send_table("ledger", {"value": [b"%d.t" % number]})
            producer.send_batch("ledger", [b"%d.b" % number])
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                assert all(place.done() for place in places)
    committed = [b"%d.%s" % (number, part) for number in (0, 2, 4) for part in (b"0", b"1", b"2", b"b", b"t")]
    assert _read(module_broker, "ledger") == sorted(committed)


def _send_and_fail(producer: Producer, topic: str, value: bytes) -> None:
    producer.send(topic, value).result(STALL_S)
    raise ZeroDivisionError


def test_the_block_commits_or_aborts(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("blocks", partitions=1)
    with _producer(module_broker, "blocks") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("blocks", b"good")
        with pytest.raises(ZeroDivisionError), producer.transaction():
            _send_and_fail(producer, "blocks", b"bad")
        with producer.transaction():
            pass  # an empty transaction
        with producer.transaction():
            producer.send("blocks", b"good too")
    assert _read(module_broker, "blocks") == [b"good", b"good too"]
    assert _read(module_broker, "blocks", "read_uncommitted") == [b"bad", b"good", b"good too"]


def test_a_second_producer_fences_the_first(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("fenced", partitions=1)
    first, second = _producer(module_broker, "twins"), _producer(module_broker, "twins")
    first.init_transactions()
    first.begin_transaction()
    first.send("fenced", b"lost").result(STALL_S)
    second.init_transactions()
    late = first.send("fenced", b"late")
    with pytest.raises((ProducerFencedError, AbortableTransactionError)):
        first.commit_transaction()
    assert late.exception(STALL_S) is not None
    with pytest.raises(ProducerFencedError):
        first.abort_transaction()
    for call in (first.begin_transaction, first.init_transactions, lambda: first.send("fenced", b"x")):
        with pytest.raises(ProducerFencedError, match=r"transactional\.id=twins: .*make a new one"):
            call()
    first.close()
    with second.transaction():
        second.send("fenced", b"kept")
    second.close()
    assert _read(module_broker, "fenced") == [b"kept"]


def test_calls_out_of_order_say_what_to_do(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("orderly", partitions=1)
    producer = _producer(module_broker, "orderly")
    with pytest.raises(InvalidTxnStateError, match=r"call init_transactions\(\) first"):
        producer.begin_transaction()
    with pytest.raises(InvalidTxnStateError, match=r"call init_transactions\(\) first"):
        producer.send("orderly", b"x")
    producer.init_transactions()
    for call in (
        lambda: producer.send("orderly", b"x"),
        lambda: producer.send_table("orderly", {"value": [b"x"]}),
        lambda: producer.send_batch("orderly", [b"x"]),
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send_offsets_to_transaction({}, "group"),
    ):
        with pytest.raises(InvalidTxnStateError, match=r"call begin_transaction\(\) first"):
            call()
    with pytest.raises(InvalidTxnStateError):
        producer.init_transactions()
    producer.begin_transaction()
    with pytest.raises(InvalidTxnStateError, match="commit or abort the open transaction first"):
        producer.begin_transaction()
    producer.send("orderly", b"y")
    producer.close()  # aborts it
    with pytest.raises(ClientClosedError):
        producer.begin_transaction()
    with Producer(module_broker.bootstrap_servers) as plain, pytest.raises(InvalidTxnStateError, match="transactional"):
        plain.begin_transaction()
    assert _read(module_broker, "orderly") == []


def test_transaction_calls_in_a_callback_are_refused_and_change_nothing(
    admin: Admin, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("callbacks")
    partition = TopicPartition("callbacks", 0)
    refused: list[str] = []

    # The commit sends the record, so that the callback runs while another thread's call is in progress.
    with _producer(module_broker, "callbacks", linger_ms=60_000) as producer:
        calls = {
            "init": producer.init_transactions,
            "begin": producer.begin_transaction,
            "offsets": lambda: producer.send_offsets_to_transaction({partition: 1}, "group"),
            "prepare": producer.prepared_transaction,
            "abort": producer.abort_transaction,
            "commit": producer.commit_transaction,
        }

        def delivered(metadata: Any, error: Any) -> None:
            for name, call in calls.items():
                with contextlib.suppress(UsageError):
                    call()
                    continue
                refused.append(name)

        producer.init_transactions()
        for _ in range(2):
            producer.begin_transaction()
            producer.send("callbacks", b"value", on_delivery=delivered)
            producer.commit_transaction()
    assert refused == [*calls, *calls]
    assert _read(module_broker, "callbacks") == [b"value", b"value"]


def test_a_callback_does_not_end_the_open_transaction(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("open-in-callback")
    errors: list[Exception] = []

    def commits(metadata: Any, error: Any) -> None:
        try:
            producer.commit_transaction()
        except UsageError as refused:
            errors.append(refused)

    with _producer(module_broker, "open-in-callback") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("open-in-callback", b"1", on_delivery=commits).result(STALL_S)
        producer.flush()
        assert len(errors) == 1
        producer.send("open-in-callback", b"2")
        producer.commit_transaction()
    assert _read(module_broker, "open-in-callback") == [b"1", b"2"]


def test_wrong_options_of_transactions_are_refused_with_the_remedy(module_broker: EmbeddedBroker) -> None:
    for options, message in [
        ({"transactional.id": "t", "enable.idempotence": False, "acks": 1}, "needs enable.idempotence=true"),
        ({"coordinator.key": "k"}, "set transactional.id too"),
    ]:
        with pytest.raises(InvalidConfigError, match=message):
            Producer(options)
    with (
        _producer(module_broker, "slow", transaction_timeout_ms=2**31 - 1) as producer,
        pytest.raises(InvalidTransactionTimeoutError, match=r"transaction\.max\.timeout\.ms"),
    ):
        producer.init_transactions()


def test_after_a_failed_record_a_transaction_can_only_be_aborted(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("partial", partitions=2, configs={"max.message.bytes": 2000})
    with _producer(module_broker, "partial", linger_ms=50) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        good = producer.send("partial", b"good", partition=0)
        bad = producer.send("partial", b"x" * 5000, partition=1)
        assert isinstance(bad.exception(STALL_S), MessageTooLargeError)
        eventually(good.done)
        with pytest.raises(AbortableTransactionError, match="abort the transaction, because a part of it failed"):
            producer.send("partial", b"more")
        with pytest.raises(AbortableTransactionError):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send("partial", b"again", partition=1)
        with pytest.raises(AbortableTransactionError), producer.transaction():
            producer.send("partial", b"x" * 5000)
        with producer.transaction():
            producer.send("partial", b"and again")
    assert _read(module_broker, "partial") == [b"again", b"and again"]


def test_a_record_that_the_producer_refuses_makes_the_commit_fail(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("refused", partitions=1)
    with _producer(module_broker, "refused", max_request_size=1_000_000, batch_size=100_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("refused", b"first")
        too_large = producer.send("refused", bytes(2_000_000))
        with pytest.raises(AbortableTransactionError, match=r"max\.request\.size"):
            producer.commit_transaction()
        assert isinstance(too_large.exception(STALL_S), MessageTooLargeError)
        producer.abort_transaction()
        with producer.transaction():
            producer.send("refused", b"again")
    assert _read(module_broker, "refused") == [b"again"]


def test_a_record_that_does_not_fit_its_column_makes_the_commit_fail(
    admin: Admin, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("misfits", partitions=1, schema="id INT, tags ARRAY<STRING>")
    with _producer(module_broker, "misfits") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("misfits", {"id": 1, "tags": ["a"]})
        misfit = producer.send("misfits", {"id": 2, "tags": [3]})
        with pytest.raises(AbortableTransactionError, match="misfits"):
            producer.commit_transaction()
        assert isinstance(misfit.exception(STALL_S), SchemaMismatchError)
        producer.abort_transaction()


class _MemoryOfOneBatch:
    """A producer's memory that grants only the first request.

    The second request ends with an error.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, producer: Producer, error: BaseException) -> None:
        self.error = error
        self.granted = 0
        self._acquire = producer._memory.acquire
        monkeypatch.setattr(producer._memory, "acquire", self._acquire_once)

    def _acquire_once(self, size_bytes: int, timeout_s: float) -> None:
        self.granted += 1
        if self.granted == 2:
            raise self.error
        self._acquire(size_bytes, timeout_s)


@pytest.mark.parametrize("error", [BufferExhaustedError("full"), KeyboardInterrupt()], ids=["full", "interrupt"])
@pytest.mark.parametrize("form", ["table", "list"])
def test_a_send_that_is_interrupted_after_some_records_makes_the_commit_fail(
    admin: Admin, module_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, form: str, error: BaseException
) -> None:
    topic = f"half-{form}-{type(error).__name__}"
    admin.create_topic(topic, partitions=1)
    values = [bytes([letter]) * 1000 for letter in b"abcdef"]
    with _producer(module_broker, topic, batch_size=1000) as producer, monkeypatch.context() as patched:
        producer.init_transactions()
        producer.begin_transaction()
        memory = _MemoryOfOneBatch(patched, producer, error)
        send = producer.send_batch if form == "list" else producer.send_table
        with pytest.raises(type(error)):
            send(topic, values if form == "list" else {"value": values})
        assert memory.granted == 2
        with pytest.raises(AbortableTransactionError, match="a part of it"):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"again")
    assert _read(module_broker, topic) == [b"again"]


def test_a_refused_send_makes_the_commit_fail_and_a_wrong_record_does_not(
    admin: Admin, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("sendable", partitions=1)
    large = {"value": [b"small", bytes(2_000_000)]}
    with _producer(module_broker, "sendable", max_request_size=1_000_000, batch_size=100_000) as producer:
        producer.init_transactions()
        for refused, error in (
            (lambda: producer.send("sendable", b"x", partition=7), UnknownTopicOrPartitionError),
            (lambda: producer.send_batch("sendable", [b"x"], partition=7), UnknownTopicOrPartitionError),
            (lambda: producer.send_table("sendable", {"value": [b"x"]}, partition=7), UnknownTopicOrPartitionError),
            (lambda: producer.send_table("sendable", large), MessageTooLargeError),
        ):
            producer.begin_transaction()
            producer.send("sendable", b"aborted")
            with pytest.raises(error):
                refused()
            with pytest.raises(AbortableTransactionError):
                producer.commit_transaction()
            producer.abort_transaction()
        with producer.transaction():
            producer.send("sendable", b"committed")
            with pytest.raises(SchemaMismatchError):
                producer.send("sendable", 7)
            with pytest.raises(SchemaMismatchError):
                producer.send_table("sendable", {"v": [b"x"]})
    assert _read(module_broker, "sendable") == [b"committed"]


def test_a_record_without_memory_makes_the_commit_fail(
    admin: Admin, module_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic("roomy", partitions=1)
    with _producer(module_broker, "roomy", linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with monkeypatch.context() as patched:
            _MemoryOfOneBatch(patched, producer, BufferExhaustedError("full"))
            producer.send("roomy", b"first")
            with pytest.raises(BufferExhaustedError):
                producer.send("roomy", bytes(1_000_000))
        with pytest.raises(AbortableTransactionError, match="full"):
            producer.commit_transaction()
        producer.abort_transaction()
    assert _read(module_broker, "roomy") == []


def test_aborting_drops_what_was_not_sent(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("dropped", partitions=1)
    with _producer(module_broker, "dropped", linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        futures = [producer.send("dropped", b"x") for _ in range(10)]
        producer.abort_transaction()
        assert {type(future.exception(STALL_S)) for future in futures} == {TransactionAbortedError}
    assert admin.list_offsets({TopicPartition("dropped", 0): "latest"})[TopicPartition("dropped", 0)].offset == 0


def test_offsets_are_committed_with_the_records(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("input", partitions=1)
    admin.create_topic("output", partitions=1)
    source = TopicPartition("input", 0)
    with Producer(module_broker.bootstrap_servers) as filling:
        filling.send_batch("input", [b"%d" % number for number in range(10)]).result(STALL_S)
    consumer = Consumer({"bootstrap.servers": module_broker.bootstrap_servers, "group.id": "copiers"})
    with _producer(module_broker, "copier") as producer, consumer:
        producer.init_transactions()
        for start, is_kept in ((0, True), (5, False), (5, True)):
            producer.begin_transaction()
            for number in range(start, start + 5):
                producer.send("output", b"%d" % number)
            group = ConsumerGroupMetadata(group_id="copiers")
            producer.send_offsets_to_transaction({source: OffsetAndMetadata(offset=start + 5, metadata="m")}, group)
            if is_kept:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
            committed = consumer.committed([source])[source]
            assert committed is not None
            assert committed.offset == (start + 5 if is_kept else 5)
    assert _read(module_broker, "output") == [b"%d" % number for number in range(10)]


def _time_out(broker: EmbeddedBroker, admin: Admin, producer: Producer, topic: str) -> None:
    """Begin a transaction with ``TIMEOUT_MS``, write to it, let the time pass, and wait until it is aborted."""
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"too late", partition=0).result(STALL_S)
    pass_time(broker, TIMEOUT_MS / 1000)
    end = TopicPartition(topic, 0)
    eventually(lambda: admin.list_offsets({end: "latest"}, isolation_level="read_committed")[end].offset == 2)


def test_a_transaction_that_takes_too_long_is_not_committed(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("tardy", partitions=1)
    with _producer(module_broker, "tardy", transaction_timeout_ms=TIMEOUT_MS) as producer:
        _time_out(module_broker, admin, producer, "tardy")
        with pytest.raises(InvalidTxnStateError, match=r"within transaction\.timeout\.ms"):
            producer.commit_transaction()
    assert _read(module_broker, "tardy") == []


@pytest.mark.parametrize("call", ["same", "other", "offsets"])
def test_a_producer_aborts_a_transaction_that_took_too_long_and_begins_another(
    admin: Admin, module_broker: EmbeddedBroker, call: str
) -> None:
    topic = f"late-{call}"
    admin.create_topic(topic, partitions=2)
    with _producer(module_broker, topic, transaction_timeout_ms=TIMEOUT_MS) as producer:
        _time_out(module_broker, admin, producer, topic)
        calls: dict[str, Callable[[], object]] = {
            "same": lambda: producer.send(topic, b"later still", partition=0).result(STALL_S),
            "other": lambda: producer.send(topic, b"later still", partition=1).result(STALL_S),
            "offsets": lambda: producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, topic),
        }
        with pytest.raises(InvalidProducerEpochError):
            calls[call]()
        with pytest.raises(AbortableTransactionError):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
    assert _read(module_broker, topic) == []


def test_prepared_transactions_are_committed_together(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("together", partitions=2)

    def prepare(task: str, epoch: int) -> Any:
        with _producer(module_broker, f"query-{task}-{epoch}", coordinator_key="query") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send_table("together", {"value": [b"%d.%s" % (epoch, task.encode())] * 2})
            prepared = producer.prepared_transaction()
            with pytest.raises(InvalidTxnStateError, match="prepared"):
                producer.send("together", b"more")
            return prepared

    for epoch in (0, 1):
        winners, loser = [prepare(task, epoch) for task in ("a", "b")], prepare("lost", epoch)
        outcome = admin.commit_transactions("query", epoch, committed=winners, aborted=[loser])
        assert (outcome.was_committed_before, outcome.last_committed_epoch) == (False, epoch)
    again = prepare("again", 1)
    assert admin.commit_transactions("query", 1, committed=[again]).was_committed_before
    with _producer(module_broker, "query-idle", coordinator_key="query") as idle:
        idle.init_transactions()
        idle.begin_transaction()
        assert idle.prepared_transaction() is None
    expected = [b"%d.%s" % (epoch, task) for epoch in (0, 1) for task in (b"a", b"b") for _ in range(2)]
    eventually(lambda: _read(module_broker, "together") == sorted(expected))


def test_transactions_continue_through_a_restart_of_the_broker(tmp_path: Path) -> None:
    options = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2"}
    with EmbeddedBroker(tmp_path, free_port(), options=options) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topic("durable", partitions=2)
        with _producer(broker, "durable", retry_backoff_ms=20) as producer:
            producer.init_transactions()
            for number in range(3):
                producer.begin_transaction()
                producer.send("durable", b"%d before" % number).result(STALL_S)
                broker.stop()
                with ThreadPoolExecutor(1) as pool:
                    starting = pool.submit(broker.start)
                    producer.send("durable", b"%d after" % number)
                    producer.commit_transaction()
                    starting.result(STALL_S)
        expected = sorted(b"%d %s" % (number, when) for number in range(3) for when in (b"before", b"after"))
        assert _read(broker, "durable") == expected
