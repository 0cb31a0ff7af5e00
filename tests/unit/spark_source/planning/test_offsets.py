"""Tests of a stream's offsets, which survive the checkpoint."""

import json
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import UsageError
from millrace.ids import id_text, parse_id
from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.offsets import OffsetRange, StreamOffsets, ranges_between

ID = uuid.UUID(int=7)
OTHER_ID = uuid.UUID(int=8)

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
    | offsets(leader_epochs={PartitionKey("a", 0): 3}, diverged={PartitionKey("a", 10): 1, PartitionKey("a", 2): 7})
)
def test_offsets_survive_a_round_trip_through_json(found):
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
def test_topic_ids_survive_a_round_trip_as_text(topic_id):
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


@pytest.mark.parametrize(("start", "end", "count"), [(3, 5, 2), (5, 5, 0), (7, 5, 0)])
def test_a_range_that_does_not_ascend_counts_no_offsets(start, end, count):
    assert OffsetRange(PartitionKey("orders", 3), ID, start, end).count == count


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
