"""Tests of lost records.

An error names the loss exactly, with its remedy.
"""

import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import OffsetsLostError
from pyspark_millrace.options.source import AssignedPartitions, TopicPattern, Topics
from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.data_loss import LossReport, clip_to_log, losses_between, why_removed
from pyspark_millrace.planning.offsets import OffsetRange, StreamOffsets

ID = uuid.UUID(int=7)
OTHER_ID = uuid.UUID(int=8)
SUBSCRIPTION = Topics(("t",))


def at(**partitions):
    found = {PartitionKey("t", int(name[1:])): offset for name, offset in partitions.items()}
    return StreamOffsets(found, {"t": ID})


def wanted(start, end):
    return OffsetRange(PartitionKey("orders", 3), ID, start, end)


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
