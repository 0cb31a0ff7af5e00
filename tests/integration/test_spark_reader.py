"""Tests of the source's readers against a list model of the topic.

The broker is real. The readers are called as Spark calls them. Without Spark a case takes milliseconds, so these tests
cover every limit, split, path and restart. ``test_spark_batch`` and ``test_spark_streaming`` only show that Spark calls
the readers.
"""

import json
import pickle
import time
import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from millrace.clients import Producer
from millrace.errors import BrokerUnavailableError, OffsetsLostError, UsageError
from millrace_broker.testing import EmbeddedBroker
from pyspark_millrace import DefaultSource

from .reader_model import batches, checkpointed, rows_of, source, stream
from .waiting import eventually

PARTITIONS = 3
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "4000",
    "index.interval.bytes": "500",
    "local.retention.bytes": "1",
    "flush.messages": "1",
}
"""Options of topics whose sealed segments are soon only in the store."""

many = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


reading = st.fixed_dictionaries(
    {"directReads": st.sampled_from(["always", "never", "auto"])},
    optional={
        "splitBytes": st.sampled_from(["1", "700", "3000", "30000", "1000000"]),
        "minPartitions": st.integers(1, 20).map(str),
        "maxRecordsPerPartition": st.sampled_from(["1000", "100", "17"]),
        "maxRecordsPerBatch": st.sampled_from(["1", "13", "400", "100000"]),
        "columns": st.permutations(["offset", "value", "partition"]).map(",".join),
    },
)


@pytest.fixture(scope="module")
def module_broker(tmp_path_factory):
    """Start a broker that has tiered topics too, with a directory as their store."""
    options = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.uri": tmp_path_factory.mktemp("remote").as_uri(),
        "remote.log.manager.task.interval.ms": "100",
        "log.retention.check.interval.ms": "100",
        "log.initial.task.delay.ms": "0",
        "log.segment.delete.delay.ms": "0",
    }
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), options=options) as running:
        yield running


@many
@given(data=st.data(), options=reading)
def test_any_range_by_any_splits_and_path_gives_the_rows_of_the_range(filled, data, options):
    ranges = {}
    for partition, values in filled.rows.items():
        start = data.draw(st.integers(0, len(values)), f"start of {partition}")
        ranges[partition] = (start, data.draw(st.integers(start, len(values)), f"end of {partition}"))
    starts, ends = (
        json.dumps({filled.name: {str(partition): edges[side] for partition, edges in ranges.items()}})
        for side in (0, 1)
    )
    found, schema = source(filled, startingOffsets=starts, endingOffsets=ends, **options)
    reader = found.reader(schema)
    assert rows_of(reader, reader.partitions()) == filled.expected(ranges)


limiting = st.fixed_dictionaries(
    {},
    optional={
        "maxOffsetsPerTrigger": st.integers(30, 200).map(str),
        "minOffsetsPerTrigger": st.integers(1, 30).map(str),
        "maxBytesPerTrigger": st.sampled_from(["3000", "9000", "40000"]),
        "minBytesPerTrigger": st.sampled_from(["1", "700", "3000"]),
        "maxTriggerDelay": st.sampled_from(["0ms", "15m"]),
    },
)


@many
@given(data=st.data(), options=reading, limits=limiting, tiered=st.booleans())
def test_a_stream_of_any_limits_restarts_and_appends_gives_every_row_once(new_model, data, options, limits, tiered):
    model = new_model(data.draw(st.integers(1, PARTITIONS), "partitions"), **(TIERED if tiered else {}))
    if tiered and options["directReads"] == "always":
        options["directReads"] = "auto"  # a file may be moved to the store between planning and reading
    options |= limits
    options["startingOffsets"] = data.draw(st.sampled_from(["earliest", "latest"]))
    options["byReference"] = data.draw(st.sampled_from(["false", "true"]))
    for partition in model.rows:
        model.append(partition, data.draw(st.integers(0, 120), f"rows at the start of {partition}"))
    began = {
        partition: len(values) if options["startingOffsets"] == "latest" else 0
        for partition, values in model.rows.items()
    }
    reader = stream(model, options)
    offset = checkpointed(reader.initialOffset())
    found = []
    for batch in range(data.draw(st.integers(1, 6), "batches")):
        if batch:  # the first batch may find nothing
            grow(model, data)
        limited = data.draw(st.booleans(), "limited")
        limit = reader.getDefaultReadLimit() if limited else ReadAllAvailable()
        end = checkpointed(reader.latestOffset(offset, limit))
        if data.draw(st.booleans(), "the driver dies after it logged the batch"):
            # Another process plans the same batch again from the logged offsets. By then the topic has grown.
            reader.stop()
            grow(model, data)
            reader = stream(model, options)
            # Spark logs its first batch even without records, and no other one without. Until the first batch is
            # complete, it asks for the initial offsets again, and "latest" may have moved.
            if not batch:
                offset = checkpointed(reader.initialOffset())
        rows = rows_of(reader, reader.partitions(offset, end)) if end != offset else []
        assert not limited or len(rows) <= int(limits.get("maxOffsetsPerTrigger", len(rows)))
        found += rows
        offset = end
    rest = checkpointed(reader.latestOffset(offset, ReadAllAvailable()))
    found += rows_of(reader, reader.partitions(offset, rest)) if rest != offset else []
    assert checkpointed(reader.latestOffset(rest, ReadAllAvailable())) == rest
    reader.stop()
    everything = {partition: (began[partition], len(values)) for partition, values in model.rows.items()}
    assert sorted(found) == sorted(model.expected(everything))
    by_partition = [[row[2] for row in found if row[1] == partition] for partition in model.rows]
    assert by_partition == [sorted(offsets) for offsets in by_partition]


def grow(model, data):
    for partition in model.rows:
        model.append(partition, data.draw(st.integers(0, 40), f"more rows of {partition}"))


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": "70"}, {"maxBytesPerTrigger": "5000"}])
def test_a_stream_of_limited_batches_reads_what_only_the_store_has(new_model, admin, limit):
    model = new_model(1, **TIERED)
    for _ in range(8):
        model.append(0, 50)
    eventually(lambda: admin.locate_range(model.name, 0, 0).extents[0].uri, "a segment in the store")
    reader = stream(model, {"startingOffsets": "earliest", **limit})
    found = batches(reader, checkpointed(reader.initialOffset()))
    reader.stop()
    assert len(found) > 3
    assert [row for rows in found for row in rows] == model.expected({0: (0, 400)})


def test_references_are_one_task_and_carry_no_options(new_model):
    model = new_model(2)
    for partition in model.rows:
        model.append(partition, 200)
    options = {"startingOffsets": "earliest", "byReference": "true", "kafka.client.id": "hunter2"}
    reader = stream(model, options)
    start = reader.initialOffset()
    [task] = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    [batch] = reader.read(task)
    assert batch.column("partition").to_pylist() == [0, 1]
    assert batch.column("topic").to_pylist() == [model.name] * 2
    assert not any(b"hunter2" in reference for reference in batch.column("reference").to_pylist())
    assert b"hunter2" not in pickle.dumps(task)


def test_a_batch_is_not_read_by_reference(filled):
    found, schema = source(filled, byReference="true")
    with pytest.raises(UsageError, match="a batch is read by its own tasks"):
        found.reader(schema)


def test_a_small_partition_is_not_starved_by_a_large_one(new_model):
    model = new_model(2)
    model.append(0, 500)
    model.append(1, 5)
    reader = stream(model, {"startingOffsets": "earliest"})
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(50))
    reader.stop()
    assert end[model.name]["1"] >= 1
    assert sum(end[model.name].values()) == 50


@pytest.mark.parametrize("limit", [2_000, 15_000, 60_000])
def test_a_limit_in_bytes_cuts_batches_of_about_that_size(filled, limit):
    reader = stream(filled, {"startingOffsets": "earliest", "maxBytesPerTrigger": str(limit)})
    found = batches(reader, checkpointed(reader.initialOffset()))
    everything = {partition: (0, len(values)) for partition, values in filled.rows.items()}
    assert sorted(row for rows in found for row in rows) == sorted(filled.expected(everything))
    sizes = [sum(len(value) for value, *_ in rows) for rows in found]
    # A record in the log takes more than its value, and a batch of the log (1,500 bytes and more) is never split.
    assert max(sizes) <= limit + 3 * 5_000
    assert len(found) <= 3 + 3 * sum(sizes) // limit
    reader.stop()


def test_a_limit_in_bytes_is_shared_by_what_waits(filled):
    reader = stream(filled, {"startingOffsets": "earliest", "maxBytesPerTrigger": "30000"})
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())[filled.name]
    reader.stop()
    assert end["0"] > end["1"] > end["2"] > 0


def test_with_two_limits_the_smaller_one_counts(filled):
    for options, most in [
        ({"maxOffsetsPerTrigger": "20", "maxBytesPerTrigger": "1000000"}, 20),
        ({"maxOffsetsPerTrigger": "100000", "maxBytesPerTrigger": "100"}, 300),
    ]:
        reader = stream(filled, {"startingOffsets": "earliest", **options})
        end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())[filled.name]
        reader.stop()
        assert 0 < sum(end.values()) <= most


@pytest.mark.parametrize(
    ("least", "is_enough"), [({"minOffsetsPerTrigger": "10"}, 10), ({"minBytesPerTrigger": "600"}, 10)]
)
def test_a_batch_waits_for_its_minimum(new_model, least, is_enough):
    model = new_model(1)
    model.append(0, 1)
    reader = stream(model, {"startingOffsets": "earliest", "maxTriggerDelay": "1m", **least})
    now_s = 1000.0
    reader._clock = lambda: now_s
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(reader.initialOffset(), limit)
    # The first batch of a run does not wait, as in Kafka's connector.
    assert first[model.name] == {"0": 1}
    model.append(0, 1)
    assert reader.latestOffset(first, limit) == first
    model.append(0, is_enough)
    second = reader.latestOffset(first, limit)
    assert second[model.name] == {"0": 2 + is_enough}
    model.append(0, 1)
    assert reader.latestOffset(second, limit) == second
    now_s += 61
    assert reader.latestOffset(second, limit)[model.name] == {"0": 3 + is_enough}
    reader.stop()


def test_available_now_reads_without_waiting_for_a_minimum(new_model):
    model = new_model(1)
    model.append(0, 25)
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "10"}
    reader = stream(model, options)
    reader.prepareForTriggerAvailableNow()
    assert [len(rows) for rows in batches(reader, checkpointed(reader.initialOffset()))] == [10, 10, 5]
    reader.stop()


def test_the_trigger_once_knows_no_limits(new_model):
    model = new_model(1)
    model.append(0, 25)
    reader = stream(model, {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "10", "maxBytesPerTrigger": "10"})
    assert [len(rows) for rows in batches(reader, checkpointed(reader.initialOffset()), ReadAllAvailable())] == [25]
    reader.stop()


def test_the_end_of_an_available_now_query_stays_where_it_was(new_model):
    model = new_model(1)
    model.append(0, 10)
    reader = stream(model, {"startingOffsets": "earliest"})
    reader.prepareForTriggerAvailableNow()
    model.append(0, 10)
    first = reader.latestOffset(reader.initialOffset(), ReadMaxRows(6))
    last = reader.latestOffset(first, ReadMaxRows(6))
    assert (first[model.name], last[model.name]) == ({"0": 6}, {"0": 10})
    assert reader.latestOffset(last, ReadMaxRows(6)) == last
    assert reader.reportLatestOffset()[model.name] == {"0": 10}
    reader.stop()


def test_a_stream_ends_at_the_given_offsets(new_model):
    model = new_model(2)
    for partition in model.rows:
        model.append(partition, 10)
    ends = json.dumps({model.name: {"0": 7}})
    reader = stream(model, {"startingOffsets": "earliest", "streamEndingOffsets": ends})
    reader.prepareForTriggerAvailableNow()
    [rows] = batches(reader, checkpointed(reader.initialOffset()))
    assert sorted(rows) == model.expected({0: (0, 7), 1: (0, 10)})
    reader.stop()
    running = stream(model, {"startingOffsets": "earliest", "streamEndingOffsets": json.dumps({model.name: {"0": 12}})})
    start = checkpointed(running.latestOffset(running.initialOffset(), ReadAllAvailable()))
    model.append(0, 10)
    assert checkpointed(running.latestOffset(start, ReadAllAvailable()))[model.name] == {"0": 12, "1": 10}
    running.stop()
    for wrong in ({model.name: {"2": 5}}, {"ordres": {"0": 5}}):
        with pytest.raises(UsageError, match=r"streamEndingOffsets.* names (ordres|model-.*-2)"):
            stream(model, {"streamEndingOffsets": json.dumps(wrong)}).initialOffset()
    found, schema = source(model, streamEndingOffsets=ends)
    with pytest.raises(UsageError, match="give endingOffsets"):
        found.reader(schema)


def test_partitions_added_while_a_stream_runs_are_read_from_their_start(new_model, admin):
    model = new_model(1)
    reader = stream(model, {"startingOffsets": "latest"})
    start = reader.initialOffset()
    admin.create_partitions(model.name, 2)
    model.rows[1] = []
    with Producer(model.servers) as producer:
        producer.send(model.name, b"new", partition=1)
        producer.flush()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert rows_of(reader, reader.partitions(start, end)) == [(b"new", 1, 0)]
    reader.stop()


@pytest.mark.parametrize("fail", ["true", "false"])
def test_partitions_that_are_gone_are_named(new_model, admin, fail):
    model, other = new_model(1), new_model(1)
    model.append(0, 3)
    other.append(0, 3)
    options = {"subscribe": f"{model.name},{other.name}", "startingOffsets": "earliest", "failOnDataLoss": fail}
    reader = stream(model, options)
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    admin.delete_topic(other.name)
    if fail == "true":
        with pytest.raises(OffsetsLostError, match=f"{other.name}-0 no longer exists"):
            reader.latestOffset(start, ReadAllAvailable())
    else:
        end = reader.latestOffset(start, ReadAllAvailable())
        assert [row[1:] for row in rows_of(reader, reader.partitions(start, end))] == [(0, 1), (0, 2)]
    reader.stop()


def test_tasks_read_no_faster_than_they_may(filled):
    found, schema = source(filled, maxBytesPerSecond="200000", splitBytes="5000", maxRecordsPerBatch="50")
    reader = found.reader(schema)
    tasks = reader.partitions()
    started = time.monotonic()
    rows = rows_of(reader, tasks)
    assert sorted(rows) == sorted(filled.expected({partition: (0, len(had)) for partition, had in filled.rows.items()}))
    # The tasks share the rate, one after the other or at once. No wait follows the last read.
    size = sum(task.split.bytes for task in tasks[:-2])
    assert time.monotonic() - started > size / 200_000


def test_offsets_are_asked_for_as_often_as_the_option_says(filled, monkeypatch):
    reader = stream(filled, {"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "1"})
    connected = reader._connected()
    ask, asked = connected._admin.list_offsets, []

    def fail_twice(*arguments, **options):
        asked.append(arguments)
        if len(asked) <= 2:
            raise BrokerUnavailableError("no broker answers")
        return ask(*arguments, **options)

    monkeypatch.setattr(connected._admin, "list_offsets", fail_twice)
    assert reader.initialOffset()[filled.name]
    asked.clear()
    connected._retries = 1
    with pytest.raises(BrokerUnavailableError):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.stop()


def test_topics_evolve_one_after_another_while_a_stream_reads_them(module_broker, admin):
    names = [f"evolving-{uuid.uuid4().hex[:8]}-{letter}" for letter in "ab"]
    started = "id INT, word STRING, place STRUCT<x: INT>"
    evolved = "id INT, place STRUCT<x: INT, y: INT>, more INT"
    for name in names:
        admin.create_topic(name, partitions=1, schema=started)
    source = DefaultSource({"kafka.bootstrap.servers": module_broker.bootstrap_servers, "subscribe": ",".join(names)})
    reader = source.streamReader(source.schema())
    offset = reader.initialOffset()
    row = {"id": [1], "word": ["w"], "place": [{"x": 1}]}
    newer = {"id": [2], "place": [{"x": 2, "y": 3}], "more": [4]}

    def read(**sent):
        nonlocal offset
        with Producer(module_broker.bootstrap_servers) as producer:
            for letter, rows in sent.items():
                producer.send_table(names["ab".index(letter)], rows)
        start, offset = offset, reader.latestOffset(offset, ReadAllAvailable())
        tasks = reader.partitions(start, offset)
        rows = [given for task in tasks for batch in reader.read(task) for given in batch.to_pylist()]
        return sorted(rows, key=lambda given: given["id"])

    before = {"id": 1, "word": "w", "place": {"x": 1}}
    after = {"id": 2, "word": None, "place": {"x": 2}}
    assert read(a=row, b=row) == [before, before]
    admin.evolve_schema(names[0], evolved)
    assert read(a=newer, b=row) == [before, after]
    admin.evolve_schema(names[1], evolved)
    assert read(a=newer, b=newer) == [after, after]
    reader.stop()
