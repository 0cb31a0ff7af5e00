"""Tests of ``spark.read.format("millrace")`` against a real broker.

The tests cover rows, columns, positions, splits and refusals.
"""

import json
import random
import uuid
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

from millrace.clients import Producer
from pyspark_millrace.spark_errors import explain
from pyspark_millrace.transform import encode_transform

pytestmark = pytest.mark.spark

START_MS = 1_700_000_000_000
PARTITIONS = 3
COUNT = 3000


@pytest.fixture(scope="module")
def producer(module_broker):
    producer = Producer({"bootstrap.servers": module_broker.bootstrap_servers, "batch.size": 4096})
    yield producer
    producer.close()


@pytest.fixture(scope="module")
def read(spark, module_broker):
    def load(topic=None, **options):
        named = {"subscribe": topic} if topic else {}
        reader = spark.read.format("millrace").option("kafka.bootstrap.servers", module_broker.bootstrap_servers)
        return reader.options(**named, **options).load()

    return load


def keep(admin, name, **kwargs):
    admin.create_topic(name, configs={"retention.ms": "-1"}, **kwargs)
    return name


@pytest.fixture(scope="module")
def opaque(admin, producer):
    """Create a topic, and return the expected rows of a reader by partition, in order."""
    name = keep(admin, f"opaque-{uuid.uuid4().hex[:8]}", partitions=PARTITIONS)
    chosen = random.Random(1)
    rows = {partition: [] for partition in range(PARTITIONS)}
    for first in range(0, COUNT, 100):
        table = []
        for number in range(first, first + 100):
            # Partition 0 has most rows, so splits must not follow partitions.
            partition = chosen.choice([0, 0, 0, 0, 1, 2])
            key = None if number % 7 == 0 else b"k%d" % number
            value = None if number % 11 == 0 else chosen.randbytes(chosen.randrange(200))
            offset = len(rows[partition])
            rows[partition].append((key, value, name, partition, offset, START_MS + number))
            table.append({"key": key, "value": value, "partition": partition, "timestamp": START_MS + number})
        schema = pa.schema({"key": pa.binary(), "value": pa.binary(), "partition": pa.int32(), "timestamp": pa.int64()})
        producer.send_table(name, pa.Table.from_pylist(table, schema))
    producer.flush()
    return name, rows


TYPED_DDL = "word STRING NOT NULL, amount DOUBLE, n BIGINT, at TIMESTAMP, tags ARRAY<STRING>, d DECIMAL(10,2)"


@pytest.fixture(scope="module")
def typed(admin, producer):
    name = keep(admin, f"typed-{uuid.uuid4().hex[:8]}", partitions=2, schema=TYPED_DDL, key_columns=["word"])
    table = pa.table(
        {
            "word": [f"w{number % 10}" for number in range(COUNT)],
            "amount": [None if number % 5 == 0 else number / 4 for number in range(COUNT)],
            "n": list(range(COUNT)),
            "at": pa.array([(START_MS + number) * 1000 for number in range(COUNT)], pa.timestamp("us", "UTC")),
            "tags": [[str(number), None] if number % 3 else None for number in range(COUNT)],
            "d": pa.array([Decimal(number) for number in range(COUNT)], pa.decimal128(10, 2)),
        }
    )
    producer.send_table(name, table)
    producer.flush()
    return name


def tuples(frame):
    chosen = frame.select("key", "value", "topic", "partition", "offset", f.unix_millis("timestamp").alias("ms"))
    binary = {True: bytes, False: lambda value: None}
    return [
        (*(binary[value is not None](value) for value in row[:2]), *row[2:])
        for row in chosen.orderBy("partition", "offset").collect()
    ]


def refusal(action):
    with pytest.raises(Exception) as caught:  # noqa: PT011  Spark's own classes, of which the sentence is what counts
        action()
    return explain(caught.value)


# --- rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"directReads": "always"},
        {"directReads": "never"},
        {"splitBytes": "5000", "maxRecordsPerBatch": "37"},
        {"directReads": "never", "minPartitions": "13", "maxRecordsPerBatch": "200"},
        {"maxRecordsPerPartition": "101"},
    ],
    ids=lambda options: ",".join(f"{name}={value}" for name, value in options.items()),
)
def test_every_path_and_split_gives_the_same_rows(read, opaque, options):
    name, rows = opaque
    assert tuples(read(name, **options)) == [row for partition in rows.values() for row in partition]


def test_any_range_and_split_gives_the_rows_of_the_range(read, opaque):
    name, rows = opaque
    chosen = random.Random(2)
    for _ in range(4):
        starts, ends, expected = {}, {}, []
        for partition, found in rows.items():
            start = chosen.randrange(len(found))
            end = chosen.randrange(start, len(found) + 1)
            starts[str(partition)], ends[str(partition)] = start, end
            expected += found[start:end]
        frame = read(
            name,
            startingOffsets=json.dumps({name: starts}),
            endingOffsets=json.dumps({name: ends}),
            splitBytes=str(chosen.choice([1, 3000, 50_000])),
            directReads=chosen.choice(["always", "never"]),
        )
        assert tuples(frame) == expected


def test_splits_follow_bytes_and_not_partitions(read, opaque):
    name, _ = opaque
    assert read(name).rdd.getNumPartitions() == PARTITIONS
    assert read(name, minPartitions="9").rdd.getNumPartitions() >= 9
    assert read(name, splitBytes="20000").rdd.getNumPartitions() > 2 * PARTITIONS


def test_counts_limits_and_groups_are_those_of_the_records(read, opaque):
    name, rows = opaque
    frame = read(name)
    assert frame.count() == COUNT
    assert read(name, columns="value").count() == COUNT
    assert len(frame.limit(5).collect()) == 5
    assert frame.groupBy("partition").count().orderBy("partition").collect() == [
        (partition, len(found)) for partition, found in rows.items()
    ]


def test_an_empty_topic_and_an_empty_range_give_no_rows(read, admin, opaque):
    name = keep(admin, f"empty-{uuid.uuid4().hex[:8]}", partitions=2)
    assert read(name).count() == 0
    everything = json.dumps({opaque[0]: dict.fromkeys("012", 0)})
    assert read(opaque[0], endingOffsets=everything).count() == 0


def test_headers_are_read_with_include_headers(read, admin, producer):
    name = keep(admin, f"headers-{uuid.uuid4().hex[:8]}", partitions=1)
    producer.send(name, b"a", headers=[("h", b"1"), ("h", None)])
    producer.send(name, b"b")
    producer.flush()
    found = [row["headers"] for row in read(name, includeHeaders="true").orderBy("offset").collect()]
    assert [[(key, value and bytes(value)) for key, value in row] for row in found if row] == [
        [("h", b"1"), ("h", None)]
    ]
    assert found[1] is None
    assert "headers" not in read(name).columns


# --- typed topics --------------------------------------------------------------------------------------------


def test_typed_topics_are_real_columns(read, typed):
    frame = read(typed)
    types = dict(frame.dtypes)
    assert types == {
        "word": "string", "amount": "double", "n": "bigint", "at": "timestamp", "tags": "array<string>",
        "d": "decimal(10,2)",
    }  # fmt: skip
    assert not frame.schema["word"].nullable
    found = frame.orderBy("n").collect()
    assert len(found) == COUNT
    row = found[1234]
    assert (row["word"], row["amount"], row["n"], str(row["d"])) == ("w4", 308.5, 1234, "1234.00")
    assert row["tags"] == ["1234", None]
    assert found[1235]["amount"] is None
    assert frame.where("n = 7").select(f.unix_millis("at")).collect() == [(START_MS + 7,)]


@pytest.mark.parametrize("direct", ["always", "never"])
def test_only_the_chosen_columns_and_metadata_are_read(read, typed, direct):
    frame = read(typed, columns="n,__offset,__partition,__topic,__timestamp_type,amount", directReads=direct)
    assert frame.columns == ["n", "__offset", "__partition", "__topic", "__timestamp_type", "amount"]
    assert frame.agg(f.sum("n"), f.count("amount")).collect() == [(sum(range(COUNT)), COUNT * 4 // 5)]
    offsets = frame.groupBy("__partition").agg(f.count("*"), f.max("__offset") + 1).collect()
    assert all(count == end for _, count, end in offsets)
    assert frame.select("__topic").distinct().collect() == [(typed,)]


def test_a_schema_given_by_the_user_chooses_columns(spark, module_broker, typed):
    reader = spark.read.format("millrace").option("kafka.bootstrap.servers", module_broker.bootstrap_servers)
    reader = reader.option("subscribe", typed)
    assert reader.schema("n BIGINT, word STRING").load().agg(f.sum("n")).collect() == [(sum(range(COUNT)),)]
    assert "column n" in refusal(lambda: reader.schema("n STRING").load().collect())


def test_include_metadata_adds_all_metadata_columns(read, typed):
    assert read(typed, includeMetadata="true").columns[-6:] == [
        "__topic", "__partition", "__offset", "__timestamp", "__timestamp_type", "__headers",
    ]  # fmt: skip


def test_a_topic_s_schema_grows(read, admin, producer):
    name = keep(admin, f"grows-{uuid.uuid4().hex[:8]}", partitions=1, schema="a INT")
    producer.send_table(name, pa.table({"a": pa.array([1, 2], pa.int32())}))
    producer.flush()
    before = read(name)
    admin.evolve_schema(name, "a INT, b STRING")
    producer.send_table(name, pa.table({"a": pa.array([3], pa.int32()), "b": ["x"]}))
    producer.flush()
    assert read(name).orderBy("a").collect() == [(1, None), (2, None), (3, "x")]
    assert before.orderBy("a").collect() == [(1,), (2,), (3,)]


# --- selection of records ------------------------------------------------------------------------------------


def test_patterns_lists_and_assignments_select_topics_and_partitions(read, admin, producer):
    prefix = f"many-{uuid.uuid4().hex[:8]}"
    for number in range(3):
        name = keep(admin, f"{prefix}.{number}", partitions=2)
        for partition in range(2):
            producer.send(name, b"v", partition=partition)
    producer.flush()
    assert read(subscribePattern=f"{prefix}\\.[01]").select("topic").distinct().count() == 2
    assert read(f"{prefix}.0, {prefix}.2").count() == 4
    assignment = json.dumps({f"{prefix}.0": [1], f"{prefix}.1": [0, 1]})
    assert read(assign=assignment).groupBy("topic").count().orderBy("topic").collect() == [
        (f"{prefix}.0", 1),
        (f"{prefix}.1", 2),
    ]


def test_timestamps_limit_the_records_of_a_batch(read, opaque):
    name, rows = opaque
    everything = [row for partition in rows.values() for row in partition]

    def between(start, end):
        return sum(start <= row[5] < end for row in everything)

    at, until = START_MS + 1000, START_MS + 2000
    assert read(name, startingTimestamp=str(at)).count() == between(at, START_MS + COUNT)
    assert read(name, startingTimestamp=str(at), endingTimestamp=str(until)).count() == between(at, until)
    by_partition = json.dumps({name: dict.fromkeys("012", at)})
    assert read(name, startingOffsetsByTimestamp=by_partition).count() == between(at, START_MS + COUNT)
    beyond = str(START_MS + COUNT)
    assert "has no record at or after" in refusal(lambda: read(name, startingTimestamp=beyond).count())
    assert read(name, startingTimestamp=beyond, startingOffsetsByTimestampStrategy="latest").count() == 0
    assert read(name, endingTimestamp=beyond).count() == COUNT


def test_a_sql_view_reads_a_topic(spark, module_broker, typed):
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW records USING millrace OPTIONS "
        f"('kafka.bootstrap.servers' = '{module_broker.bootstrap_servers}', subscribe = '{typed}')"
    )
    assert spark.sql("SELECT word, count(*) FROM records GROUP BY word ORDER BY word LIMIT 1").collect() == [
        ("w0", 300)
    ]


def test_rows_are_filtered_correctly_with_filter_pushdown_enabled(spark, read, typed):
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert read(typed).where("n < 10").count() == 10
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_function_runs_before_rows_cross_into_the_jvm(read, typed):
    def sums(batches):
        import pyarrow.compute as pc

        for batch in batches:
            yield pa.record_batch([pa.array([pc.sum(batch["n"]).as_py()]), pa.array([batch.num_rows])], ["s", "c"])

    frame = read(typed, columns="n", transform=encode_transform(sums), transformSchema="s BIGINT, c BIGINT")
    assert frame.agg(f.sum("s"), f.sum("c")).collect() == [(sum(range(COUNT)), COUNT)]


# --- refusals ------------------------------------------------------------------------------------------------


def test_refusals_are_one_sentence(read, opaque, typed):
    name, rows = opaque
    nowhere = f"nowhere-{uuid.uuid4().hex[:8]}"
    assert refusal(lambda: read(nowhere)) == (
        f"topic {nowhere}: no such topic or partition; create it first, or correct the options"
    )
    assert "matches no topic" in refusal(lambda: read(subscribePattern="nothing.*"))
    assert "partition " in refusal(lambda: read(assign=json.dumps({name: [99]})))
    assert "did you mean amount?" in refusal(lambda: read(typed, columns="amuont"))
    assert "failOnDataLoss='no': expected true or false" in refusal(lambda: read(name, failOnDataLoss="no"))
    assert "did you mean subscribe" in refusal(lambda: read(name, subscribes="x"))
    assert "have different schemas" in refusal(lambda: read(f"{name},{typed}"))
    assert "kafka.* options" in refusal(lambda: read(name, **{"kafka.request.timeout.ms": "soon"}))
    some = json.dumps({name: {"0": 0}})
    assert f"without {name}-1, without {name}-2" in refusal(lambda: read(name, startingOffsets=some).count())
    assert "is not possible in this kind of query" in refusal(lambda: read(name, startingOffsets="latest").count())
    end = len(rows[1])
    beyond = json.dumps({name: {"0": -1, "1": end + 10, "2": -1}})
    message = f"offsets {end}..{end + 9} of {name}-1 are not in the log, which ends at {end}"
    assert message in refusal(lambda: read(name, endingOffsets=beyond).count())
    assert read(name, endingOffsets=beyond, failOnDataLoss="false").count() == COUNT


def test_a_missing_broker_is_reported_with_the_remedy(spark):
    reader = spark.read.format("millrace").option("kafka.bootstrap.servers", "127.0.0.1:1").option("subscribe", "t")
    reader = reader.option("kafka.socket.connection.setup.timeout.ms", "200")
    assert "no broker answers at 127.0.0.1:1: start one with 'millrace broker'" in refusal(reader.load)


def test_a_topic_created_again_is_not_the_one_that_was_loaded(read, admin, producer):
    name = keep(admin, f"anew-{uuid.uuid4().hex[:8]}", partitions=1)
    producer.send(name, b"old")
    producer.flush()
    frame = read(name)
    for _ in range(4):  # so that every worker process has read the earlier topic
        assert frame.count() == 1
    admin.delete_topic(name)
    keep(admin, name, partitions=1)
    with Producer(admin_servers(admin)) as other:
        other.send(name, b"new")
        other.flush()
    message = refusal(frame.count)
    assert f"topic {name}" in message
    assert "deleted and created again" in message or "is not the topic that was read" in message
    assert read(name).count() == 1


def admin_servers(admin):
    brokers = admin.describe_cluster().brokers
    return ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
