"""Tests of topics in SQL, and of reused DataFrames and views."""

import uuid

import pyarrow as pa
import pytest

from millrace.clients import Consumer, Producer
from millrace.errors import UsageError
from pyspark_millrace.spark_errors import millrace_error_in

pytestmark = pytest.mark.spark

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
ROWS = 40


@pytest.fixture(scope="module")
def servers(module_broker):
    return f"'kafka.bootstrap.servers' = '{module_broker.bootstrap_servers}'"


@pytest.fixture(scope="module")
def numbers(admin, module_broker):
    name = f"numbers-{uuid.uuid4().hex[:8]}"
    admin.create_topic(name, schema="n BIGINT NOT NULL, word STRING")
    with Producer(module_broker.bootstrap_servers) as producer:
        producer.send_table(name, pa.table({"n": range(ROWS), "word": [f"w{n % 4}" for n in range(ROWS)]}))
    return name


@pytest.fixture(params=[False, True], ids=["pushdown off", "pushdown on"])
def pushdown(spark, request):
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, request.param)
    yield request.param
    spark.conf.set(PUSHDOWN, before)


@pytest.fixture
def view(spark, servers):
    """Return a function that creates a view. The view is dropped after the test."""
    made = []

    def create(options, columns=""):
        made.append(f"view_{uuid.uuid4().hex[:8]}")
        spark.sql(f"CREATE TEMPORARY VIEW {made[-1]} {columns} USING millrace OPTIONS ({servers}, {options})")
        return made[-1]

    yield create
    for name in made:
        spark.catalog.dropTempView(name)


def refusal(action):
    with pytest.raises(Exception) as raised:  # noqa: PT011  whichever Spark makes of it
        action()
    found = millrace_error_in(raised.value)
    assert isinstance(found, UsageError)
    return found.message


def test_a_view_gives_all_rows_however_it_was_filtered_before(spark, view, numbers, pushdown):
    name = view(f"subscribe = '{numbers}'")

    def count(condition):
        return spark.sql(f"SELECT count(*) FROM {name} WHERE {condition}").head()[0]

    assert [count("n > 29"), count("true"), count("n < 5"), count("true")] == [10, ROWS, 5, ROWS]
    joined = f"SELECT count(a.n), count(b.n) FROM {name} a LEFT JOIN (SELECT n FROM {name} WHERE n > 29) b ON a.n = b.n"
    assert tuple(spark.sql(joined).head()) == (ROWS, 10)


def test_a_data_frame_gives_all_rows_however_it_was_filtered_before(spark, module_broker, numbers, pushdown):
    options = {"kafka.bootstrap.servers": module_broker.bootstrap_servers, "subscribe": numbers}
    frame = spark.read.format("millrace").options(**options).load()
    assert frame.where("n > 29").union(frame.where("n < 5")).count() == 15
    assert frame.count() == ROWS


def test_rows_are_inserted_through_a_view_that_names_its_columns(spark, admin, module_broker, view, numbers):
    target = f"inserted-{uuid.uuid4().hex[:8]}"
    admin.create_topic(target)
    sink = view(f"topic = '{target}'", "(key STRING, value STRING)")
    source = view(f"subscribe = '{numbers}'")
    spark.sql(f"INSERT INTO {sink} SELECT word, CAST(n AS STRING) FROM {source} WHERE n < 10")
    spark.sql(f"INSERT INTO {sink} VALUES ('w', '10')")
    config = {"bootstrap.servers": module_broker.bootstrap_servers, "isolation.level": "read_committed"}
    with Consumer(config) as consumer:
        consumer.assign(consumer.partitions_for(target))
        consumer.seek_to_beginning()
        found = [int(record.value) for _ in range(4) for record in consumer.poll(300)]
    assert sorted(found) == list(range(11))


def test_unsupported_sql_is_refused(spark, servers, view, numbers):
    source = view(f"subscribe = '{numbers}'")
    assert "the option is for reading; name the topic to write to" in refusal(
        lambda: spark.sql(f"INSERT INTO {source} VALUES (1L, 'x')")
    )
    assert "CREATE TEMPORARY VIEW" in refusal(
        lambda: spark.sql(f"CREATE TABLE numbers_table USING millrace OPTIONS ({servers}, subscribe = '{numbers}')")
    )
