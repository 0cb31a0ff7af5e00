"""Tests of direct ingest against Spark's own sink.

Both write the same tables, each row once, whatever fails in between.
"""

import datetime as dt
import json
import math
import uuid
from decimal import Decimal
from functools import reduce

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from millrace.clients import Admin, Producer
from millrace.errors import SchemaMismatchError, UsageError
from pyspark_millrace.delta import ingest
from pyspark_millrace.spark_errors import explain

from .streaming_query import finish

pytestmark = pytest.mark.spark

EVERY_TYPE = (
    "tiny TINYINT, small SMALLINT, n INT NOT NULL, big BIGINT, x FLOAT, y DOUBLE, price DECIMAL(20, 4), flag BOOLEAN, "
    "word STRING, raw BINARY, day DATE, at TIMESTAMP, wall TIMESTAMP_NTZ, tags ARRAY<STRING>, "
    "place STRUCT<name: STRING, lat: DOUBLE, at: TIMESTAMP>, counts MAP<STRING, INT>"
)


def row(n):
    if n % 7 == 3:
        return {"n": n}
    at = dt.datetime(2026, 1, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC) + dt.timedelta(milliseconds=n * 37)
    return {
        "tiny": n % 256 - 128,
        "small": -n,
        "n": n,
        "big": n * 10**15,
        "x": n / 3,
        "y": math.nan if n % 50 == 49 else n / 7,
        "price": Decimal(n * 123456789) / 10000,
        "flag": n % 2 == 0,
        "word": "ü" * (n % 70) + str(n),
        "raw": bytes([n % 256]),
        "day": dt.date(1969, 12, 1) + dt.timedelta(days=n),
        "at": at,
        "wall": at.replace(tzinfo=None),
        "tags": [str(n)] * (n % 3),
        "place": None if n % 5 == 0 else {"name": f"p{n}", "lat": n / 2, "at": at},
        "counts": {str(n): n},
    }


class Topic:
    def __init__(self, broker, schema, partitions=3):
        self.name, self.servers, self.schema = f"ingest-{uuid.uuid4().hex[:8]}", broker.bootstrap_servers, schema
        with Admin(self.servers) as admin:
            admin.create_topic(self.name, partitions=partitions, schema=schema, configs={"retention.ms": "-1"})

    def send(self, rows):
        with Admin(self.servers) as admin:
            schema = admin.describe_topic(self.name).schema
        with Producer(self.servers) as producer:
            producer.send_table(self.name, pa.Table.from_pylist(rows, schema))
            producer.flush()

    def numbers(self, count, first=0):
        self.send([{"n": n, "word": f"w{n % 4}"} for n in range(first, first + count)])

    @property
    def options(self):
        return {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.name,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": 100,
        }


@pytest.fixture
def words(module_broker):
    topic = Topic(module_broker, "n BIGINT NOT NULL, word STRING")
    topic.numbers(250)
    return topic


@pytest.fixture
def table(tmp_path):
    return tmp_path / "table"


def run(spark, topic, table, *, checkpoint=None, **arguments):
    batches = []
    place = checkpoint or table / "_checkpoint"
    query = ingest(spark, topic.options, str(table), checkpoint=str(place), on_batch=batches.append, **arguments)
    finish(query)
    return batches


def run_sparks_sink(spark, topic, table, *, checkpoint=None, **options):
    records = spark.readStream.format("millrace").options(**topic.options).load()
    writer = records.writeStream.format("delta").options(**options).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint or table / "_checkpoint")).start(str(table))
    finish(query)


def numbers_in(table):
    return sorted(DeltaTable(str(table)).to_pyarrow_table()["n"].to_pylist())


def forget_last_batch(checkpoint):
    """Remove the last commit from the checkpoint, as if the driver had died after the table's commit."""
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    return int(last.name)


def test_the_table_is_the_one_that_sparks_sink_makes(spark, module_broker, tmp_path):
    topic, theirs, ours = Topic(module_broker, EVERY_TYPE), tmp_path / "theirs", tmp_path / "ours"
    topic.send([row(n) for n in range(240)])
    batches = run(spark, topic, ours)
    run_sparks_sink(spark, topic, theirs)
    assert sum(batch.rows for batch in batches) == 240
    assert [batch.table_version for batch in batches] == [1, 2, 3]
    ours_read, theirs_read = (spark.read.format("delta").load(str(path)) for path in (ours, theirs))
    assert ours_read.schema == theirs_read.schema
    comparable = [name for name in ours_read.columns if name != "counts"]  # maps cannot be compared
    for one, other in ((ours_read, theirs_read), (theirs_read, ours_read)):
        assert one.select(comparable).exceptAll(other.select(comparable)).count() == 0
    assert dict(ours_read.selectExpr("n", "counts[string(n)]").collect()) == {
        n: None if n % 7 == 3 else n for n in range(240)
    }
    assert DeltaTable(str(ours)).to_pyarrow_table().sort_by("n")["place"].to_pylist()[1]["name"] == "p1"


def test_skipping_files_by_statistics_loses_no_row(spark, module_broker, table):
    topic = Topic(module_broker, EVERY_TYPE, partitions=2)
    topic.send([row(n) for n in range(240)])
    run(spark, topic, table)
    every_file = spark.read.parquet(*DeltaTable(str(table)).file_uris())
    skipping = spark.read.format("delta").load(str(table))
    counts = []
    columns = ["tiny", "n", "big", "x", "y", "price", "word", "day", "at", "wall", "place.at"]
    for column in columns:
        # Only literals skip files. NaN is the largest value, where there is one.
        largest = every_file.agg(F.max(column)).first()[0]
        condition = F.col(column) >= F.lit(largest)
        counts.append([frame.filter(condition).select(F.lit(column)) for frame in (every_file, skipping)])
    found = [
        dict(reduce(DataFrame.unionAll, frames).toDF("column").groupBy("column").count().collect())
        for frames in zip(*counts, strict=True)
    ]
    assert found[0] == found[1]
    assert found[0].keys() == set(columns)


def test_a_batch_that_spark_forgot_is_not_written_again(spark, words, table):
    assert len(run(spark, words, table)) == 3
    assert forget_last_batch(table / "_checkpoint") == 2
    files = sorted(path.name for path in table.glob("*.parquet"))
    words.numbers(10, first=250)
    again = run(spark, words, table)
    # The batch is not even read again. Then the query continues.
    assert [(batch.batch_id, batch.rows, batch.table_version) for batch in again] == [(2, 0, None), (3, 10, 4)]
    assert set(files) < {path.name for path in table.glob("*.parquet")}
    assert numbers_in(table) == list(range(260))


def test_a_checkpoint_goes_from_one_writer_to_the_other_and_back(spark, words, table):
    checkpoint = table / "_checkpoint"
    run(spark, words, table)
    forget_last_batch(checkpoint)
    words.numbers(30, first=250)
    run_sparks_sink(spark, words, table)
    assert numbers_in(table) == list(range(280))
    forget_last_batch(checkpoint)
    words.numbers(30, first=280)
    run(spark, words, table)
    assert numbers_in(table) == list(range(310))
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()
    assert {entry["operation"] for entry in history} == {"CREATE TABLE", "WRITE", "STREAMING UPDATE"}


def test_a_query_that_fails_leaves_nothing_and_continues_later(spark, words, table, tmp_path):
    marker = tmp_path / "healed"

    def fragile(batches):
        for batch in batches:
            if not marker.exists() and 120 in batch.column("n").to_pylist():
                raise ValueError("batch with 120")
            yield batch

    def attempt():
        from pyspark.sql.types import StructType

        schema = StructType.fromDDL("n BIGINT, word STRING")
        columns = words.options | {"columns": "n,word"}
        query = ingest(
            spark, columns, str(table), checkpoint=str(table / "_c"), transform=fragile, transform_schema=schema
        )
        finish(query)

    with pytest.raises(StreamingQueryException) as failure:
        attempt()
    assert explain(failure.value) == "ValueError: batch with 120"
    there = numbers_in(table)
    assert 120 not in there
    assert len(there) == len(set(there)) == 100
    marker.touch()
    attempt()
    assert numbers_in(table) == list(range(250))


def test_a_table_is_partitioned_by_the_chosen_columns(spark, words, table):
    run(spark, words, table, partition_by=["word"])
    found = spark.read.format("delta").load(str(table))
    assert found.schema.simpleString() == "struct<n:bigint,word:string>"
    assert found.filter("word = 'w3'").count() == sum(n % 4 == 3 for n in range(250))
    assert numbers_in(table) == list(range(250))
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{table}`").first()
    assert detail["partitionColumns"] == ["word"]
    # A later query that does not name them keeps them.
    words.numbers(5, first=250)
    run(spark, words, table)
    assert numbers_in(table) == list(range(255))


def test_a_new_column_of_the_topic_is_refused_unless_merge_schema_is_set(spark, words, table):
    run(spark, words, table)
    with Admin(words.servers) as admin:
        admin.evolve_schema(words.name, "n BIGINT NOT NULL, word STRING, extra DOUBLE")
    words.send([{"n": 250, "word": "x", "extra": 0.5}])
    with pytest.raises(SchemaMismatchError, match="has no column extra: allow columns to be added"):
        run(spark, words, table)
    run(spark, words, table, merge_schema=True)
    assert numbers_in(table) == list(range(251))
    found = spark.read.format("delta").load(str(table))
    assert [tuple(each) for each in found.filter("extra IS NOT NULL").collect()] == [(250, "x", 0.5)]


def test_an_opaque_topic_is_ingested_with_sparks_kafka_columns(spark, module_broker, table):
    topic = Topic(module_broker, None)
    with Producer(topic.servers) as producer:
        for number in range(20):
            producer.send(topic.name, b"v%d" % number, key=b"k", timestamp_ms=1_700_000_000_000 + number)
        producer.flush()
    run(spark, topic, table)
    found = DeltaTable(str(table)).to_pyarrow_table()
    assert found.schema.names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert sorted(found["value"].to_pylist()) == sorted(b"v%d" % number for number in range(20))
    (stats,) = {action["stats"] for action in added(table)} if len(added(table)) == 1 else (added(table)[0]["stats"],)
    assert json.loads(stats)["numRecords"] > 0


def test_metadata_columns_and_headers_come_along(spark, module_broker, words, tmp_path):
    opaque = Topic(module_broker, None, partitions=1)
    with Producer(opaque.servers) as producer:
        producer.send(opaque.name, b"v", headers=[("h", b"1")])
        producer.flush()
    for topic, option, names in (
        (words, "includeMetadata", ["n", "word", "__topic", "__partition", "__offset", "__timestamp"]),
        (opaque, "includeheaders", ["key", "value", "topic", "partition", "offset", "timestamp"]),
    ):
        table = tmp_path / option
        query = ingest(spark, topic.options | {option: True}, str(table), checkpoint=str(table / "_c"))
        finish(query)
        found = DeltaTable(str(table)).to_pyarrow_table()
        assert found.schema.names[:6] == names
    assert found["headers"].to_pylist() == [[{"key": "h", "value": b"1"}]]


def added(table):
    lines = (table / "_delta_log" / f"{1:020}.json").read_text().splitlines()
    return [action["add"] for action in map(json.loads, lines) if "add" in action]


def test_an_ingest_continues_until_it_is_stopped(spark, words, table):
    words.numbers(0)
    seen = []
    query = ingest(
        spark,
        words.options,
        str(table),
        checkpoint=str(table / "_checkpoint"),
        trigger={"processingTime": "0 seconds"},
        on_batch=seen.append,
    )
    query.processAllAvailable()
    words.numbers(20, first=250)
    query.processAllAvailable()
    query.stop()
    assert sum(batch.rows for batch in seen) == 270
    assert numbers_in(table) == list(range(270))


def test_invalid_options_are_refused_before_any_read(spark, words, table):
    for arguments, problem in (
        ({"partition_by": ["nowhere"]}, "partition column nowhere"),
        ({"partition_by": ["n", "word"]}, "leave one to store"),
        ({"transform": list}, "give both or none"),
    ):
        with pytest.raises(UsageError, match=problem):
            run(spark, words, table, **arguments)
    with pytest.raises(UsageError, match="s3a://bucket/t: a direct ingest writes to local and shared file systems"):
        ingest(spark, words.options, "s3a://bucket/t", checkpoint=str(table / "_c"))
    with pytest.raises(UsageError, match="give the function to ingest"):
        ingest(spark, words.options | {"transform": "x"}, str(table), checkpoint=str(table / "_c"))
    assert not table.exists() or not list(table.glob("*.parquet"))
