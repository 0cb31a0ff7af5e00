"""Tests of a stream's offsets: they survive the checkpoint, and lost records are reported."""

import json
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import OffsetsLostError, UsageError
from millrace.ids import id_text, parse_id
from pyspark_millrace.options.source import AssignedPartitions, TopicPattern, Topics
from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.offsets import (
    LossReport,
    OffsetRange,
    StreamOffsets,
    clip_to_log,
    losses_between,
    ranges_between,
    why_removed,
)

ID = uuid.UUID(int=7)
OTHER_ID = uuid.UUID(int=8)
SUBSCRIPTION = Topics(("t",))

keys = st.builds(PartitionKey, st.sampled_from(["a", "b.c", "d-1"]), st.integers(0, 12))
positions = st.dictionaries(keys, st.integers(0, 2**62), min_size=1)


def offsets(ids=ID, **kwargs):
    def build(found):
        return StreamOffsets(found, {key.topic: ids for key in found}, **kwargs)

    return positions.map(build)


def at(initial=False, **partitions):
    found = {PartitionKey("t", int(name[1:])): offset for name, offset in partitions.items()}
    return StreamOffsets(found, {"t": ID}, is_initial=initial)


@given(
    offsets()
    | offsets(is_initial=True, cluster_id="c-1")
    | offsets(started_from={PartitionKey("a", 0): 3})
    | offsets(is_reset=True)
    | offsets(leader_epochs={PartitionKey("a", 0): 3}, parted={PartitionKey("a", 10): 1, PartitionKey("a", 2): 7})
)
def test_json_and_back(found):
    text = json.dumps(found.to_json())
    again = StreamOffsets.from_json(json.loads(text))
    assert again == found
    assert json.dumps(again.to_json()) == text


def test_json_is_the_kafka_source_s_with_topic_ids():
    found = StreamOffsets({PartitionKey("t", 10): 1, PartitionKey("t", 2): 5}, {"t": ID})
    assert json.dumps(found.to_json()) == json.dumps({"t": {"2": 5, "10": 1}, "@topic-ids": {"t": id_text(ID)}})


@pytest.mark.parametrize("value", [{"t": {"0": 1}}, {"@topic-ids": {"t": "x"}, "t": 3}, {"logOffset": 0}])
def test_offsets_of_another_source_are_refused(value):
    with pytest.raises(UsageError, match="belong to another source"):
        StreamOffsets.from_json(value)


def test_a_batch_that_ends_with_a_reset_reads_nothing_and_the_next_one_continues_from_there():
    before, after = at(p0=10, p1=5), at(p0=6, p1=9)
    reset = replace(at(p0=2, p1=7), is_reset=True)
    assert ranges_between(before, reset) == []
    assert [(wanted.start, wanted.end) for wanted in ranges_between(reset, after)] == [(2, 6), (7, 9)]
    # Spark compares texts. Without new records, the reset offsets are the end as well.
    assert reset.advanced_to(reset.next_offsets, reset.topic_ids).to_json() == reset.to_json()
    assert not reset.advanced_to(after.next_offsets, after.topic_ids).is_reset


@given(st.uuids())
def test_topic_ids_as_text(topic_id):
    assert parse_id(id_text(topic_id)) == topic_id


def test_nothing_new_is_the_same_offsets():
    start = at(initial=True, p0=5)
    assert start.advanced_to(start.next_offsets, start.topic_ids) is start


def test_the_first_batch_replays_from_where_it_began_though_latest_has_moved():
    first_start = at(initial=True, p0=5)
    end = StreamOffsets.from_json(first_start.advanced_to(at(p0=9).next_offsets, {"t": ID}).to_json())
    restarted = at(initial=True, p0=8)
    for start in (first_start, restarted):
        assert ranges_between(start, end) == [OffsetRange(PartitionKey("t", 0), ID, 5, 9)]


def test_later_batches_begin_where_the_one_before_ended():
    first_end = at(initial=True, p0=5).advanced_to(at(p0=9).next_offsets, {"t": ID})
    second_end = first_end.advanced_to(at(p0=12, p1=3).next_offsets, {"t": ID})
    assert "@from" not in second_end.to_json()
    assert ranges_between(first_end, second_end) == [
        OffsetRange(PartitionKey("t", 0), ID, 9, 12),
        OffsetRange(PartitionKey("t", 1), ID, 0, 3),
    ]


def test_a_topic_created_again_begins_at_its_start():
    end = StreamOffsets({PartitionKey("t", 0): 4}, {"t": OTHER_ID})
    assert ranges_between(at(p0=100), end) == [OffsetRange(PartitionKey("t", 0), OTHER_ID, 0, 4)]


def wanted(start, end):
    return OffsetRange(PartitionKey("orders", 3), ID, start, end)


@pytest.mark.parametrize(("start", "end", "count"), [(3, 5, 2), (5, 5, 0), (7, 5, 0)])
def test_a_range_that_does_not_ascend_counts_no_offsets(start, end, count):
    assert wanted(start, end).count == count


@pytest.mark.parametrize(
    ("start", "end", "log", "message"),
    [
        (
            0,
            50,
            (42, 60),
            r"offsets 0\.\.41 of orders-3 were deleted .* starts at 42\): start at 42, or set failOnDataLoss",
        ),
        (0, 30, (42, 60), r"offsets 0\.\.29 of orders-3 were deleted"),
        (50, 70, (42, 60), r"offsets 60\.\.69 of orders-3 are not in the log, which ends at 60"),
        (60, 50, (0, 50), r"log of orders-3 was truncated: offsets up to 59 have been read, but it now ends at 50"),
    ],
)
def test_lost_records_are_named_exactly(start, end, log, message):
    with pytest.raises(OffsetsLostError, match=message):
        clip_to_log(wanted(start, end), *log, LossReport(fail=True))


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_the_remaining_range_is_exactly_that_of_the_log(start, end, log_start, length):
    log_end = log_start + length
    report = LossReport(fail=False)
    left = clip_to_log(wanted(start, end), log_start, log_end, report)
    assert set(range(left.start, left.end)) == set(range(start, end)) & set(range(log_start, log_end))
    assert bool(report.losses) == (start > end or bool(set(range(start, end)) - set(range(log_start, log_end))))


def test_the_cluster_id_is_kept_and_added_to_older_checkpoints():
    old = at(p0=3)
    newer = old.advanced_to(at(p0=5).next_offsets, {"t": ID}, "c-1")
    assert "@cluster" not in old.to_json()
    assert newer.to_json()["@cluster"] == "c-1"
    assert newer.advanced_to(at(p0=6).next_offsets, {"t": ID}).cluster_id == "c-1"


def test_leader_epochs_are_kept_of_the_partitions_that_there_are():
    epochs = {PartitionKey("t", 0): 4, PartitionKey("t", 1): 5}
    newer = at(p0=3, p1=3).advanced_to(at(p0=5).next_offsets, {"t": ID}, None, epochs)
    assert newer.leader_epochs == {PartitionKey("t", 0): 4}


def test_removed_records_are_explained_by_the_topics_options():
    assert why_removed({"retention.ms": "1000", "retention.bytes": "-1"}) == (
        "by retention, retention.ms=1000, retention.bytes=-1, or DeleteRecords"
    )
    assert "no retention" in why_removed({"retention.ms": "-1", "retention.bytes": "-1"})
    assert "no retention" in why_removed({"cleanup.policy": "compact", "retention.ms": "1000"})


def lost(since, newest, subscription=SUBSCRIPTION):
    return [str(loss) for loss in losses_between(since, newest, subscription)]


def test_nothing_is_lost_while_topics_only_grow():
    assert lost(at(p0=3), at(p0=5, p1=2)) == []


def test_another_cluster_is_distinguished_from_another_topic():
    since = replace(at(p0=3), cluster_id="here")
    newest = StreamOffsets({PartitionKey("t", 0): 9}, {"t": OTHER_ID}, cluster_id="there")
    [sentence] = lost(since, newest)
    assert sentence.startswith("the checkpoint is of cluster here, but these brokers are cluster there")
    assert "correct kafka.bootstrap.servers" in sentence
    [sentence] = lost(since, replace(newest, cluster_id="here"))
    assert "deleted and created again" in sentence
    # A checkpoint of an earlier version does not name its cluster.
    [sentence] = lost(at(p0=3), newest)
    assert "deleted and created again" in sentence


def test_a_recreated_topics_unread_records_are_named_once():
    newest = StreamOffsets({PartitionKey("t", 0): 9}, {"t": OTHER_ID})
    [sentence] = lost(at(p0=3, p1=7), newest)
    assert "offsets of t-0 from 3 on, t-1 from 7 on of the old topic are lost" in sentence


@pytest.mark.parametrize(
    ("subscription", "words"),
    [
        (Topics(("t",)), "t-1 no longer exists: records of t-1 from offset 7 on are lost"),
        (TopicPattern("t.*"), "t-1 no longer exists"),
        (AssignedPartitions((PartitionKey("t", 0),)), "offsets of t-1, which this query does not read: assign=t-0"),
        (Topics(("other",)), "offsets of t-1, which this query does not read: subscribe=other"),
        (TopicPattern("o.*"), "which this query does not read: subscribePattern=o.*"),
    ],
)
def test_a_lost_partition_is_distinguished_from_an_unrequested_one(subscription, words):
    [sentence] = lost(at(p0=3, p1=7), at(p0=3), subscription)
    assert words in sentence
    assert "failOnDataLoss=false" in sentence


def test_a_checkpoint_of_many_other_partitions_gives_a_short_error():
    since = at(**{f"p{number}": 1 for number in range(300)})
    newest = StreamOffsets({PartitionKey("other", 0): 9}, {"other": OTHER_ID})
    [sentence] = lost(since, newest, Topics(("other",)))
    assert "t-9 and 290 more" in sentence
