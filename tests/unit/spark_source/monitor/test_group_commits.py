"""Tests of group commits of the newest offsets in the background.

A failing broker does not affect the query.
"""

import threading

from millrace.clients.model import TopicPartition
from millrace.errors import BrokerUnavailableError
from pyspark_millrace.monitor.group_commits import CommitTarget, GroupCommits

from ....integration.waiting import STALL_S

P = TopicPartition("t", 0)
SLOW, OTHER, AWAY = CommitTarget("a:1", "slow"), CommitTarget("a:1", "other"), CommitTarget("away:1", "g")


class Broker:
    def __init__(self):
        self.commits = []
        self.let_through = threading.Event()
        self.asked = threading.Event()

    def connect(self, servers):
        if servers == AWAY.bootstrap_servers:
            raise BrokerUnavailableError("nobody answers")
        return self

    def alter_group_offsets(self, group_id, offsets):
        self.asked.set()
        assert self.let_through.wait(STALL_S)
        self.commits.append((group_id, offsets[P]))


def test_the_newest_offsets_are_committed_in_the_background():
    broker = Broker()
    written = []
    commits = GroupCommits(broker.connect, after=lambda: written.append(len(broker.commits)))
    commits.commit(SLOW, {P: 1})
    assert broker.asked.wait(STALL_S)
    for offset in (2, 3):
        commits.commit(SLOW, {P: offset})
    commits.commit(OTHER, {P: 7})
    assert not commits.wait_until_idle(0)
    broker.let_through.set()
    assert commits.wait_until_idle(STALL_S)
    assert broker.commits == [("slow", 1), ("slow", 3), ("other", 7)]
    assert written[-1] == 3
    assert commits.statistics.succeeded == 3


def test_brokers_that_do_not_answer_are_counted_and_logged(caplog):
    broker = Broker()
    broker.let_through.set()
    commits = GroupCommits(broker.connect)
    commits.commit(AWAY, {P: 1})
    commits.commit(OTHER, {P: 2})
    assert commits.wait_until_idle(STALL_S)
    assert broker.commits == [("other", 2)]
    assert (commits.statistics.succeeded, commits.statistics.failed) == (1, 1)
    assert "the progress of the query could not be committed to group g: nobody answers" in caplog.text
