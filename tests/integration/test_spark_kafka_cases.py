"""Tests of the requirements of Spark's own Kafka source.

The cases are those of the suites for its micro-batch source and its relation. Other files show some of the cases:

* limits and restarts in ``test_spark_reader`` and ``test_spark_streaming``
* losses in ``test_spark_losses``
* transactions in ``test_spark_transactions``
* rows, columns and positions of batches in ``test_spark_batch``
"""

import json
import uuid

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as f

from millrace.clients import Producer, TopicPartition
from pyspark_millrace.spark_errors import explain

from .streaming_query import Query, finish

pytestmark = pytest.mark.spark

START_MS = 1_700_000_000_000
FOREVER = {"retention.ms": "-1"}


class Topics:
    """A factory of topics that sends numbers to their partitions. Number ``n`` has the time ``START_MS + n``."""

    def __init__(self, broker, admin):
        self.servers, self.admin = broker.bootstrap_servers, admin

    def create(self, partitions=1, name=None, **configs):
        name = name or f"case-{uuid.uuid4().hex[:8]}"
        self.admin.create_topic(name, partitions=partitions, configs=FOREVER | configs)
        return name

    def send(self, topic, by_partition, **given):
        with Producer(self.servers) as producer:
            for partition, numbers in by_partition.items():
                for number in numbers:
                    values = {"value": b"%d" % number, "timestamp_ms": START_MS + number} | given
                    producer.send(topic, values.pop("value"), partition=partition, **values)
            producer.flush()

    def filled(self):
        """Create three partitions with the values 0..9, the values 10..19, and none."""
        topic = self.create(3)
        self.send(topic, {0: range(10), 1: range(10, 20)})
        return topic


@pytest.fixture(scope="module")
def topics(module_broker, admin):
    return Topics(module_broker, admin)


@pytest.fixture(scope="module")
def read(spark, topics):
    def load(topic, **options):
        reader = spark.read.format("millrace").option("kafka.bootstrap.servers", topics.servers)
        return reader.option("subscribe", topic).options(**options).load()

    return load


@pytest.fixture
def stream(spark, topics):
    def load(**options):
        reader = spark.readStream.format("millrace").option("kafka.bootstrap.servers", topics.servers)
        return reader.options(**options).load()

    return load


@pytest.fixture
def query(stream, tmp_path):
    def make(topic=None, select=("CAST(CAST(value AS STRING) AS INT)",), **options):
        named = {"subscribe": topic} if topic else {}
        return Query(stream(**named, **options).selectExpr(*select), tmp_path / "checkpoint")

    return make


def numbers(frame):
    return sorted(int(bytes(row.value)) for row in frame.collect())


def subscription(kind, topic):
    return {
        "assign": {"assign": json.dumps({topic: [0, 1, 2]})},
        "subscribe": {"subscribe": topic},
        "subscribePattern": {"subscribePattern": f"{topic[:-1]}."},
    }[kind]


# --- where a stream starts -----------------------------------------------------------------------------------


STARTS = {
    "earliest offsets": (lambda _: {"startingOffsets": "earliest"}, range(20)),
    "latest offsets": (lambda _: {"startingOffsets": "latest"}, []),
    "the default": (lambda _: {}, []),
    "specific offsets": (
        lambda topic: {"startingOffsets": json.dumps({topic: {"0": 4, "1": -2, "2": -1}})},
        range(4, 20),
    ),
    "specific timestamps": (
        lambda topic: {
            "startingOffsetsByTimestamp": json.dumps({topic: {"0": START_MS + 8, "1": START_MS + 13, "2": START_MS}}),
            "startingOffsetsByTimestampStrategy": "latest",
        },
        [8, 9, *range(13, 20)],
    ),
    "a global timestamp": (
        lambda _: {"startingTimestamp": str(START_MS + 5), "startingOffsetsByTimestampStrategy": "latest"},
        range(5, 20),
    ),
}


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        ("earliest offsets", "assign"),
        ("latest offsets", "subscribe"),
        ("the default", "subscribePattern"),
        ("specific offsets", "subscribePattern"),
        ("specific timestamps", "assign"),
        ("a global timestamp", "subscribe"),
    ],
)
def test_a_stream_starts_at_the_given_offsets(topics, query, start, kind):
    topic = topics.filled()
    options, expected = STARTS[start]
    running = query(**subscription(kind, topic), **options(topic))
    running.run()
    assert running.values() == list(expected)
    if expected:
        # The stream continues with new records, also in the partition that was empty.
        topics.send(topic, {0: [100], 2: [101]})
        assert query(**subscription(kind, topic), **options(topic)).run().values() == [100, 101]


def test_a_timestamp_that_no_record_reaches_ends_the_query_before_it_starts(topics, query):
    topic = topics.filled()
    late = str(START_MS + 1000)
    with pytest.raises(StreamingQueryException) as caught:
        query(topic, startingTimestamp=late).run()
    assert "has no record at or after" in explain(caught.value)
    assert "startingOffsetsByTimestampStrategy=latest" in explain(caught.value)


# --- how much a micro-batch has, and when it runs ------------------------------------------------------------


def sizes(run):
    return [len(rows) for _, rows in sorted(run.batches.items()) if rows]


def test_limits_hold_for_each_micro_batch(topics, query):
    topic = topics.filled()
    assert sizes(query(topic, startingOffsets="earliest", maxOffsetsPerTrigger="6").run()) == [6, 6, 6, 2]


def test_a_limit_as_large_as_numbers_go_does_not_overflow(topics, query):
    topic = topics.filled()
    assert sizes(query(topic, startingOffsets="earliest", maxOffsetsPerTrigger=str(2**63 - 1)).run()) == [20]


def test_a_limit_in_bytes_divides_the_records_into_several_batches(topics, query):
    topic = topics.create()
    for first in range(0, 60, 10):
        topics.send(topic, {0: range(first, first + 10)})
    run = query(topic, startingOffsets="earliest", maxBytesPerTrigger="500").run()
    assert run.values() == list(range(60))
    assert len(sizes(run)) > 2


def test_with_a_minimum_and_a_maximum_a_batch_keeps_both(topics, query):
    topic = topics.create()
    topics.send(topic, {0: range(5)})
    options = {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "15", "maxTriggerDelay": "1h"}
    with query(topic, startingOffsets="earliest", **options) as running:
        running.await_rows(5)  # the first batch does not wait
        topics.send(topic, {0: range(5, 12)})
        running.query.processAllAvailable()
        assert len(running.rows) == 5
        topics.send(topic, {0: range(12, 30)})
        running.await_rows(20)
        running.query.processAllAvailable()
    assert sizes(running) == [5, 15, 10]


def test_a_batch_below_its_minimum_is_read_after_the_delay(topics, query):
    topic = topics.create()
    options = {"minOffsetsPerTrigger": "1000", "maxTriggerDelay": "100ms"}
    with query(topic, startingOffsets="earliest", **options) as running:
        for count in (1, 2, 3):
            topics.send(topic, {0: [count]})
            running.await_rows(count)
    assert running.values() == [1, 2, 3]


@pytest.mark.filterwarnings("ignore:.*Trigger.Once.*:FutureWarning")
def test_the_trigger_once_reads_everything_despite_a_limit(topics, query):
    topic = topics.filled()
    limits = {"maxOffsetsPerTrigger": "3", "minOffsetsPerTrigger": "2", "maxBytesPerTrigger": "10"}
    assert sizes(query(topic, startingOffsets="earliest", **limits).run(once=True)) == [20]


def test_the_default_trigger_reads_all_records(topics, stream, tmp_path):
    topic = topics.filled()
    writer = stream(subscribe=topic, startingOffsets="earliest").writeStream.format("noop")
    running = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    running.processAllAvailable()
    progress = running.recentProgress
    running.stop()
    assert sum(each["numInputRows"] for each in progress) == 20


def test_the_number_of_rows_is_in_the_progress(topics, query):
    topic = topics.filled()
    with query(topic, startingOffsets="earliest") as running:
        running.await_rows(20)
        progress = running.query.recentProgress
    assert sum(each["numInputRows"] for each in progress) == 20
    assert [json.loads(each["sources"][0]["endOffset"])[topic] for each in progress if each["numInputRows"]] == [
        {"0": 10, "1": 10, "2": 0}
    ]


# --- topics that come and go ---------------------------------------------------------------------------------


def test_topics_of_a_pattern_are_deleted_and_made_while_it_is_read(topics, query):
    prefix = f"come-and-go-{uuid.uuid4().hex[:6]}"
    for number in range(2):
        topics.send(topics.create(name=f"{prefix}.{number}"), {0: [number]})
    options = {"subscribePattern": rf"{prefix}\..*", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    with query(**options) as running:
        running.await_rows(2)
        topics.admin.delete_topic(f"{prefix}.0")
        topics.send(topics.create(name=f"{prefix}.2"), {0: [2]})
        running.await_rows(3)
        # A new topic of the same name is another topic, and is read from its start.
        topics.send(topics.create(name=f"{prefix}.0"), {0: [3]})
        running.await_rows(4)
        topics.admin.delete_topic(f"{prefix}.1")
        topics.send(topics.create(name=f"{prefix}.1"), {0: [4, 5]})
        running.await_rows(6)
    assert running.values() == [0, 1, 2, 3, 4, 5]


def test_a_topic_that_is_deleted_ends_the_query_and_says_so(topics, query):
    topic = topics.filled()
    with query(topic, startingOffsets="earliest") as running:
        running.await_rows(20)
        topics.admin.delete_topic(topic)
        with pytest.raises(StreamingQueryException) as caught:
            finish(running.query)
    assert f"{topic}-0, {topic}-1, {topic}-2 no longer exists" in explain(caught.value)
    assert f"records of {topic}-0 from offset 10" in explain(caught.value)


# --- one stream twice, and two together ----------------------------------------------------------------------


def test_a_stream_joined_with_itself_matches_each_record(topics, stream, tmp_path):
    topic = topics.filled()
    read = stream(subscribe=topic, startingOffsets="earliest").selectExpr(
        "CAST(CAST(value AS STRING) AS INT) AS number"
    )
    run = Query(read.join(read.selectExpr("number AS other"), f.expr("number = other")), tmp_path / "checkpoint")
    run.run()
    assert sorted(run.rows) == [(number, number) for number in range(20)]


def test_a_union_of_two_streams_continues_if_only_one_has_new_records(topics, stream, tmp_path):
    one, other = topics.filled(), topics.filled()

    def both():
        frames = [
            stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="100").selectExpr(
                "CAST(CAST(value AS STRING) AS INT)"
            )
            for topic in (one, other)
        ]
        return Query(frames[0].union(frames[1]), tmp_path / "checkpoint")

    assert len(both().run().rows) == 40
    topics.send(one, {0: [70]})
    assert both().run().values() == [70]
    topics.send(other, {2: [71]})
    assert both().run().values() == [71]


def test_a_window_is_emitted_when_the_watermark_has_passed_its_end(topics, stream, tmp_path):
    topic = topics.filled()
    counted = (
        stream(subscribe=topic, startingOffsets="earliest")
        .withWatermark("timestamp", "10 seconds")
        .groupBy(f.window("timestamp", "10 seconds"))
        .count()
        .selectExpr("CAST(window.start AS LONG)", "count")
    )
    # The time of the second batch is after the first batch's window.
    first = Query(counted, tmp_path / "checkpoint")
    first._writer = first._writer.outputMode("append")
    first.run()
    topics.send(topic, {0: [60_000]})
    second = Query(counted, tmp_path / "checkpoint")
    second._writer = second._writer.outputMode("append")
    second.run()
    assert first.rows + second.rows == [(START_MS // 1000, 20)]


# --- rows ----------------------------------------------------------------------------------------------------


def test_columns_of_a_stream_are_those_of_the_connector(topics, stream):
    topic = topics.create()
    assert stream(subscribe=topic).schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert stream(subscribe=topic, includeHeaders="true").schema["headers"].dataType.simpleString() == (
        "array<struct<key:string,value:binary>>"
    )


@pytest.mark.parametrize(("key", "value"), [(None, b"v"), (b"k", None), (None, None), (b"", b"")])
def test_null_and_empty_keys_and_values_are_distinguished(topics, read, key, value):
    topic = topics.create()
    topics.send(topic, {0: [0]}, key=key, value=value)
    [row] = read(topic).collect()
    assert (row.key, row.value) == (key, value)


# --- batches -------------------------------------------------------------------------------------------------


def test_positions_by_offset_and_by_time_mix(topics, read):
    topic = topics.filled()
    offsets = json.dumps({topic: {"0": 8, "1": 8, "2": -1}})
    assert numbers(read(topic, startingTimestamp=str(START_MS + 3), endingOffsets=offsets,
                        startingOffsetsByTimestampStrategy="latest")) == [3, 4, 5, 6, 7, *range(10, 18)]  # fmt: skip
    starts = json.dumps({topic: {"0": 8, "1": 8, "2": -2}})
    assert numbers(read(topic, startingOffsets=starts, endingTimestamp=str(START_MS + 19))) == [8, 9, 18]


def test_an_end_that_no_record_reaches_is_the_latest(topics, read):
    topic = topics.filled()
    assert numbers(read(topic, endingTimestamp=str(START_MS + 10**6))) == list(range(20))


def test_a_data_frame_can_be_used_twice_in_a_query(topics, read):
    frame = read(topics.filled())
    assert frame.union(frame).count() == 40
    assert frame.join(frame.selectExpr("value AS other"), f.expr("value = other")).count() == 20


def test_the_earliest_offsets_are_those_of_the_moment_of_reading(topics, read):
    topic = topics.filled()
    frame = read(topic)
    topics.admin.delete_records({TopicPartition(topic, 0): 6})
    assert numbers(frame) == list(range(6, 20))


def test_options_for_more_and_smaller_tasks_lose_no_record(topics, read):
    topic = topics.filled()
    for options, least in [({"minPartitions": "6"}, 6), ({"maxRecordsPerPartition": "3"}, 7)]:
        frame = read(topic, **options)
        assert frame.rdd.getNumPartitions() >= least
        assert numbers(frame) == list(range(20))


BAD_OPTIONS = [
    ({"subscribe": None}, "exactly one of subscribe, subscribePattern and assign"),
    ({"assign": '{"t": [0]}'}, "exactly one of subscribe, subscribePattern and assign"),
    ({"subscribe": ""}, "subscribe='': expected topics separated by commas"),
    ({"subscribe": None, "assign": "{}"}, "assign='{}': expected JSON such as {\"topic\": [0, 1]}"),
    ({"subscribe": None, "subscribePattern": ""}, "subscribePattern='': expected"),
    ({"minPartitions": "0"}, "minPartitions='0': expected a whole number from 1"),
    ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition='0': expected a whole number from 1"),
    ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minOffsetsPerTrigger=9 is above"),
    ({"kafka.auto.offset.reset": "latest"}, "set startingOffsets instead"),
    ({"kafka.key.deserializer": "x"}, "cast the column key instead"),
    ({"kafka.enable.auto.commit": "true"}, "the query's checkpoint keeps its offsets"),
    ({"kafka.interceptor.classes": "x"}, "kafka.interceptor.classes='x' is not supported"),
]


@pytest.mark.parametrize(("wrong", "words"), BAD_OPTIONS)
def test_contradicting_options_are_refused_at_the_creation_of_the_frame(spark, topics, wrong, words):
    options = {"kafka.bootstrap.servers": topics.servers, "subscribe": "t"} | wrong
    given = {name: value for name, value in options.items() if value is not None}
    for reader in (spark.read, spark.readStream):
        with pytest.raises(PySparkException) as caught:
            reader.format("millrace").options(**given).load()
        assert words in explain(caught.value)
