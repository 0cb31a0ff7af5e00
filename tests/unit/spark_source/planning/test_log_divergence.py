"""Tests of the divergence of a log from a query's offsets.

Leader epochs show the divergence. A log that did not diverge is never reported.
"""

import uuid
from dataclasses import dataclass, field, replace
from itertools import count, takewhile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.errors import OffsetsLostError
from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.data_loss import LossReport
from pyspark_millrace.planning.log_divergence import (
    epochs_of_replaced_leaders,
    epochs_to_look_up,
    find_divergences,
)
from pyspark_millrace.planning.offsets import StreamOffsets, ranges_between

KEY = PartitionKey("t", 0)
ID = uuid.UUID(int=7)


@dataclass
class Log:
    """A list of records with unique names.

    Each record also has its leader epoch.
    """

    records: list[tuple[int, int]] = field(default_factory=list)
    epoch: int = 0
    names: count = field(default_factory=count)

    def append(self, number):
        self.records += [(self.epoch, next(self.names)) for _ in range(number)]

    def elect(self, lost):
        """Elect a leader that lacks the last records."""
        del self.records[max(0, len(self.records) - lost) :]
        self.epoch += 1

    def offsets(self, at=None):
        """Return the offsets that a query keeps after reading up to an offset."""
        epochs = {KEY: self.records[-1][0]} if self.records else {}
        return StreamOffsets({KEY: len(self.records) if at is None else at}, {KEY.topic: ID}, leader_epochs=epochs)

    def epoch_end(self, epoch):
        """Answer OffsetsForLeaderEpoch as a broker does."""
        epochs = [each for each, _ in self.records]
        if not epochs or epoch > epochs[-1]:
            return None
        return sum(each <= epoch for each in epochs)


events = st.lists(
    st.tuples(st.just("append"), st.integers(0, 5))
    | st.tuples(st.just("elect"), st.integers(0, 8))
    | st.tuples(st.just("read"), st.integers(0, 5))
)


@given(events)
@example([("append", 1), ("elect", 0), ("append", 1), ("read", 0), ("elect", 1), ("read", 0)])
def test_only_diverged_records_are_found(happened):
    log, since, read, had_all = Log(), None, [], True
    for kind, number in happened:
        if kind == "append":
            log.append(number)
        elif kind == "elect":
            log.elect(number)
        else:
            if since is not None:
                good = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(read, log.records, strict=False)))
                newest = log.offsets()
                ends = {key: log.epoch_end(epoch) for key, epoch in epochs_to_look_up(since, newest).items()}
                report = LossReport(fail=False)
                diverged = find_divergences(since, ends, report)
                assert len(report.losses) == len(diverged)
                if good == len(read):
                    # If the log had more records than were read, and all of its last epoch is gone, none or some may be
                    # lost.
                    assert not diverged or (not had_all and list(ends.values()) == [None])
                elif len(log.records) >= len(read):  # otherwise the log end offset shows it
                    [end] = ends.values()
                    assert diverged == {KEY: len(read) if end is None else good}
            at = min(len(log.records), len(read) + number)
            read, had_all = log.records[:at], at == len(log.records)
            since = log.offsets(at)


def test_a_recreated_topic_does_not_count_as_diverged():
    log = Log()
    log.append(3)
    since = log.offsets()
    log.elect(2)
    log.append(5)
    assert epochs_to_look_up(since, log.offsets()) == {KEY: 0}
    assert epochs_to_look_up(since, replace(log.offsets(), topic_ids={KEY.topic: uuid.UUID(int=8)})) == {}
    assert epochs_to_look_up(since, StreamOffsets({}, {})) == {}


@pytest.mark.parametrize(("answered", "is_older"), [(None, True), (1, True), (2, False), (3, False)])
def test_an_answer_with_an_older_epoch_or_none_comes_from_a_replaced_leader(answered, is_older):
    since = StreamOffsets({KEY: 9}, {KEY.topic: ID}, leader_epochs={KEY: 2})
    newest = StreamOffsets({KEY: 9}, {KEY.topic: ID}, leader_epochs={} if answered is None else {KEY: answered})
    assert epochs_of_replaced_leaders(since, newest) == ({KEY: 2} if is_older else {})
    recreated = replace(newest, topic_ids={KEY.topic: uuid.UUID(int=8)})
    assert epochs_of_replaced_leaders(since, recreated) == {}
    assert epochs_of_replaced_leaders(since, StreamOffsets({}, {}, leader_epochs={})) == {}, "a deleted partition"


def test_the_first_epoch_is_older_than_none():
    since = StreamOffsets({KEY: 9}, {KEY.topic: ID}, leader_epochs={KEY: 0})
    assert epochs_of_replaced_leaders(since, StreamOffsets({KEY: 0}, {KEY.topic: ID})) == {KEY: 0}
    assert epochs_of_replaced_leaders(since, since) == {}


def test_the_loss_ends_the_query_unless_it_is_accepted():
    since = StreamOffsets({KEY: 9}, {KEY.topic: ID}, leader_epochs={KEY: 2})
    with pytest.raises(OffsetsLostError, match=r"the log of t-0 was truncated: offsets 4\.\.8 have been read"):
        find_divergences(since, {KEY: 4}, LossReport(fail=True))
    with pytest.raises(
        OffsetsLostError,
        match=r"of t-0 was truncated: .* perhaps also records that the query has read .*up to offset 8",
    ):
        find_divergences(since, {KEY: None}, LossReport(fail=True))
    assert find_divergences(since, {KEY: 9}, LossReport(fail=True)) == {}


def test_the_batch_after_a_divergence_begins_where_the_logs_diverge():
    since = StreamOffsets({KEY: 9}, {KEY.topic: ID}, leader_epochs={KEY: 2})
    end = StreamOffsets.from_json(since.advanced_to({KEY: 9}, {KEY.topic: ID}, None, {KEY: 3}, {KEY: 4}).to_json())
    assert end.to_json() != since.to_json()
    assert [(wanted.start, wanted.end) for wanted in ranges_between(since, end)] == [(4, 9)]
    assert ranges_between(end, end) == []
    after = end.advanced_to({KEY: 11}, {KEY.topic: ID}, None, {KEY: 3})
    assert [(wanted.start, wanted.end) for wanted in ranges_between(end, after)] == [(9, 11)]
    assert not after.diverged
