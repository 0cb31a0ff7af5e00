"""Tests of producers that commit together, on a real broker.

The tests cover reserved ids and fencing.
"""

import threading
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import Admin, Consumer, PreparedTransaction, Producer, TopicPartition
from millrace.errors import CommitOwnerError, InvalidTxnStateError, MillraceError, ProducerFencedError
from millrace_broker.testing import EmbeddedBroker

from .passing_time import pass_time
from .waiting import STALL_S, Stall, eventually


def _producer(broker: EmbeddedBroker, external_id: str, **options: Any) -> Producer:
    return Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": external_id,
            "coordinator.key": external_id,
            **{name.replace("_", "."): value for name, value in options.items()},
        }
    )


def _write(producer: Producer, topic: str, epoch: int, attempt: str, value: bytes) -> PreparedTransaction:
    assert not producer.join_commit(epoch, attempt=attempt).was_committed_before
    producer.begin_transaction()
    producer.send(topic, value)
    prepared = producer.prepared_transaction()
    assert prepared is not None
    return prepared


def _committed(broker: EmbeddedBroker, topic: str) -> list[bytes | None]:
    """Return the committed values, once no transaction is open."""
    config = {"bootstrap.servers": broker.bootstrap_servers, "auto.offset.reset": "earliest"}
    values: list[bytes | None] = []
    with (
        Consumer({**config, "isolation.level": "read_committed"}) as consumer,
        Admin(broker.bootstrap_servers) as admin,
    ):
        partitions = consumer.partitions_for(topic)
        latest = dict.fromkeys(partitions, "latest")
        eventually(lambda: admin.list_offsets(latest, isolation_level="read_committed") == admin.list_offsets(latest))
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        stall = Stall("all records")
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            stall.check(len(values))
            values += [record.value for record in consumer.poll(100)]
    return sorted(values, key=str)


def test_one_producer_takes_part_in_epoch_after_epoch(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("joined-epochs", partitions=1)
    with _producer(module_broker, "epochs") as producer:
        for epoch in range(5):
            prepared = _write(producer, "joined-epochs", epoch, f"attempt-{epoch}", b"%d" % epoch)
            outcome = admin.commit_transactions("epochs", epoch, committed=[prepared], attempt=f"attempt-{epoch}")
            assert (outcome.was_committed_before, outcome.last_committed_epoch) == (False, epoch)
        outcome = producer.join_commit(3, attempt="again")
        assert (outcome.was_committed_before, outcome.last_committed_epoch) == (True, 4)
    assert _committed(module_broker, "joined-epochs") == [b"0", b"1", b"2", b"3", b"4"]
    listed = [each.transactional_id for each in admin.list_transactions()]
    assert len([name for name in listed if name.startswith("epochs-")]) <= 3, "ids are used again"


def test_transactions_that_no_commit_names_are_aborted_with_it(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("joined-losers", partitions=1)
    with _producer(module_broker, "losers") as winner, _producer(module_broker, "losers") as loser:
        _write(loser, "joined-losers", 0, "only", b"speculative")
        won = _write(winner, "joined-losers", 0, "only", b"won")
        admin.commit_transactions("losers", 0, committed=[won], attempt="only")
        with pytest.raises(ProducerFencedError):
            loser.abort_transaction()
    assert _committed(module_broker, "joined-losers") == [b"won"]


def test_a_restarted_producer_aborts_and_fences_its_predecessor_at_once(
    admin: Admin, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("joined-again", partitions=1)
    with _producer(module_broker, "again") as dead, _producer(module_broker, "again") as alive:
        left = _write(dead, "joined-again", 0, "first", b"left")
        assert not alive.join_commit(0, attempt="second").was_committed_before
        assert _committed(module_broker, "joined-again") == [], "no reader waits for it"
        with pytest.raises(ProducerFencedError, match="attempt second has taken over"):
            admin.commit_transactions("again", 0, committed=[left], attempt="first")
        with pytest.raises(ProducerFencedError, match="attempt second has taken over"):
            dead.join_commit(0, attempt="first")
        prepared = _write(alive, "joined-again", 0, "second", b"written")
        admin.commit_transactions("again", 0, committed=[prepared], attempt="second")
    assert _committed(module_broker, "joined-again") == [b"written"]


def test_a_lost_producer_delays_readers_until_its_timeout(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("joined-dead", partitions=1)
    partition = {TopicPartition("joined-dead", 0): "latest"}

    def stable_offset() -> int:
        [found] = admin.list_offsets(partition, isolation_level="read_committed").values()
        return found.offset

    with _producer(module_broker, "dead", **{"transaction.timeout.ms": 300_000}) as dead:
        left = _write(dead, "joined-dead", 0, "only", b"left")
        assert stable_offset() == 0
        pass_time(module_broker, 300)
        eventually(lambda: stable_offset() > 0)
        with pytest.raises(InvalidTxnStateError):
            admin.commit_transactions("dead", 0, committed=[left], attempt="only")
    assert _committed(module_broker, "joined-dead") == []


def test_a_producer_whose_id_looks_assigned_is_left_alone(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("joined-others", partitions=1)
    other = _producer(module_broker, "others", transactional_id="others-0")
    # With the same coordinator key, so that both are in one partition of __transaction_state.
    with other, _producer(module_broker, "others") as joining:
        other.init_transactions()
        other.begin_transaction()
        other.send("joined-others", b"other").result(STALL_S)
        won = _write(joining, "joined-others", 0, "first", b"won")
        assert won.transactional_id == "others-1"
        admin.commit_transactions("others", 0, committed=[won], attempt="first")
        other.commit_transaction()
    assert _committed(module_broker, "joined-others") == [b"other", b"won"]


def test_an_attempt_is_aborted(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("joined-aborted", partitions=1)
    with _producer(module_broker, "aborted") as one, _producer(module_broker, "aborted") as other:
        for producer in (one, other):
            _write(producer, "joined-aborted", 0, "given up", b"nothing")
        admin.abort_commit("aborted", 0, attempt="given up")
        assert _committed(module_broker, "joined-aborted") == []
        with pytest.raises(ProducerFencedError):
            admin.abort_commit("aborted", 0, attempt="unheard of")
        with pytest.raises(ProducerFencedError, match="it was aborted"):
            one.join_commit(0, attempt="given up")


def test_a_stranger_is_refused(admin: Admin, module_broker: EmbeddedBroker) -> None:
    with _producer(module_broker, "owned") as producer:
        producer.join_commit(4, attempt="a", owner="query one")
    with _producer(module_broker, "owned") as producer:
        with pytest.raises(CommitOwnerError, match="external id owned belongs to query one"):
            producer.join_commit(0, attempt="b", owner="query two")
        producer.join_commit(5, attempt="b", owner="query one")


def test_another_owner_is_refused_also_for_a_committed_epoch(admin: Admin, module_broker: EmbeddedBroker) -> None:
    # Its records would be skipped without any error.
    admin.create_topic("joined-stranger", partitions=1)
    with _producer(module_broker, "stranger") as producer:
        producer.join_commit(4, attempt="a", owner="query one")
        producer.begin_transaction()
        producer.send("joined-stranger", b"one")
        prepared = producer.prepared_transaction()
        assert prepared is not None
        admin.commit_transactions("stranger", 4, committed=[prepared], attempt="a")
        with pytest.raises(CommitOwnerError, match="which has committed 4 last"):
            producer.join_commit(0, attempt="b", owner="query two")


def test_joining_out_of_order_says_what_to_do(admin: Admin, module_broker: EmbeddedBroker) -> None:
    with _producer(module_broker, "order") as producer:
        producer.join_commit(0, attempt="a")
        producer.begin_transaction()
        with pytest.raises(InvalidTxnStateError, match="commit or abort the open transaction first"):
            producer.join_commit(0, attempt="a")
        producer.abort_transaction()
        producer.join_commit(0, attempt="a")
    alone = {"bootstrap.servers": module_broker.bootstrap_servers, "transactional.id": "alone"}
    with (
        Producer(alone) as producer,
        pytest.raises(InvalidTxnStateError, match="this producer commits its own transactions"),
    ):
        producer.join_commit(0, attempt="a")


def test_many_join_at_once_and_each_has_a_place_of_its_own(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("joined-many", partitions=1)
    prepared: list[PreparedTransaction] = []
    errors: list[MillraceError] = []

    def take_part(number: int) -> None:
        try:
            with _producer(module_broker, "many") as producer:
                prepared.append(_write(producer, "joined-many", 0, "all", b"%02d" % number))
        except MillraceError as error:
            errors.append(error)

    threads = [threading.Thread(target=take_part, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len({each.transactional_id for each in prepared}) == 12
    admin.commit_transactions("many", 0, committed=prepared, attempt="all")
    assert _committed(module_broker, "joined-many") == [b"%02d" % number for number in range(12)]


def test_an_attempt_continues_through_a_restart_of_the_broker(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topic("restarted", partitions=1)
        with _producer(broker, "restarted") as producer:
            first = _write(producer, "restarted", 0, "only", b"before")
        port = broker.bootstrap_servers.rsplit(":", 1)[1]
    with EmbeddedBroker(tmp_path / "broker", port=int(port)) as broker:
        with _producer(broker, "restarted") as producer, Admin(broker.bootstrap_servers) as admin:
            second = _write(producer, "restarted", 0, "only", b"after")
            assert first.transactional_id != second.transactional_id, "an id with an open transaction is not free"
            admin.commit_transactions("restarted", 0, committed=[first, second], attempt="only")
            assert producer.join_commit(0, attempt="only").was_committed_before
        assert _committed(broker, "restarted") == [b"after", b"before"]
