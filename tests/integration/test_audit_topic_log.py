"""Tests of the audit's topic reader.

The tests cover gaps of every kind, lost ends and other topics.
"""

import uuid

import pytest

from millrace.clients import Admin, Consumer, Producer, SchemaCache, TopicPartition
from millrace.config.client import Isolation
from millrace_broker.testing import EmbeddedBroker
from pyspark_millrace.audit.intervals import normalized
from pyspark_millrace.audit.topic_log import TopicLog
from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.offsets import OffsetRange

from .waiting import Stall, eventually


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    options = {"log.cleaner.backoff.ms": "50", "log.retention.ms": "-1"}
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), options=options) as running:
        yield running


@pytest.fixture
def admin(broker):
    with Admin(broker.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def log(broker, admin):
    schemas = SchemaCache(broker.bootstrap_servers)
    yield TopicLog(admin, schemas, Isolation.READ_COMMITTED)
    schemas.close()


def offsets_read(broker, topic):
    """Return the offsets that a consumer reads, independently of the tested code."""
    with Consumer({"bootstrap.servers": broker.bootstrap_servers, "isolation.level": "read_committed"}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        end = consumer.end_offsets([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
        found = []
        stall = Stall("all records")
        while consumer.position(TopicPartition(topic, 0)) < end:
            stall.check(len(found))
            found += [record.offset for record in consumer.poll(0.2)]
    return found, end


def holding(log, admin, topic, start, end, topic_id=None):
    wanted = topic_id or admin.describe_topic(topic).topic_id
    return log.holding(OffsetRange(PartitionKey(topic, 0), wanted, start, end))


def test_gaps_of_compaction_and_transactions_are_no_loss(broker, admin, log, topic):
    compact = {"cleanup.policy": "compact", "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.01"}
    admin.create_topic(topic, configs=compact)
    with Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}) as producer:
        producer.init_transactions()
        for round_number in range(12):
            producer.begin_transaction()
            for number in range(100):
                producer.send(topic, value=b"x" * 100, key=b"%d" % (number * 7 % 60))
            producer.flush()
            producer.abort_transaction() if round_number % 3 == 1 else producer.commit_transaction()
    read = eventually(
        lambda: len((found := offsets_read(broker, topic))[0]) < 700 and found, "compaction", pause_s=0.05
    )
    assert log.is_compacted(topic)
    # The cleaner runs meanwhile, so all requests are repeated until nothing changed between them.
    stall = Stall("the cleaner to rest")
    while True:
        found, end = read
        held = holding(log, admin, topic, 0, end)
        part = holding(log, admin, topic, 200, 900)
        read = offsets_read(broker, topic)
        if read == (found, end):
            break
        stall.check((len(found), end))
    assert list(held.readable) == normalized((offset, offset + 1) for offset in found)
    assert held.lost == ()
    middle = [offset for offset in found if 200 <= offset < 900]
    assert list(part.readable) == normalized((offset, offset + 1) for offset in middle)


def test_offsets_before_the_start_or_after_the_end_are_lost(broker, admin, log, topic):
    admin.create_topic(topic)
    with Producer(broker.bootstrap_servers) as producer:
        for number in range(20):
            producer.send(topic, value=b"%d" % number)
    admin.delete_records({TopicPartition(topic, 0): 8})
    held = holding(log, admin, topic, 5, 25)
    assert (held.readable, held.lost) == (((8, 20),), ((5, 8), (20, 25)))
    held = holding(log, admin, topic, 0, 8)
    assert (held.readable, held.lost) == ((), ((0, 8),))
    held = holding(log, admin, topic, 0, 20, topic_id=uuid.uuid4())
    assert (held.readable, held.lost) == ((), ((0, 20),))
    assert not log.is_compacted(topic)
    assert log.topic_id("no-such-topic") is None
