"""Tests of truncated logs that grow again under a query.

The log loses records that the query has read. The query reports the loss, or continues where the logs diverge. The
readers are called as Spark calls them, by the offsets in the checkpoint alone.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from millrace.clients import Admin, Producer
from millrace.clients.connections import Connections
from millrace.errors import OffsetsLostError
from millrace_broker.testing import EmbeddedBroker
from pyspark_millrace.stream import StreamReader

from .cut_logs import raise_epoch, truncated
from .reader_model import Model, checkpointed, rows_of, stream
from .waiting import STALL_S

TOPIC = "orders"
EVERYTHING = ReadAllAvailable()


@pytest.fixture
def broker(tmp_path):
    with EmbeddedBroker(tmp_path / "broker") as running:
        with Admin(running.bootstrap_servers) as admin:
            admin.create_topic(TOPIC)
        yield running


def produce(broker, *values):
    """Append a batch for each value."""
    with Producer(broker.bootstrap_servers) as producer:
        for value in values:
            producer.send(TOPIC, value.encode()).result(STALL_S)


class Query:
    """A query that is killed after each batch. ``offset`` is its checkpoint's content."""

    def __init__(self, broker, **options):
        self._model = Model(broker.bootstrap_servers, TOPIC, 1)
        self._model.producer.close()
        self._options = {"startingOffsets": "earliest", **options}
        self.offset = self.planned = None

    def plan(self, limit=EVERYTHING):
        """Log a batch, and end."""
        reader = stream(self._model, self._options)
        try:
            self.offset = self.offset or checkpointed(reader.initialOffset())
            self.planned = checkpointed(reader.latestOffset(self.offset, limit))
        finally:
            reader.stop()

    def run(self):
        """Read the logged batch."""
        reader = stream(self._model, self._options)
        try:
            rows = rows_of(reader, reader.partitions(self.offset, self.planned))
        finally:
            reader.stop()
        self.offset = self.planned
        return [(offset, value.decode()) for value, _, offset in rows]

    def batch(self, limit=EVERYTHING):
        self.plan(limit)
        return self.run()


@pytest.fixture
def cut(broker, tmp_path):
    """Return a function that keeps so many batches of the log, as an unclean election does, and appends others."""
    started = []

    def cut_to(keep, *values):
        again = truncated(started[-1] if started else broker, tmp_path / "broker", TOPIC, keep)
        started.append(again)
        produce(again, *values)

    yield cut_to
    for each in started:
        each.stop()


def test_a_query_fails_with_the_diverged_offsets(broker, cut):
    produce(broker, *"abcd")
    query = Query(broker)
    assert len(query.batch()) == 4
    cut(2, *"CDEFG")
    for _ in range(2):  # until the user decides
        with pytest.raises(OffsetsLostError, match=f"the log of {TOPIC}-0 was truncated: offsets 2..3 have been read"):
            query.plan()


@pytest.mark.parametrize("appended", ["C", "CD", "CDEFG"])
def test_with_accepted_losses_a_query_continues_where_the_logs_diverge(broker, cut, caplog, appended):
    produce(broker, *"abcd")
    query = Query(broker, failOnDataLoss="false")
    query.batch()
    cut(2, *appended)
    assert query.batch() == list(enumerate(appended, 2))
    assert f"the log of {TOPIC}-0 was truncated: offsets 2..3 have been read" in caplog.text
    caplog.clear()
    assert query.batch() == []
    assert not caplog.text


def test_a_limited_batch_continues_where_the_logs_diverge(broker, cut):
    produce(broker, *"abcdef")
    query = Query(broker, failOnDataLoss="false")
    query.batch()
    cut(1, *"BCDEFGH")
    found = [query.batch(ReadMaxRows(3)) for _ in range(3)]
    assert found == [[(1, "B"), (2, "C"), (3, "D")], [(4, "E"), (5, "F"), (6, "G")], [(7, "H")]]


def test_records_that_a_limit_left_unread_are_no_loss(broker, cut):
    produce(broker, *"abcd")
    query = Query(broker)
    assert query.batch(ReadMaxRows(2)) == [(0, "a"), (1, "b")]
    cut(2, *"CDE")  # all records that were read still exist
    assert query.batch() == [(2, "C"), (3, "D"), (4, "E")]


def test_elections_without_loss_go_unnoticed(broker):
    query = Query(broker)
    for number, letter in enumerate("abcd"):
        produce(broker, letter)
        assert query.batch() == [(number, letter)]
        raise_epoch(broker, TOPIC)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_batch_that_was_planned_before_is_not_mixed_of_two_logs(broker, cut, fail):
    produce(broker, *"abcd")
    query = Query(broker, failOnDataLoss=fail)
    query.plan()
    cut(2, *"CDEFG")
    if fail == "true":
        with pytest.raises(OffsetsLostError, match=r"offsets 2\.\.3 have been read"):
            query.run()
        return
    assert query.run() == [(0, "a"), (1, "b")]
    assert query.batch() == list(enumerate("CDEFG", 2))


def offset_of_a_later_leader(query):
    """Return the checkpoint of a query that read two records from a leader of epoch 1."""
    query.plan()
    return query.planned | {TOPIC: {"0": 2}, "@leader-epochs": {TOPIC: {"0": 1}}}


@pytest.mark.parametrize("records", ["", "a"])
def test_a_replaced_leader_that_answers_first_is_not_believed(broker, monkeypatch, records):
    # The broker was disconnected from the cluster, and has not been fenced yet.
    produce(broker, *"a")
    query = Query(broker)
    query.offset = offset_of_a_later_leader(query)
    if not records:
        monkeypatch.setattr(StreamReader, "_fetch_newest", once_without_records(StreamReader._fetch_newest))
    attempts = threading.Semaphore(0)
    ask_another = Connections.ask_another
    monkeypatch.setattr(Connections, "ask_another", lambda self: (attempts.release(), ask_another(self)))
    with ThreadPoolExecutor(1) as pool:
        planned = pool.submit(query.plan)
        for _ in range(3):
            assert attempts.acquire(timeout=STALL_S), "the query does not look for a leader of the epoch that it read"
        raise_epoch(broker, TOPIC)
        produce(broker, *"bc")
        planned.result(STALL_S)
    assert query.run() == [(2, "c")]


def once_without_records(fetch):
    """Let a leader with an empty log give the first answer."""
    answers = []

    def fetched(self):
        answers.append(fetch(self))
        if len(answers) > 1:
            return answers[-1]
        return replace(answers[0], next_offsets=dict.fromkeys(answers[0].next_offsets, 0), leader_epochs={})

    return fetched


def test_leaders_that_stay_older_than_the_checkpoint_have_lost_records(broker):
    # For example, the cluster was restored from a backup.
    produce(broker, *"a")
    query = Query(broker, **{"kafka.default.api.timeout.ms": "500", "kafka.request.timeout.ms": "400"})
    query.offset = offset_of_a_later_leader(query)
    with pytest.raises(OffsetsLostError, match=f"the log of {TOPIC}-0 was truncated"):
        query.plan()


def test_checkpoints_from_before_epochs_were_kept_continue(broker, cut):
    produce(broker, *"abcd")
    query = Query(broker)
    query.batch()
    del query.offset["@leader-epochs"]
    cut(2, *"CDEFG")
    assert query.batch() == [(4, "E"), (5, "F"), (6, "G")]
    assert query.offset["@leader-epochs"] == {TOPIC: {"0": 1}}
