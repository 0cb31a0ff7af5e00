"""Tests of ``upsert``.

A small batch takes few tasks, and each kind of merge gives equal rows. Batches are DataFrames that the test gives to
the writer, as ``foreachBatch`` does. One test uses a query.
"""

import math
import uuid
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from deltalake import DeltaTable
from pyspark.sql import Row

from millrace.clients import Admin, Producer
from millrace_streams.runners import delta as of_topologies
from pyspark_millrace.delta import direct_merge, in_turn, merging, upsert
from pyspark_millrace.delta.transactions import Transaction

from .streaming_query import finish

pytestmark = pytest.mark.spark

SHUFFLE_PARTITIONS = 200
CHANGES = 150
COLUMNS = "id BIGINT, word STRING, op STRING, at BIGINT"


def writer(table, **options):
    given = {"key": ["id"], "order_by": ["at"], "delete_when": "op = 'd'", "drop": ["op", "at"], "application": "test"}
    return upsert(str(table), **given | options)


def batch(spark, *changes, columns=COLUMNS):
    """Create changes of id, word and op, in their order."""
    return spark.createDataFrame([(*change, at) for at, change in enumerate(changes)], columns)


def create(spark, table, columns="id BIGINT, word STRING", more="", properties=None):
    given = ", ".join(f"'{name}' = '{value}'" for name, value in (properties or {}).items())
    spark.sql(
        f"CREATE TABLE delta.`{table}` ({columns}) USING delta {more} {f'TBLPROPERTIES ({given})' if given else ''}"
    )
    spark.sql(f"INSERT INTO delta.`{table}` (id, word) VALUES (1, 'a'), (2, 'b'), (3, 'c')")


def rows_in(spark, table):
    return sorted((row["id"], row["word"]) for row in spark.read.format("delta").load(str(table)).collect())


def operation(spark, table):
    return spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 1").head()["operation"]


FIRST = [(1, "?", "u"), (2, None, "d"), (4, "d", "i"), (1, "A", "u"), (5, None, "d")]
SECOND = [(3, "C", "u"), (4, None, "d"), (2, "B", "i")]


def check(spark, table, into):
    """Write two batches, the first of them twice, and check the table."""
    into(batch(spark, *FIRST), 0)
    assert rows_in(spark, table) == [(1, "A"), (3, "c"), (4, "d")]
    into(batch(spark, *SECOND), 1)
    assert rows_in(spark, table) == [(1, "A"), (2, "B"), (3, "C")]
    into(batch(spark, *FIRST), 0)
    assert rows_in(spark, table) == [(1, "A"), (2, "B"), (3, "C")]


BY_SPARK = {
    "partitions": {"more": "PARTITIONED BY (word)"},
    "clustering": {"more": "CLUSTER BY (id)"},
    "deletion vectors": {"properties": {"delta.enableDeletionVectors": "true"}},
    "a change data feed": {"properties": {"delta.enableChangeDataFeed": "true"}},
    "column mapping": {"properties": {"delta.columnMapping.mode": "name"}},
    "row tracking": {"properties": {"delta.enableRowTracking": "true"}},
    "in-commit timestamps": {"properties": {"delta.enableInCommitTimestamps": "true"}},
    "a narrower key": {"columns": "id INT, word STRING"},
    "a nested column": {"columns": "id BIGINT, word STRING, more STRUCT<a: INT>"},
    "a limited text": {"columns": "id BIGINT, word VARCHAR(8)"},
}


@pytest.mark.parametrize("feature", BY_SPARK)
def test_tables_with_unsupported_features_are_merged_by_spark(spark, tmp_path, feature):
    create(spark, tmp_path / "t", **BY_SPARK[feature])
    writer(tmp_path / "t")(batch(spark, *FIRST), 0)  # later batches take the same way
    assert rows_in(spark, tmp_path / "t") == [(1, "A"), (3, "c"), (4, "d")]
    assert operation(spark, tmp_path / "t") == "MERGE"


@pytest.mark.parametrize("place", ["driver", "tasks", "spark"])
def test_a_plain_table_is_merged_into_directly_unless_the_batch_is_large(spark, tmp_path, place, monkeypatch):
    if place == "tasks":
        monkeypatch.setattr(direct_merge, "DRIVER_BYTES_MAX", -1)
    if place == "spark":
        monkeypatch.setattr(merging, "COLLECTED_BYTES_MAX", -1)
    create(spark, tmp_path / "t")
    check(spark, tmp_path / "t", writer(tmp_path / "t"))
    assert operation(spark, tmp_path / "t") == ("MERGE" if place == "spark" else "WRITE")
    assert DeltaTable(str(tmp_path / "t")).transaction_version("test") == 1


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("exists", [False, True])
def test_a_topologys_table_has_one_row_of_a_key_that_several_buckets_have(
    spark, tmp_path, is_large, exists, monkeypatch
):
    if is_large:
        monkeypatch.setattr(merging, "COLLECTED_BYTES_MAX", -1)
    if exists:
        create(spark, tmp_path / "t")
    for number in range(2):
        rows = spark.createDataFrame([(1, f"one {number}"), (4, "x"), (1, f"other {number}")], "id BIGINT, word STRING")
        of_topologies.upsert(rows, str(tmp_path / "t"), ["id"], Transaction(application="test", version=number))
    found = rows_in(spark, tmp_path / "t")
    assert found[0] in ([(1, "other 1")] if not is_large else [(1, "one 1"), (1, "other 1")])
    assert found[1:] == [*([(2, "b"), (3, "c")] if exists else []), (4, "x")]


def test_a_constraint_of_the_table_is_kept(spark, tmp_path):
    create(spark, tmp_path / "t")
    spark.sql(f"ALTER TABLE delta.`{tmp_path / 't'}` ADD CONSTRAINT short CHECK (length(word) < 3)")
    check(spark, tmp_path / "t", writer(tmp_path / "t"))
    with pytest.raises(Exception, match="short"):
        writer(tmp_path / "t")(batch(spark, (1, "much too long", "u")), 2)


def test_changes_are_in_the_feed_of_a_table_that_keeps_one(spark, tmp_path):
    create(spark, tmp_path / "t", properties={"delta.enableChangeDataFeed": "true"})
    writer(tmp_path / "t")(batch(spark, *FIRST), 0)
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 2)
    found = {(row["id"], row["_change_type"]) for row in feed.load(str(tmp_path / "t")).collect()}
    assert found == {(1, "update_preimage"), (1, "update_postimage"), (2, "delete"), (4, "insert")}


def test_a_column_is_added_by_spark_and_then_merged_directly(spark, tmp_path):
    create(spark, tmp_path / "t")
    into = writer(tmp_path / "t", drop=["at"], merge_schema=True)
    into(batch(spark, *FIRST), 0)
    assert operation(spark, tmp_path / "t") == "MERGE"
    into(batch(spark, *SECOND), 1)
    assert operation(spark, tmp_path / "t") == "WRITE"
    found = {row["id"]: row["op"] for row in spark.read.format("delta").load(str(tmp_path / "t")).collect()}
    assert found == {1: "u", 2: "i", 3: "u"}


VALUES = [
    ("BOOLEAN", True, False),
    ("TINYINT", -128, 127),
    ("DECIMAL(20,3)", Decimal("12345678901234567.891"), Decimal("-0.001")),
    ("FLOAT", 0.5, math.inf),
    ("DOUBLE", math.nan, -0.0),
    ("BINARY", bytearray(b"\0\xff"), bytearray()),
    ("DATE", datetime(1, 1, 1).date(), datetime(9999, 12, 31).date()),
    ("TIMESTAMP", datetime(1582, 10, 4, 23, 59, 59, 999999, UTC), datetime(9999, 12, 31, 23, 59, 59, 1, UTC)),
    ("TIMESTAMP_NTZ", datetime(1900, 1, 1, 0, 0, 0, 7), datetime(2300, 1, 1)),
]


def test_values_of_all_types_are_those_that_spark_wrote(spark, tmp_path):
    # Row 1 stays as Spark wrote it, in a file that is rewritten. Row 2 is updated, and row 3 is new.
    names = [f"c{number}" for number in range(len(VALUES))]
    columns = ", ".join(f"{name} {sql}" for name, (sql, *_) in zip(names, VALUES, strict=True))
    schema, (first, second) = f"id BIGINT, {columns}", ([value[at] for value in VALUES] for at in (1, 2))
    table = tmp_path / "t"
    old = spark.createDataFrame([(1, *first), (2, *[None] * len(VALUES))], schema)
    old.coalesce(1).write.format("delta").save(str(table))
    expected = spark.createDataFrame([(1, *first), (2, *second), (3, *first)], schema)
    into = upsert(str(table), key=["id"], order_by=["id"], application="test")
    into(expected.where("id > 1"), 0)
    assert operation(spark, table) == "WRITE"
    found = spark.read.format("delta").load(str(table))
    assert found.schema == old.schema
    assert list(map(text, found.orderBy("id").collect())) == list(map(text, expected.orderBy("id").collect()))
    # NaN is larger than any number in Spark, and no file with a NaN is skipped.
    assert {row["id"] for row in found.where("c4 > 1e300").collect()} == {1, 3}
    assert {row["id"] for row in found.where("c7 >= TIMESTAMP'9999-01-01'").collect()} == {2}


def text(row: Row) -> str:
    return str(row)  # NaN is not equal to itself


def test_several_tables_of_one_batch_read_it_once(spark, tmp_path):
    calls = spark.sparkContext.accumulator(0)

    def counted(batches):
        for each in batches:
            calls.add(each.num_rows)
            yield each

    rows = batch(spark, *FIRST).mapInArrow(counted, COLUMNS)
    in_turn(writer(tmp_path / "one"), writer(tmp_path / "two"))(rows, 0)
    assert rows_in(spark, tmp_path / "one") == rows_in(spark, tmp_path / "two") == [(1, "A"), (4, "d")]
    assert calls.value == len(FIRST)
    assert not rows.storageLevel.useMemory


@pytest.fixture
def changes(module_broker):
    """Return the options of a reader of a topic with changes of that many keys."""
    servers, topic = module_broker.bootstrap_servers, f"changes-{uuid.uuid4().hex[:8]}"
    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_topic(topic, partitions=2, schema="id BIGINT NOT NULL, word STRING", key_columns=["id"])
        for number in range(CHANGES):
            producer.send(topic, {"id": number, "word": f"w{number}"})
    columns = "id,word,__partition,__offset"
    return {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest", "columns": columns}


def tasks_of(spark, query):
    """Return the number of tasks of each of a query's jobs."""
    tracker, count = spark.sparkContext.statusTracker(), 0
    for job in tracker.getJobIdsForGroup(str(query.runId)):
        for stage in tracker.getJobInfo(job).stageIds:
            found = tracker.getStageInfo(stage)
            count += found.numCompletedTasks if found is not None else 0
    return count


@pytest.mark.parametrize("way", ["direct", "partitioned"])
def test_a_small_batch_has_few_tasks_for_any_number_of_shuffle_partitions(spark, changes, tmp_path, way):
    table, before = tmp_path / "t", spark.conf.get("spark.sql.shuffle.partitions")
    create(spark, table, more="PARTITIONED BY (word)" if way == "partitioned" else "")
    frame = spark.readStream.format("millrace").options(**changes).load()
    into = upsert(str(table), key=["id"])
    spark.conf.set("spark.sql.shuffle.partitions", str(SHUFFLE_PARTITIONS))
    try:
        writing = frame.writeStream.foreachBatch(into).option("checkpointLocation", str(tmp_path / "c"))
        query = writing.trigger(availableNow=True).start()
        finish(query)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    assert rows_in(spark, table) == [(number, f"w{number}") for number in range(CHANGES)]
    assert 0 < tasks_of(spark, query) < SHUFFLE_PARTITIONS
