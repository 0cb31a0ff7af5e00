"""Tests of filters against Spark's own filter of all rows.

The filters are given by option or pushed down.
"""

import datetime
import math
import uuid
from decimal import Decimal

import pyarrow as pa
import pytest

from millrace.clients import Producer
from millrace.schemas import parse_ddl
from pyspark_millrace.spark_errors import explain

pytestmark = pytest.mark.spark

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
START_MS = 1_700_000_000_000
DDL = (
    "id BIGINT NOT NULL, small SMALLINT, ratio DOUBLE, price DECIMAL(12,2), word STRING, data BINARY, day DATE, "
    "at TIMESTAMP, local TIMESTAMP_NTZ, flag BOOLEAN, tags ARRAY<STRING>"
)
ROWS = 2_000


def row(number):
    moment = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(minutes=number)
    found = {
        "id": number,
        "small": number % 300 - 150,
        "ratio": (float("nan"), float("inf"), -0.0)[number % 3] if number % 50 < 3 else number / 7,
        "price": Decimal(number % 997) / 100,
        "word": f"w{number:05}é",
        "data": bytes([number % 256, 255]),
        "day": moment.date(),
        "at": moment,
        "local": moment.replace(tzinfo=None),
        "flag": number % 2 == 0,
        "tags": ["a"],
    }
    return found | dict.fromkeys([name for name in found if name != "id" and hash((name[0], number % 17)) % 5 == 0])


@pytest.fixture(scope="module")
def typed(admin, module_broker):
    name = f"filtered-{uuid.uuid4().hex[:8]}"
    schema = parse_ddl(DDL)
    admin.create_topic(name, partitions=2, schema=schema, configs={"retention.ms": "-1"})
    with Producer({"bootstrap.servers": module_broker.bootstrap_servers}) as producer:
        # Every batch is large enough for statistics, and has its own range of the values.
        for first in range(0, ROWS, 500):
            table = pa.Table.from_pylist([row(number) for number in range(first, first + 500)], schema=schema)
            times = pa.array([START_MS + number for number in range(first, first + 500)])
            producer.send_table(name, table, partition=first // 500 % 2, timestamps=times)
            producer.flush()
    return name


@pytest.fixture(scope="module")
def load(spark, module_broker):
    def load(topic, **options):
        reader = spark.read.format("millrace").option("kafka.bootstrap.servers", module_broker.bootstrap_servers)
        return reader.option("subscribe", topic).options(**options).load()

    return load


@pytest.fixture(scope="module")
def everything(spark, load, typed):
    """Return all rows, cached by Spark, so that Spark applies its own filter to them."""
    frame = load(typed, includeMetadata="true")
    return spark.createDataFrame(frame.collect(), frame.schema)


@pytest.fixture(params=[False, True], ids=["not pushed", "pushed"])
def pushdown(spark, request):
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, request.param)
    yield request.param
    spark.conf.set(PUSHDOWN, before)


CONDITIONS = [
    "id >= 700 AND id < 720",
    "small = 10 OR small > 140",
    "small <> 10",
    "NOT (small > -100 OR flag)",
    "ratio > 250.5",
    "ratio < 10.0",
    "NOT ratio <= 250.5",
    "ratio = 0.0",
    "price BETWEEN 1.25 AND 1.3",
    "word >= 'w01990'",
    "word IN ('w00003é', 'w01999é', 'nothing')",
    "word NOT IN ('w00003é', NULL)",
    "word LIKE 'w0012%é'",
    "word LIKE '%99_'",
    "data < X'03'",
    "day = DATE '2024-01-02'",
    "at >= TIMESTAMP '2024-01-02T08:00:00Z'",
    "flag IS NULL AND word IS NOT NULL",
    "flag <=> NULL",
    "NOT (small <=> 10) AND id < 300",
    "tags IS NULL",
    "flag",
    "__offset < 3 AND __partition = 1",
    "__timestamp >= TIMESTAMP '2023-11-14T22:13:21.900Z'",
    "__timestamp < TIMESTAMP '2023-11-14T22:13:20.010Z' OR id = 1999",
    "id IS NULL",
]


def comparable(rows):
    """Return values as Spark compares them, where NaN equals itself."""
    found = [tuple("NaN" if isinstance(v, float) and math.isnan(v) else str(v) for v in each) for each in rows]
    return sorted(found)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_option_leaves_what_sparks_filter_leaves(load, typed, everything, condition):
    expected = comparable(everything.where(condition).collect())
    assert len(expected) < ROWS
    assert comparable(load(typed, includeMetadata="true", filter=condition).collect()) == expected


@pytest.mark.parametrize("number", range(0, len(CONDITIONS), 6))
def test_sparks_own_filters_leave_the_same_whether_pushed_or_not(load, typed, everything, pushdown, number):
    for condition in CONDITIONS[number : number + 6]:
        frame = load(typed, includeMetadata="true", pushFilters="true").where(condition)
        assert comparable(frame.collect()) == comparable(everything.where(condition).collect()), condition


def test_a_pushed_filter_is_not_applied_again_by_spark(spark, load, typed):
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, True)
    try:
        frame = load(typed, pushFilters="true").where("id >= 700 AND id < 720 AND abs(small) > 3")
        plan = frame._jdf.queryExecution().executedPlan()
        assert frame.count() == len(
            [n for n in range(700, 720) if row(n)["small"] is not None and abs(row(n)["small"]) > 3]
        )
        text = plan.toString()
        assert "Filter" in text
        assert "id#" not in text.partition("Filter")[2].partition("\n")[0]
    finally:
        spark.conf.set(PUSHDOWN, before)


def test_a_filter_may_be_about_columns_that_are_not_read(load, typed):
    assert load(typed, columns="word", filter="id = 5 AND __partition = 0").collect() == [(row(5)["word"],)]
    assert load(typed, columns="id", filter="id < 0").count() == 0


@pytest.mark.parametrize(
    ("condition", "what"),
    [
        ("id = 'x'", "column id: BIGINT is compared with a whole number, not 'x'"),
        ("price > 1.234", "column price: DECIMAL(12,2) is compared with a number of its digits"),
        ("idd = 1", "no column 'idd': did you mean id"),
        ("id = ", "expected a number, 'text'"),
        ("tags = 'a'", "ARRAY<STRING> cannot be compared"),
        ("id = 1 id = 2", "unexpected 'id' at character 8"),
        ("at > 5", "TIMESTAMP '2024-05-17T10:00:00Z'"),
    ],
)
def test_wrong_filters_say_what_is_wrong_before_anything_is_read(load, typed, condition, what):
    with pytest.raises(Exception, match="filter=") as problem:
        load(typed, filter=condition).collect()
    assert what in str(explain(problem.value))


def test_streams_filter_as_well(spark, module_broker, typed, tmp_path):
    reader = spark.readStream.format("millrace").option("kafka.bootstrap.servers", module_broker.bootstrap_servers)
    frame = reader.option("subscribe", typed).option("startingOffsets", "earliest").option("filter", "id % 2 = 0")
    with pytest.raises(Exception, match="filter="):
        frame.load()
    found = []
    frame = reader.option("filter", "id >= 1490 AND id < 1510").load()
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(each.id for each in found) == list(range(1490, 1510))
