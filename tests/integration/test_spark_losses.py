"""Tests of lost records in Spark.

An error gives the exact offsets, the reason and the remedy. No records are skipped silently. The readers are called as
Spark calls them; ``test_spark_streaming`` has the same through Spark.
"""

import json
import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from millrace.clients import Admin, Producer, TopicPartition
from millrace.errors import OffsetsLostError, UnknownTopicOrPartitionError, UsageError
from millrace_broker.testing import EmbeddedBroker

from .reader_model import START_MS, Model, checkpointed, rows_of, source, stream


def losing(reader, start):
    """Return the error of the next batch from ``start``, at the latest from its planning."""
    with pytest.raises(OffsetsLostError) as caught:
        reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    reader.stop()
    return caught.value.message


def batch_loss(model, **options):
    found, schema = source(model, **options)
    with pytest.raises(OffsetsLostError) as caught:
        found.reader(schema).partitions()
    return caught.value.message


def test_losses_by_delete_records_are_distinguished_from_retention(new_model, admin, caplog):
    model = new_model(1)
    model.append(0, 30)
    options = {"startingOffsets": json.dumps({model.name: {"0": 4}})}
    reader = stream(model, options)
    start = checkpointed(reader.initialOffset())
    admin.delete_records({TopicPartition(model.name, 0): 11})
    sentence = f"offsets 4..10 of {model.name}-0 were deleted (by DeleteRecords, because the topic has no retention"
    assert sentence in losing(reader, start)
    assert sentence in batch_loss(model, **options)
    # The retention is so long that a retention check meanwhile deletes no record.
    admin.alter_configs(model.name, {"retention.ms": str(START_MS)})
    assert f"by retention, retention.ms={START_MS}, retention.bytes=-1, or DeleteRecords" in losing(
        stream(model, options), start
    )
    # The error still names, with the same words, where the query is to continue.
    accepting = stream(model, {**options, "failOnDataLoss": "false"})
    end = accepting.latestOffset(start, ReadAllAvailable())
    assert [row[2] for row in rows_of(accepting, accepting.partitions(start, end))] == list(range(11, 30))
    accepting.stop()
    [warning] = [record.getMessage() for record in caplog.records if "were deleted" in record.getMessage()]
    assert f"offsets 4..10 of {model.name}-0 were deleted" in warning
    assert "failOnDataLoss is false" in warning


@pytest.mark.parametrize(
    ("stood_ms", "policy", "is_late"),
    [(3_600_000, "compact", True), (3_600_000, "delete", False), (0, "compact", False)],
)
def test_a_reader_that_is_too_late_for_tombstones_gets_a_warning(new_model, caplog, stood_ms, policy, is_late):
    model = new_model(1, **{"cleanup.policy": policy, "delete.retention.ms": "600000"})
    now_ms = time.time_ns() // 1_000_000
    for time_ms in (now_ms - stood_ms, now_ms - stood_ms + 1, now_ms):
        model.producer.send(model.name, b"v", key=b"k", timestamp_ms=time_ms)
    model.producer.flush()
    reader = stream(model, {"startingOffsets": json.dumps({model.name: {"0": 1}})})
    start = checkpointed(reader.initialOffset())
    reader.latestOffset(start, ReadAllAvailable())
    reader.stop()
    assert not caplog.records, "a new query has no offset to continue from"
    later = stream(model, {})
    later.latestOffset({**start, "@initial": False}, ReadAllAvailable())
    later.latestOffset({**start, "@initial": False}, ReadAllAvailable())
    later.stop()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == is_late, told
    assert all(
        f"{model.name}-0 is compacted and was not read from offset 1 on for longer than its delete.retention.ms=600000"
        in sentence
        for sentence in told
    )


def test_a_query_continues_if_lost_tombstones_cannot_be_determined(new_model, caplog, monkeypatch):
    model = new_model(1)
    model.append(0, 5)
    start = {**checkpointed(stream(model, {"startingOffsets": json.dumps({model.name: {"0": 1}})}).initialOffset())}
    later = stream(model, {})

    def deleted(topic):
        raise UnknownTopicOrPartitionError(f"{topic}: no such topic")

    monkeypatch.setattr(later._connected(), "settings", deleted)
    end = later.latestOffset({**start, "@initial": False}, ReadAllAvailable())
    assert [row[2] for row in rows_of(later, later.partitions(start, end))] == list(range(1, 5))
    later.stop()
    [warning] = [record.getMessage() for record in caplog.records]
    assert "it is not known whether tombstones were missed" in warning


def test_offsets_beyond_the_end_are_refused(filled):
    beyond = json.dumps({filled.name: {"0": 1201, "1": -2, "2": -2}})
    reader = stream(filled, {"startingOffsets": beyond})
    with pytest.raises(UsageError, match=rf"beyond the end of the log: {filled.name}-0 1201 \(the end is 1200\)"):
        reader.initialOffset()
    reader.stop()
    found, schema = source(filled, startingOffsets=beyond)
    with pytest.raises(UsageError, match="beyond the end of the log"):
        found.reader(schema).partitions()
    assert f"offsets 1200..1200 of {filled.name}-0 are not in the log, which ends at 1200: end at 1200" in batch_loss(
        filled, endingOffsets=json.dumps({filled.name: {"0": 1201, "1": -1, "2": -1}})
    )


def test_a_start_after_the_end_is_refused(filled):
    at = [json.dumps({filled.name: {"0": offset, "1": 1, "2": 1}}) for offset in (10, 5)]
    found, schema = source(filled, startingOffsets=at[0], endingOffsets=at[1])
    with pytest.raises(UsageError, match=f"{filled.name}-0 starts at 10 and ends at 5"):
        found.reader(schema).partitions()
    found, schema = source(filled, startingTimestamp=str(START_MS + 20), endingTimestamp=str(START_MS))
    with pytest.raises(UsageError, match=f"{filled.name}-0 starts at .* ms and ends at {START_MS} ms"):
        found.reader(schema).partitions()


def test_messages_about_positions_name_the_option_that_was_given(new_model):
    model = new_model(2)
    model.append(0, 1)
    one = json.dumps({model.name: {"0": 5}})
    for option, expected in (
        ("startingOffsets", f"startingOffsets is without {model.name}-1: .* no other \\(-2 earliest, -1 latest\\)"),
        ("startingOffsetsByTimestamp", f"startingOffsetsByTimestamp is without {model.name}-1: .* no other$"),
        ("endingOffsetsByTimestamp", f"endingOffsetsByTimestamp is without {model.name}-1: .* no other$"),
        ("startingTimestamp", f"startingTimestamp: {model.name}-1.* has no record at or after"),
    ):
        found, schema = source(model, **{option: str(START_MS) if option == "startingTimestamp" else one})
        with pytest.raises(UsageError, match=expected):
            found.reader(schema).partitions()


def test_a_start_that_is_looked_up_and_is_after_the_end_gives_no_rows(new_model, admin):
    model = new_model(1)
    model.append(0, 20)
    admin.delete_records({TopicPartition(model.name, 0): 10})
    end = json.dumps({model.name: {"0": 5}})
    for start in (
        {"startingOffsets": json.dumps({model.name: {"0": -2}})},
        {"startingTimestamp": str(START_MS * 2), "startingOffsetsByTimestampStrategy": "latest"},
    ):
        found, schema = source(model, endingOffsets=end, **start)
        assert not found.reader(schema).partitions()


def test_the_checkpoint_of_another_cluster_is_recognised(new_model, tmp_path):
    model = new_model(1)
    model.append(0, 5)
    reader = stream(model, {"startingOffsets": "earliest"})
    start = checkpointed(reader.latestOffset(reader.initialOffset(), ReadAllAvailable()))
    reader.stop()
    with EmbeddedBroker(tmp_path / "other") as other, Admin(other.bootstrap_servers) as admin:
        admin.create_topic(model.name, partitions=1)
        elsewhere = Model(other.bootstrap_servers, model.name, 1)
        sentence = losing(stream(elsewhere, {}), start)
        elsewhere.producer.close()
    assert f"the checkpoint is of cluster {start['@cluster']}, but these brokers are cluster " in sentence


def test_the_checkpoint_of_another_topic_is_recognised(new_model):
    model, other = new_model(1), new_model(2)
    reader = stream(model, {"startingOffsets": "earliest"})
    start = checkpointed(reader.initialOffset())
    reader.stop()
    assert (
        f"the checkpoint has offsets of {model.name}-0, which this query does not read: subscribe={other.name}"
        in losing(stream(other, {}), start)
    )


def test_a_topic_created_again_with_fewer_partitions_is_one_loss(new_model, admin):
    model = new_model(3)
    model.append(1, 5)
    reader = stream(model, {"startingOffsets": "earliest"})
    start = checkpointed(reader.latestOffset(reader.initialOffset(), ReadAllAvailable()))
    admin.delete_topic(model.name)
    admin.create_topic(model.name, partitions=1, configs={"retention.ms": "-1"})
    sentence = losing(reader, start)
    assert f"topic {model.name} is not the topic that was read" in sentence
    assert f"{model.name}-1 from 5 on" in sentence


def test_a_query_that_read_uncommitted_records_is_not_set_back(new_model, module_broker):
    model = new_model(1)
    model.append(0, 3)
    with Producer(
        {"bootstrap.servers": module_broker.bootstrap_servers, "transactional.id": f"open-{model.name}"}
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(model.name, b"open", partition=0)
        producer.flush()
        dirty = stream(model, {"startingOffsets": "earliest", "isolation.level": "read_uncommitted"})
        start = checkpointed(dirty.latestOffset(dirty.initialOffset(), ReadAllAvailable()))
        dirty.stop()
        assert start[model.name] == {"0": 4}
        clean = stream(model, {})
        assert clean.latestOffset(start, ReadAllAvailable()) == start
        clean.stop()
        producer.abort_transaction()


def test_a_topic_deleted_while_it_is_looked_at_is_lost_and_no_other_error(new_model, admin, monkeypatch):
    model, other = new_model(1), new_model(1)
    other.append(0, 2)
    options = {"subscribe": f"{model.name},{other.name}", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    reader = stream(model, options)
    start = checkpointed(reader.initialOffset())
    cluster = reader._connected()
    find = cluster.find

    def find_and_delete(subscription):
        found = find(subscription)
        if model.name in found[0].topic_ids:
            admin.delete_topic(model.name)
        return found

    monkeypatch.setattr(cluster, "find", find_and_delete)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert model.name not in end
    assert end[other.name] == {"0": 2}
    reader.stop()
