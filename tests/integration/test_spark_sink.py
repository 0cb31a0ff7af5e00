"""Tests of ``df.write`` and ``writeStream`` with ``format("millrace")`` on a real broker.

A plain consumer reads the result.
"""

import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812

from millrace.clients import Admin, Consumer, Producer
from millrace.errors import InvalidTxnStateError, SchemaMismatchError, UnknownTopicOrPartitionError, UsageError
from pyspark_millrace.spark_errors import millrace_error_in

from .streaming_query import finish
from .waiting import Stall, eventually

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


@pytest.fixture(scope="module")
def admin(module_broker):
    with Admin(module_broker.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def make(admin):
    """Make a topic and give its name."""

    def make(partitions=3, **given):
        name = f"sink-{uuid.uuid4().hex[:8]}"
        admin.create_topic(name, partitions=partitions, configs={"retention.ms": "-1"}, **given)
        return name

    return make


@pytest.fixture
def records(admin, module_broker):
    """Return a topic's records as a plain consumer reads them, once no transaction is open."""

    def records(topic, isolation="read_committed"):
        config = {"bootstrap.servers": module_broker.bootstrap_servers, "auto.offset.reset": "earliest"}
        with Consumer({**config, "isolation.level": isolation}) as consumer:
            partitions = consumer.partitions_for(topic)
            latest = dict.fromkeys(partitions, "latest")
            eventually(
                lambda: admin.list_offsets(latest, isolation_level="read_committed") == admin.list_offsets(latest)
            )
            ends = admin.list_offsets(latest)
            stall = Stall("all records")
            consumer.assign(partitions)
            found = []
            while any(consumer.position(partition) < end.offset for partition, end in ends.items()):
                stall.check(len(found))
                found += consumer.poll(100)
            return found

    return records


@pytest.fixture
def write(module_broker):
    """Write a DataFrame as a batch."""

    def write(frame, topic=None, mode="append", **options):
        if topic is not None:
            options["topic"] = topic
        options.setdefault("kafka.bootstrap.servers", module_broker.bootstrap_servers)
        frame.write.format("millrace").options(**options).mode(mode).save()

    return write


def refused(kind, action):
    with pytest.raises(Exception) as caught:  # noqa: PT011  Spark wraps it in what it likes
        action()
    error = millrace_error_in(caught.value)
    assert type(error) is kind, str(caught.value)
    return error.message


# --- batch --------------------------------------------------------------------------------------------------------


def test_all_columns_of_an_opaque_topic_are_written(spark, make, records, write):
    topic = make()
    schema = (
        "key STRING, value STRING, partition INT, timestamp TIMESTAMP, offset BIGINT, more STRING, "
        "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    )
    rows = [
        ("a", "one", 2, NOON, 77, "passed over", [("h", b"1"), ("h", None)]),
        (None, None, 1, NOON, 78, None, None),
        ("b", "two", None, None, 79, "", []),
    ]
    before = time.time_ns() // 1_000_000
    write(spark.createDataFrame(rows, schema), topic)
    found = sorted(records(topic), key=lambda record: record.value or b"")
    assert [(record.key, record.value) for record in found] == [(None, None), (b"a", b"one"), (b"b", b"two")]
    assert [record.partition for record in found[:2]] == [1, 2]
    assert [record.timestamp_ms for record in found[:2]] == [NOON_MS, NOON_MS]
    assert before <= found[2].timestamp_ms <= time.time_ns() // 1_000_000, (
        "without a timestamp column it is the time of the write"
    )
    assert [record.headers for record in found] == [(), (("h", b"1"), ("h", None)), ()]
    write(spark.createDataFrame(rows, schema), topic, includeHeaders="false")
    assert sum(bool(record.headers) for record in records(topic)) == 1


def test_keys_have_the_partitions_that_a_producer_gives_them(spark, make, records, write, module_broker):
    ours, theirs = make(), make()
    keys = [f"key-{number}" for number in range(200)]
    write(spark.createDataFrame([(key.encode(), b"v") for key in keys], "key BINARY, value BINARY"), ours)
    with Producer(module_broker.bootstrap_servers) as producer:
        for key in keys:
            producer.send(theirs, b"v", key=key)
    places = [{record.key: record.partition for record in records(topic)} for topic in (ours, theirs)]
    assert places[0] == places[1]


def test_a_column_names_topics_and_the_option_counts_more(spark, make, records, write):
    one, two, three = make(), make(), make()
    rows = [(one if number % 3 else two, f"{number}") for number in range(30)]
    frame = spark.createDataFrame(rows, "topic STRING, value STRING")
    write(frame)
    for topic in (one, two):
        assert {record.value.decode() for record in records(topic)} == {value for to, value in rows if to == topic}
    write(frame, three)
    assert len(records(three)) == 30
    nobody = spark.createDataFrame([("v", None)], "value STRING, topic STRING")
    assert "null topic present in the data" in refused(SchemaMismatchError, lambda: write(nobody))
    named = frame.withColumnRenamed("topic", "__topic")
    write(named)
    assert len(records(one)) == 40


def test_a_typed_topic_takes_columns_by_name(spark, make, records, write):
    topic = make(schema="id BIGINT NOT NULL, price DECIMAL(9, 2), tags ARRAY<STRING>, at TIMESTAMP", key_columns=["id"])
    frame = spark.createDataFrame([(NOON, 1, ["x", None]), (None, 2, None)], "at TIMESTAMP, id INT, tags ARRAY<STRING>")
    write(frame.withColumn("__timestamp", F.lit(NOON)).withColumn("__offset", F.lit(5)), topic)
    found = sorted(records(topic), key=lambda record: record.value["id"])
    assert [record.value["id"] for record in found] == [1, 2]
    assert found[0].value["tags"] == ["x", None]
    assert found[0].value["price"] is None, "a nullable column may be missing"
    assert {record.timestamp_ms for record in found} == {NOON_MS}
    write(frame.select("id").where("id = 1").withColumn("__tombstone", F.lit(True)), topic)
    assert sum(record.value is None for record in records(topic)) == 1


def test_rows_that_were_read_can_be_written(spark, make, records, write, module_broker):
    """Copy an opaque topic with its partitions, times and headers."""
    source, target = make(), make()
    with Producer(module_broker.bootstrap_servers) as producer:
        for number in range(50):
            producer.send(
                source, b"%d" % number, partition=number % 3, timestamp_ms=number, headers={"n": b"%d" % number}
            )
    reader = spark.read.format("millrace").option("kafka.bootstrap.servers", module_broker.bootstrap_servers)
    write(reader.option("subscribe", source).option("includeHeaders", "true").load(), target)
    contents = [
        sorted((record.partition, record.timestamp_ms, record.value, record.headers) for record in records(topic))
        for topic in (source, target)
    ]
    assert contents[0] == contents[1]
    assert len(contents[0]) == 50


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("'v' AS val", "required column 'value' not found: topic {topic} is opaque, and the DataFrame has val"),
        ("1 AS value", "column value is INT, expected STRING or BINARY: cast it"),
        ("'v' AS value, 1L AS partition", "column partition is BIGINT, expected INT: cast it"),
        ("'v' AS value, '1' AS timestamp", "column timestamp is STRING, expected TIMESTAMP: cast it"),
        ("'v' AS value, map('a', 'b') AS headers", "column headers is MAP<STRING,STRING>, expected ARRAY<STRUCT<key"),
        ("'v' AS value, 1 AS partition, 2 AS __partition", "the columns partition and __partition have the same"),
    ],
)
def test_columns_that_do_not_fit_are_named_before_anything_starts(spark, make, write, records, columns, message):
    topic = make()
    told = refused_any(lambda: write(spark.sql(f"SELECT {columns}"), topic))
    assert message.format(topic=topic) in told
    assert records(topic) == []


def refused_any(action):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        action()
    error = millrace_error_in(caught.value)
    assert isinstance(error, (UsageError, SchemaMismatchError)), caught.value
    return error.message


def test_typed_columns_that_do_not_fit_are_named_with_both_types(spark, make, write):
    topic = make(schema="id BIGINT NOT NULL, name STRING")
    said = refused(SchemaMismatchError, lambda: write(spark.sql("SELECT 'one' AS id"), topic))
    assert said == "column id: the data is string, but the schema has BIGINT: cast it"
    said = refused(SchemaMismatchError, lambda: write(spark.sql("SELECT 1L AS id, 2 AS nome"), topic))
    assert f"column nome is not in the schema of topic {topic}: its columns are id, name" in said
    said = refused(SchemaMismatchError, lambda: write(spark.sql("SELECT 'x' AS name"), topic))
    assert "column id is missing, and it is NOT NULL" in said
    said = refused(SchemaMismatchError, lambda: write(spark.sql("SELECT CAST(NULL AS BIGINT) AS id"), topic))
    assert "column id, row 0: null, but the column is NOT NULL" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": " "}, "topic=' ': expected a name"),
        ({"path": "/x"}, "option path='/x' is not supported: save() and start() take no path"),
        ({"tpoic": "x"}, "unknown option tpoic='x': did you mean topic?"),
        ({"deliveryGuarantee": "maybe"}, "expected one of exactly-once, at-least-once"),
        (
            {"txnAppId": "a", "txnVersion": "1", "deliveryGuarantee": "at-least-once"},
            "are for deliveryGuarantee=exactly",
        ),
        ({"kafka.transactional.id": "x"}, "set txnAppId instead"),
        ({"kafka.value.serializer": "x"}, "the type of the column value (STRING or BINARY) decides"),
        ({"kafka.linger": "x"}, "in the kafka.* options: "),
        ({"kafka.bootstrap.servers": "nowhere"}, "expected host:port"),
    ],
)
def test_wrong_options_are_named(spark, make, write, options, message):
    frame = spark.sql("SELECT 'v' AS value")
    options = {"topic": make(), **options}
    assert message in refused(UsageError, lambda: write(frame, **options))


def test_a_topic_must_be_named_and_be_there(spark, write):
    frame = spark.sql("SELECT 'v' AS value")
    assert "topic option required when no 'topic' column is present" in refused(UsageError, lambda: write(frame))
    assert "nowhere" in refused(UnknownTopicOrPartitionError, lambda: write(frame, "nowhere"))


def test_topics_are_only_appended_to(spark, make, write):
    frame, topic = spark.sql("SELECT 'v' AS value"), make()
    said = refused(UsageError, lambda: write(frame, topic, mode="overwrite"))
    assert said == "save mode Overwrite not allowed for millrace: allowed is Append, .mode('append')"
    for mode in ("ignore", "errorifexists"):
        with pytest.raises(Exception, match="cannot be written in the"):
            write(frame, topic, mode=mode)


def test_a_batch_write_that_fails_leaves_nothing(spark, make, write, records):
    topic = make()
    failing = spark.range(1000, numPartitions=4).selectExpr(
        "CAST(id AS STRING) AS value", "IF(id = 900, raise_error('planted'), 1) AS more"
    )
    failing = failing.selectExpr("CONCAT(value, more) AS value")
    with pytest.raises(Exception, match="planted"):
        write(failing, topic)
    assert records(topic) == []


def test_a_write_with_a_number_is_made_once_and_others_are_new(spark, make, write, records):
    topic, name = make(), f"app-{uuid.uuid4().hex[:8]}"
    frame = spark.range(100, numPartitions=3).selectExpr("CAST(id AS STRING) AS value")
    for version, rows in ((1, 100), (1, 100), (0, 100), (2, 200), (1, 200), (2, 200)):
        write(frame, topic, txnAppId=name, txnVersion=str(version))
        assert len(records(topic)) == rows, version
    write(frame, topic)
    write(frame, topic)
    assert len(records(topic)) == 400, "without a name each write has its own identity"
    said = refused(UsageError, lambda: write(frame, make(), txnAppId=name, txnVersion="3"))
    assert "belongs to another query" in said
    assert f"batch writes to {topic}" in said


@pytest.mark.parametrize("partition", [3, -1])
def test_a_partition_that_the_topic_has_not_is_named(spark, make, write, records, stream, module_broker, partition):
    source, topic = make(), make()
    column = f"CAST({partition} AS INT) AS partition"
    _send(module_broker, source, [1])
    for wrong in (
        lambda: write(spark.range(2).selectExpr("CAST(id AS STRING) AS value", column), topic),
        lambda: stream(source, topic, transform=lambda frame: frame.selectExpr("value", column)),
    ):
        message = refused(UnknownTopicOrPartitionError, wrong)
        assert f"topic {topic} has no partition {partition}: " in message
    assert records(topic, "read_uncommitted") == []


def test_empty_partitions_and_dataframes_write_nothing(spark, make, write, records, admin):
    topic = make()
    write(spark.range(5, numPartitions=2).where("id < 0").selectExpr("CAST(id AS STRING) AS value"), topic)
    assert records(topic, "read_uncommitted") == []
    write(spark.range(9, numPartitions=9).where("id = 3").selectExpr("CAST(id AS STRING) AS value"), topic)
    assert [record.value for record in records(topic)] == [b"3"]


def test_at_least_once_writes_without_transactions(spark, make, write, records, admin):
    topic = make()
    ids = len(admin.list_transactions())
    frame = spark.range(1000, numPartitions=4).selectExpr("CAST(id AS STRING) AS value")
    write(frame, topic, deliveryGuarantee="at-least-once")
    assert sorted(int(record.value) for record in records(topic)) == list(range(1000))
    assert len(admin.list_transactions()) == ids


def test_a_transaction_that_takes_too_long_says_what_to_raise(spark, make, write, records):
    topic, slow = make(), spark.range(2, numPartitions=2).mapInArrow(_slowly, "value STRING")
    said = refused(InvalidTxnStateError, lambda: write(slow, topic, **{"kafka.transaction.timeout.ms": "300"}))
    assert "raise that setting (and the broker's transaction.max.timeout.ms)" in said
    assert records(topic) == []


def _slowly(batches):
    import threading

    import pyarrow as pa
    from pyspark import TaskContext

    for batch in batches:
        # The second task is still waiting when the timeout of the first one is over.
        threading.Event().wait(2 * TaskContext.get().partitionId())
        yield pa.RecordBatch.from_pydict({"value": [str(number) for number in batch.column(0).to_pylist()]})


# --- streams ------------------------------------------------------------------------------------------------------


@pytest.fixture
def stream(spark, module_broker, tmp_path):
    """Write a topic's values to another one, up to the end, and return the query."""

    def stream(source, target, checkpoint="checkpoint", transform=lambda frame: frame, **options):
        servers = {"kafka.bootstrap.servers": module_broker.bootstrap_servers}
        reader = spark.readStream.format("millrace").options(
            **servers, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="40"
        )
        writer = transform(reader.load().select("key", "value")).writeStream.format("millrace")
        writer = writer.options(**servers, topic=target, checkpointLocation=str(tmp_path / checkpoint), **options)
        query = writer.trigger(availableNow=True).start()
        finish(query)
        return query

    return stream


def _send(broker, topic, numbers):
    with Producer(broker.bootstrap_servers) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, key=b"%d" % number)


def _numbers(found):
    return sorted(int(record.value) for record in found)


def test_a_stream_writes_each_batch_once(stream, make, records, module_broker, tmp_path):
    source, target = make(), make()
    _send(module_broker, source, range(100))
    stream(source, target)
    assert _numbers(records(target)) == list(range(100))
    _send(module_broker, source, range(100, 150))
    stream(source, target)
    assert _numbers(records(target)) == list(range(150))
    # The driver died after the sink's commit and before Spark's, so the last batch is begun again.
    last = max(
        (tmp_path / "checkpoint" / "commits").iterdir(), key=lambda path: int(path.name) if path.name.isdigit() else -1
    )
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)
    stream(source, target)
    assert _numbers(records(target)) == list(range(150))


def test_a_name_belongs_to_one_query(stream, make, records, module_broker):
    source, target, name = make(), make(), f"app-{uuid.uuid4().hex[:8]}"
    _send(module_broker, source, range(50))
    stream(source, target, txnAppId=name)
    stream(source, target, txnAppId=name)
    said = refused(UsageError, lambda: stream(source, target, checkpoint="another", txnAppId=name))
    assert f"txnAppId='{name}' belongs to another query" in said
    assert "Give a txnAppId that is not in use" in said
    assert _numbers(records(target)) == list(range(50))
    stream(source, target, checkpoint="a third")
    assert _numbers(records(target)) == sorted([*range(50), *range(50)]), "a new checkpoint is a new query"


def test_a_restarted_query_aborts_its_open_transactions_at_once(stream, make, records, module_broker, tmp_path, admin):
    # An open transaction under the query's name, from a driver that died, does not wait for its timeout.
    source, target = make(), make()
    _send(module_broker, source, range(40))
    query = stream(source, target)
    name = f"spark-{query.id}"
    dead = Producer(
        {
            "bootstrap.servers": module_broker.bootstrap_servers,
            "transactional.id": name,
            "coordinator.key": name,
            "transaction.timeout.ms": 600_000,
        }
    )
    with dead:
        dead.join_commit(query.lastProgress["batchId"] + 1, attempt="dead", owner=f"query {query.id}")
        dead.begin_transaction()
        dead.send(target, b"9999")
        dead.prepared_transaction()
        _send(module_broker, source, range(40, 60))
        stream(source, target)
        assert _numbers(records(target)) == list(range(60))


def test_complete_mode_appends_all_rows_again_as_kafkas_sink_does(spark, make, records, module_broker, tmp_path):
    source, target = make(1), make(1)
    servers = {"kafka.bootstrap.servers": module_broker.bootstrap_servers}

    def run(mode):
        reader = spark.readStream.format("millrace").options(**servers, subscribe=source, startingOffsets="earliest")
        counted = reader.load().groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value")
        writer = counted.writeStream.format("millrace").outputMode(mode).trigger(availableNow=True)
        writer = writer.options(**servers, topic=target, checkpointLocation=str(tmp_path / mode))
        finish(writer.start())

    _send(module_broker, source, [1])
    run("complete")
    _send(module_broker, source, [1, 2])
    run("complete")
    expected = [(b"1", b"1"), (b"1", b"2"), (b"2", b"1")]
    assert sorted((record.key, record.value) for record in records(target)) == expected
    with pytest.raises(Exception, match="does not support Update mode"):  # which Spark does not offer to a Python sink
        run("update")


def test_the_example_of_the_documents_runs_as_it_stands(spark, module_broker, records, tmp_path, monkeypatch):
    text = (ROOT / "docs" / "spark.md").read_text()
    example = text.partition("## Writing to topics\n\n```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    example = example.replace("localhost:9092", module_broker.bootstrap_servers)
    exec(example.replace('"checkpoints/', f'"{tmp_path}/'), {"spark": spark})
    assert sorted((record.key, record.value) for record in records("orders_loud")) == [
        (b"1", b"TWELVE"),
        (b"2", b"SEVEN"),
    ]


def test_foreach_batch_with_a_name_for_each_topic_writes_each_batch_once(spark, make, records, module_broker, tmp_path):
    source, one, two = make(), make(), make()
    servers = {"kafka.bootstrap.servers": module_broker.bootstrap_servers}
    name = f"app-{uuid.uuid4().hex[:8]}"
    _send(module_broker, source, range(30))

    def save(frame, batch_id):
        for topic in (one, two):
            options = {**servers, "topic": topic, "txnAppId": f"{name}-{topic}", "txnVersion": str(batch_id)}
            for _ in range(2):  # a batch that is begun again
                frame.select("value").write.format("millrace").options(**options).mode("append").save()

    reader = spark.readStream.format("millrace").options(**servers, subscribe=source, startingOffsets="earliest")
    query = reader.load().writeStream.foreachBatch(save).option("checkpointLocation", str(tmp_path / "each"))
    finish(query.trigger(availableNow=True).start())
    for topic in (one, two):
        assert _numbers(records(topic)) == list(range(30))
