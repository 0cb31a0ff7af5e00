"""Tests of ``spark.readStream.format("millrace")`` on a real broker.

The tests cover limits, restarts, growth and losses. ``test_spark_reader`` covers each limit and split. Here Spark calls
the readers.
"""

import json
import threading
import uuid

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from millrace.clients import Producer, TopicPartition
from millrace.errors import OffsetsLostError, UsageError
from pyspark_millrace.spark_errors import explain, millrace_error_in

from .streaming_query import Query

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def producer(module_broker):
    producer = Producer({"bootstrap.servers": module_broker.bootstrap_servers})
    yield producer
    producer.close()


@pytest.fixture
def topic(admin):
    name = f"stream-{uuid.uuid4().hex[:8]}"
    admin.create_topic(name, partitions=3, configs={"retention.ms": "-1"})
    return name


@pytest.fixture
def send(module_broker):
    def send(topic, numbers, partition=None):
        # A separate producer has the present topic, which is new or has more partitions.
        with Producer(module_broker.bootstrap_servers) as producer:
            for number in numbers:
                producer.send(topic, b"%d" % number, partition=number % 3 if partition is None else partition)
            producer.flush()

    return send


@pytest.fixture
def query(spark, module_broker, tmp_path):
    def make(topic=None, *, select=("CAST(value AS STRING)", "partition", "offset"), **options):
        reader = spark.readStream.format("millrace").option("kafka.bootstrap.servers", module_broker.bootstrap_servers)
        subscription = {"subscribe": topic} if topic else {}
        given = {"startingOffsets": "earliest", **subscription, **options}
        return Query(reader.options(**given).load().selectExpr(*select), tmp_path / "checkpoint")

    return make


def failure(action):
    with pytest.raises(StreamingQueryException) as caught:
        action()
    return caught.value


def test_available_now_reads_limited_batches_and_continues_from_the_checkpoint(query, topic, send):
    send(topic, range(1000))
    first = query(topic, maxOffsetsPerTrigger=300)
    # Records that arrive while the query runs are not part of "now".
    first.before_batch[0] = lambda: send(topic, range(1000, 1100))
    first.run()
    assert [len(rows) for _, rows in sorted(first.batches.items())] == [300, 300, 300, 100]
    assert first.values() == list(range(1000))
    second = query(topic, maxOffsetsPerTrigger=300).run()
    assert second.values() == list(range(1000, 1100))
    assert min(second.batches) == 4
    assert query(topic).run().rows == []


def test_a_batch_that_failed_is_read_again_as_it_was(query, topic, send, tmp_path):
    send(topic, range(30))

    def fail():
        raise RuntimeError("the sink is down")

    first = query(topic, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    first.before_batch[1] = fail
    assert "the sink is down" in explain(failure(first.run))
    send(topic, range(30, 60))
    second = query(topic).run()
    assert len(second.batches[1]) == 10
    assert sorted(first.values() + second.values()) == list(range(60))


def test_latest_starts_where_the_query_starts(query, topic, send):
    send(topic, range(10))
    with query(topic, startingOffsets="latest") as running:
        deadline_reached = threading.Event()
        while not running.query.recentProgress and not deadline_reached.wait(0.05) and running.query.isActive:
            pass
        send(topic, range(10, 20))
        running.await_rows(10)
    assert running.values() == list(range(10, 20))


def test_new_topics_and_partitions_join_a_running_query(query, admin, send):
    prefix = f"joins-{uuid.uuid4().hex[:8]}"
    keeps = {"retention.ms": "-1"}
    admin.create_topic(f"{prefix}.a", partitions=1, configs=keeps)
    send(f"{prefix}.a", [1], partition=0)
    with query(subscribePattern=f"{prefix}\\..*", select=["value", "topic", "partition", "offset"]) as running:
        running.await_rows(1)
        admin.create_partitions(f"{prefix}.a", 2)
        send(f"{prefix}.a", [2], partition=1)
        running.await_rows(2)
        admin.create_topic(f"{prefix}.b", partitions=1, configs=keeps)
        send(f"{prefix}.b", [3], partition=0)
        running.await_rows(3)
        progress = json.loads(running.query.lastProgress["sources"][0]["endOffset"])
    assert [(bytes(value), topic[-1], *rest) for value, topic, *rest in running.rows] == [
        (b"1", "a", 0, 0),
        (b"2", "a", 1, 0),
        (b"3", "b", 0, 0),
    ]
    assert f"{prefix}.a" in progress


def test_the_lag_of_a_query_is_that_of_its_group(query, admin, topic, send):
    group = f"query-{uuid.uuid4().hex[:8]}"
    send(topic, range(10))
    with query(topic, **{"group.id": group}) as running:
        running.await_rows(10)
        # Spark reports a batch to the source when it plans the next one.
        send(topic, range(10, 15))
        running.await_rows(15)
    lags = admin.group_lag(group)
    assert sum(lag.committed for lag in lags) >= 10
    assert sum(lag.lag for lag in lags) <= 5


def test_a_query_continues_when_the_schema_of_its_topic_grows(query, admin, producer):
    name = f"grows-{uuid.uuid4().hex[:8]}"
    admin.create_topic(name, partitions=1, schema="a INT", configs={"retention.ms": "-1"})
    producer.send_table(name, pa.table({"a": pa.array([1], pa.int32())}))
    producer.flush()
    with query(name, select=["*"]) as running:
        running.await_rows(1)
        admin.evolve_schema(name, "a INT, b STRING")
        producer.send_table(name, pa.table({"a": pa.array([2], pa.int32()), "b": ["x"]}))
        producer.flush()
        running.await_rows(2)
    # The query keeps the columns of its start. A restart from the same checkpoint adds the new column.
    assert running.rows == [(1,), (2,)]
    producer.send_table(name, pa.table({"a": pa.array([3], pa.int32()), "b": ["y"]}))
    producer.flush()
    assert query(name, select=["*"]).run().rows == [(3, "y")]


def test_a_topic_deleted_and_created_again_is_not_read_on(query, admin, topic, send):
    send(topic, range(9))
    assert len(query(topic).run().rows) == 9
    admin.delete_topic(topic)
    admin.create_topic(topic, partitions=3, configs={"retention.ms": "-1"})
    send(topic, range(100, 130))
    error = failure(query(topic).run)
    assert isinstance(millrace_error_in(error), OffsetsLostError)
    assert f"topic {topic} is not the topic that was read: its id is" in explain(error)
    assert "new checkpoint, or set failOnDataLoss=false" in explain(error)
    assert query(topic, failOnDataLoss="false").run().values() == list(range(100, 130))


def test_records_that_retention_deleted_unread_are_named(query, admin, module_broker, send):
    name = f"retained-{uuid.uuid4().hex[:8]}"
    admin.create_topic(name, partitions=1, configs={"retention.ms": "-1", "segment.bytes": "1000"})
    send(name, range(3), partition=0)
    assert query(name).run().values() == [0, 1, 2]
    for number in range(3, 40):
        send(name, [number], partition=0)
    admin.alter_configs(name, {"retention.bytes": "2500"})
    # The broker does this every five minutes.
    module_broker.server.broker.logs.get(name, 0).apply_retention()
    partition = TopicPartition(name, 0)
    start = admin.list_offsets({partition: "earliest"})[partition].offset
    assert 3 < start < 40
    error = failure(query(name).run)
    assert isinstance(millrace_error_in(error), OffsetsLostError)
    assert f"offsets 3..{start - 1} of {name}-0 were deleted" in explain(error)
    assert f"start at {start}, or set failOnDataLoss=false" in explain(error)
    assert query(name, failOnDataLoss="false").run().values() == list(range(start, 40))


def test_the_checkpoint_of_another_source_is_refused(spark, query, topic, tmp_path):
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query_of_rate = rate.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query_of_rate.trigger(availableNow=True).start().awaitTermination()
    assert isinstance(millrace_error_in(failure(query(topic).run)), UsageError)


def test_a_stream_has_no_end(query, topic):
    error = failure(query(topic, endingOffsets="latest").run)
    assert "a stream has no end" in explain(error)


def test_plain_renames_are_in_use_where_the_trial_allowed_them(spark):
    assert spark.conf.get("spark.sql.streaming.checkpointFileManagerClass").endswith(
        ".FileSystemBasedCheckpointFileManager"
    )
