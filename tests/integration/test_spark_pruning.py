"""Tests of the Spark source's filters against a list model.

They use any split and path, and count skipped rows. The readers are called as Spark calls them, without Spark;
``test_spark_filters`` compares with Spark's own filter.
"""

import pickle
import random
import uuid

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from millrace.clients import Producer
from millrace.schemas import parse_ddl
from pyspark_millrace import DefaultSource
from pyspark_millrace.reading.reports import ReadCounters
from pyspark_millrace.reading.split_reader import Sources, read_split

START_MS = 1_700_000_000_000
PARTITIONS = 3
BATCH_ROWS = 300
SCHEMA = parse_ddl("number BIGINT, word STRING")

many = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Row:
    """A record in the model. ``ms`` counts from the start of the topic."""

    def __init__(self, partition, offset, number, word, ms):
        self.partition, self.offset, self.number, self.word, self.ms = partition, offset, number, word, ms

    def out(self):
        return (self.partition, self.offset, self.number, self.word)


@pytest.fixture(scope="module")
def topic(module_broker, admin):
    """Create a typed topic of small segments.

    Numbers rise with few late ones, words come in runs, and times are out of order.
    """
    name = f"pruned-{uuid.uuid4().hex[:8]}"
    configs = {"retention.ms": "-1", "segment.bytes": "30000", "index.interval.bytes": "1000"}
    admin.create_topic(name, partitions=PARTITIONS, schema=SCHEMA, configs=configs)
    chosen, rows = random.Random(5), []
    with Producer({"bootstrap.servers": module_broker.bootstrap_servers}) as producer:
        for partition, batches in enumerate((8, 3, 1)):
            for number in range(batches):
                first = number * BATCH_ROWS
                batch = [
                    Row(
                        partition,
                        first + place,
                        None if chosen.random() < 0.05 else first + place + chosen.choice([0, 0, -40]),
                        None if number == 2 else f"run{number // 2}",
                        max(0, first + place - chosen.choice([0, 0, 0, 900])),
                    )
                    for place in range(BATCH_ROWS)
                ]
                rows += batch
                table = pa.table(
                    {"number": [row.number for row in batch], "word": [row.word for row in batch]}, schema=SCHEMA
                )
                times = pa.array([START_MS + row.ms for row in batch])
                producer.send_table(name, table, partition=partition, timestamps=times)
                producer.flush()
    return name, rows


def time_text(ms):
    seconds, rest = divmod(START_MS + ms, 1000)
    moment = pa.scalar(seconds, pa.timestamp("s")).as_py()
    return f"TIMESTAMP '{moment.isoformat()}.{rest:03}Z'"


numbers = st.integers(-50, 2500)
pieces = st.one_of(
    st.tuples(st.sampled_from(["number", "__offset"]), st.sampled_from(["<", "<=", "=", ">=", ">"]), numbers),
    st.tuples(st.just("__partition"), st.sampled_from(["=", ">="]), st.integers(0, PARTITIONS)),
    st.tuples(st.just("__timestamp"), st.sampled_from(["<", "<=", "=", ">=", ">"]), st.integers(0, 2500)),
    st.tuples(st.just("word"), st.sampled_from(["=", ">", "<"]), st.sampled_from(["run0", "run1", "run2", "run9"])),
)
conditions = st.recursive(
    pieces,
    lambda inner: st.tuples(st.sampled_from(["AND", "OR"]), inner, inner),
    max_leaves=4,
)
COMPARE = {
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, "=": lambda a, b: a == b, ">=": lambda a, b: a >= b,
    ">": lambda a, b: a > b,
}  # fmt: skip
FIELDS = {"number": "number", "word": "word", "__offset": "offset", "__partition": "partition", "__timestamp": "ms"}


def text_of(condition):
    head, left, right = condition
    if head in ("AND", "OR"):
        return f"({text_of(left)} {head} {text_of(right)})"
    value = time_text(right) if head == "__timestamp" else repr(right)
    return f"{head} {left} {value}"


def is_true(condition, row):
    head, left, right = condition
    if head in ("AND", "OR"):
        return {"AND": all, "OR": any}[head]([is_true(left, row), is_true(right, row)])
    value = getattr(row, FIELDS[head])
    return value is not None and COMPARE[left](value, right)


def source(module_broker, name, **options):
    given_options = {"kafka.bootstrap.servers": module_broker.bootstrap_servers, "subscribe": name, **options}
    made = DefaultSource(given_options | {"columns": "__partition,__offset,number,word"})
    return pickle.loads(pickle.dumps(made)), made.schema()


def rows_of(reader, tasks):
    return [
        tuple(row.values())
        for task in tasks
        for batch in reader.read(pickle.loads(pickle.dumps(task)))
        for row in batch.to_pylist()
    ]


reading = st.fixed_dictionaries(
    {"directReads": st.sampled_from(["always", "never"])},
    optional={
        "splitBytes": st.sampled_from(["1", "3000", "1000000"]),
        "minPartitions": st.integers(1, 20).map(str),
        "maxRecordsPerBatch": st.sampled_from(["13", "100000"]),
    },
)


@many
@given(condition=conditions, options=reading, is_stream=st.booleans())
def test_any_filter_by_any_split_and_path_gives_the_rows_that_it_is_true_for(
    topic, module_broker, condition, options, is_stream
):
    name, rows = topic
    if is_stream:
        options["startingOffsets"] = "earliest"
    found, schema = source(module_broker, name, filter=text_of(condition), **options)
    if is_stream:
        reader = found.streamReader(schema)
        try:
            start = reader.initialOffset()
            read = rows_of(reader, reader.partitions(start, reader.latestOffset(start, ReadAllAvailable())))
        finally:
            reader.stop()
    else:
        reader = found.reader(schema)
        read = rows_of(reader, reader.partitions())
    assert read == [row.out() for row in rows if is_true(condition, row)]


def counted(module_broker, name, condition):
    """Return how much the tasks of a filtered read decode and skip."""
    found, schema = source(module_broker, name, filter=condition)
    reader, counters = found.reader(schema), ReadCounters()
    tasks = reader.partitions()
    for task in tasks:
        sources = Sources(lambda *_: iter(()), lambda _: 0, task.schemas.__getitem__)
        list(read_split(task.split, reader._layout, reader._options, sources, counters))
    return tasks, counters


@pytest.mark.parametrize(
    ("condition", "decoded", "skipped"),
    [
        ("number >= 2350", 1, 11),  # only the last batch of the longest partition
        ("word = 'run1'", 1, 11),  # the other batch of the run has only nulls
        ("word IS NULL", 2, 10),
        ("__offset BETWEEN 310 AND 320", 2, 0),  # skipped in planning, together with the third partition
        ("__partition = 2", 1, 0),
        ("number < -100", 0, 12),
    ],
)
def test_batches_that_cannot_match_are_passed_over(topic, module_broker, condition, decoded, skipped):
    _, counters = counted(module_broker, topic[0], condition)
    assert (counters.batches, counters.skipped_batches) == (decoded, skipped)
    assert (counters.skipped_bytes > 0) == bool(skipped)


@pytest.mark.parametrize(
    ("condition", "is_pruned"), [(f"__timestamp >= {time_text(2_200)}", True), ("number >= 2350", False)]
)
def test_one_task_reports_the_bytes_that_planning_skipped(topic, module_broker, condition, is_pruned):
    everything = sum(task.split.bytes for task in counted(module_broker, topic[0], "__offset >= 0")[0])
    tasks, _ = counted(module_broker, topic[0], condition)
    pruned = [task.pruned_bytes for task in tasks if task.pruned_bytes]
    assert sum(pruned) + sum(task.split.bytes for task in tasks) == everything
    assert len(pruned) == (1 if is_pruned else 0)


def test_records_before_the_start_time_are_not_planned(topic, module_broker):
    tasks, counters = counted(module_broker, topic[0], f"__timestamp >= {time_text(2_200)}")
    assert {task.split.range.key.partition for task in tasks} == {0}
    assert min(task.split.range.start for task in tasks) >= 2_200
    assert counters.batches == 1
