"""Tests of offset resets in a checkpoint.

A reset adds one entry to the offset log, completely or not at all. A harmful reset is refused.
"""

import datetime as dt
import json
import uuid

import pytest

from millrace.clients.groups.resets import read_plans
from millrace.clients.model import TopicPartition
from millrace.errors import UsageError
from pyspark_millrace.checkpoints.query_log import read_checkpoint
from pyspark_millrace.checkpoints.reset import execute_reset, offsets_of, plan_reset
from pyspark_millrace.checkpoints.running import RunningLock, RunningLocks
from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.offsets import StreamOffsets

ID, OTHER_ID = uuid.UUID(int=7), uuid.UUID(int=8)
NOW = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def offsets(started_from=None, **partitions):
    def keyed(found):
        return {PartitionKey(name[0], int(name[1:])): offset for name, offset in found.items()}

    found = keyed(partitions)
    return StreamOffsets(found, {key.topic: ID for key in found}, started_from=started_from and keyed(started_from))


class Query:
    """A checkpoint as Spark writes it."""

    def __init__(self, directory, version="v1"):
        self.directory, self.version = directory, version
        for name in ("offsets", "commits"):
            (directory / name).mkdir(parents=True)
        (directory / "metadata").write_text('{"id":"q-1"}')

    def batch(self, number, *sources, done=True):
        lines = [
            (f"{name}:" if self.version == "v2" else "")
            + (source if isinstance(source, str) else json.dumps(source.to_json()))
            for name, source in enumerate(sources)
        ]
        text = "\n".join([self.version, '{"batchWatermarkMs":0}', *lines])
        (self.directory / "offsets" / str(number)).write_text(text)
        if done:
            (self.directory / "commits" / str(number)).write_text("v1\n{}")
        return self

    def read(self):
        return read_checkpoint(self.directory)

    def reset(self, new, ids=None, **options):
        plan = plan_reset(self.read(), new, {"a": ID} if ids is None else ids)
        return execute_reset(plan, NOW, **options)


@pytest.fixture
def query(tmp_path):
    return Query(tmp_path / "c").batch(0, offsets(a0=5, a1=7, started_from={"a0": 1, "a1": 2}))


def ranges(batch):
    return [(str(found.key), found.start, found.end) for found in batch.ranges]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_offsets_of_each_batch_are_read_from_a_checkpoint(tmp_path, version):
    query = Query(tmp_path / "c", version)
    query.batch(0, offsets(a0=5, started_from={"a0": 1}), "-").batch(1, offsets(a0=5, b0=3), '{"logOffset":3}')
    query.batch(3, offsets(a0=9), "-", done=False)
    found = query.read()
    first, second, last = found.batches()
    assert (ranges(first), ranges(second), last.ranges) == ([("a-0", 1, 5)], [("b-0", 0, 3)], None)
    assert (found.query_id, found.missing(), found.is_pending, last.is_done) == ("q-1", [2], True, False)


def test_a_reset_is_a_batch_that_reads_nothing_and_the_next_begins_at_it(query):
    backup = query.reset({A0: 2})
    query.batch(2, offsets(a0=6, a1=9), done=False)
    _, reset, after = query.read().batches()
    assert (reset.batch_id, reset.is_reset, reset.is_done, reset.ranges) == (1, True, False, ())
    assert ranges(after) == [("a-0", 2, 6), ("a-1", 7, 9)]
    assert (backup / "offsets" / "0").read_text() == (query.directory / "offsets" / "0").read_text()
    assert read_plans((backup / "offsets.csv").read_text(), ["q"], "x") == {"q": {A0: 5, A1: 7}}


def test_sources_that_are_not_ours_stay_as_they_are(tmp_path):
    query = Query(tmp_path / "c", "v2").batch(0, '{"logOffset":3}', offsets(a0=5))
    query.reset({A0: 2})
    lines = (query.directory / "offsets" / "1").read_text().split("\n")
    assert lines[:3] == ["v2", '{"batchWatermarkMs":0}', '0:{"logOffset":3}']
    assert lines[3].startswith('1:{"a": {"0": 2}')


def test_two_sources_of_one_topic_are_both_reset_and_get_no_partition_of_each_other(tmp_path):
    query = Query(tmp_path / "c").batch(0, offsets(a0=5), offsets(a1=8))
    query.reset({A0: 2})
    assert [dict(source.next_offsets) for source in query.read().newest.sources] == [{A0: 2}, {A1: 8}]


def test_recreated_topics_need_offsets_and_deleted_ones_are_dropped(query):
    query.batch(1, offsets(a0=5, a1=7, b0=4))
    with pytest.raises(UsageError, match="a was deleted and created again since the query read it: give a-1 an offset"):
        plan_reset(query.read(), {A0: 0}, {"a": OTHER_ID})
    plan = plan_reset(query.read(), {A0: 0, A1: 0}, {"a": OTHER_ID})
    assert [(str(each.partition), each.old, each.new) for each in plan.partitions] == [
        ("a-0", 5, 0),
        ("a-1", 7, 0),
        ("b-0", 4, None),
    ]
    execute_reset(plan, NOW)
    (source,) = query.read().newest.sources
    assert (dict(source.next_offsets), dict(source.topic_ids)) == ({A0: 0, A1: 0}, {"a": OTHER_ID})


def test_a_topic_that_the_query_does_not_read_is_refused(query):
    with pytest.raises(UsageError, match="does not read x: it reads a"):
        plan_reset(query.read(), {TopicPartition("x", 0): 1}, {"a": ID})


def test_an_unfinished_batch_is_dropped_only_when_that_is_wanted(query):
    query.batch(1, offsets(a0=6, a1=8), done=False)
    with pytest.raises(UsageError, match=r"batch 1 of .* was planned but not finished"):
        query.reset({A0: 0})
    assert not (query.directory / "offsets" / "2").exists()
    query.reset({A0: 0}, drop_pending=True)
    assert offsets_of(query.read()) == {A0: 0, A1: 8}


def test_state_is_kept_only_when_that_is_wanted(query):
    (query.directory / "state" / "0" / "0").mkdir(parents=True)
    (query.directory / "state" / "0" / "0" / "1.delta").write_text("")
    with pytest.raises(UsageError, match="keeps state"):
        query.reset({A0: 0})
    query.batch(1, offsets(a0=6, a1=8), done=False)
    with pytest.raises(UsageError, match="start the query once"):
        query.reset({A0: 0}, drop_pending=True, keep_state=True)


def test_a_query_that_runs_keeps_its_checkpoint(query):
    lock = RunningLock.acquire(query.directory, "query q-1")
    assert lock is not None
    with pytest.raises(UsageError, match=r"is running \(query q-1, process \d+ on .*\): stop it first"):
        query.reset({A0: 0})
    lock.release()
    query.reset({A0: 0})


def test_a_query_that_is_started_again_at_once_stays_locked(query):
    # Spark reports the end of the first run after the start of the second.
    locks = RunningLocks()
    assert locks.started(query.directory, "run-1", "query q-1")
    assert locks.started(query.directory, "run-2", "query q-1")
    assert not RunningLocks().started(query.directory, "run-3", "another driver")
    locks.ended("run-1")
    with pytest.raises(UsageError, match="stop it first"):
        query.reset({A0: 0})
    locks.ended("run-2")
    locks.ended("never started")
    query.reset({A0: 0})


def test_a_query_that_went_on_since_the_plan_was_made_keeps_its_checkpoint(query):
    plan = plan_reset(query.read(), {A0: 0}, {"a": ID})
    query.batch(1, offsets(a0=6, a1=8))
    with pytest.raises(UsageError, match="has run another batch meanwhile"):
        execute_reset(plan, NOW)
    assert query.read().newest.batch_id == 1


def test_the_first_query_that_logs_a_batch_owns_it(query, monkeypatch):
    # A query without our lock may log the batch at the last moment. Its entry stays, and no file of the reset is left.
    import os

    theirs = query.directory / "offsets" / "1"
    link = os.link

    def late(source, target):
        theirs.write_text("theirs")
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(UsageError, match="has logged batch 1 meanwhile: stop the query first"):
        query.reset({A0: 0})
    assert theirs.read_text() == "theirs"
    assert not list((query.directory / "_millrace").glob("reset-*"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("v1\n{}", "damaged"),
        ("v3\n{}\n{}", "version 'v3'"),
        ('v1\n{}\n{"logOffset":3}', "no source of format millrace"),
    ],
)
def test_other_checkpoints_are_refused(query, content, problem):
    (query.directory / "offsets" / "1").write_text(content)
    with pytest.raises(UsageError, match=problem):
        query.read()


def test_a_directory_that_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(UsageError, match="not the checkpoint of a query"):
        read_checkpoint(tmp_path)
    with pytest.raises(UsageError, match="local and mounted"):
        read_checkpoint("s3://bucket/c")
    with pytest.raises(UsageError, match="has planned no batch yet"):
        offsets_of(Query(tmp_path / "new").read())
