"""Model test of three replicas that crash, over an unreliable network.

Messages are lost, delayed and reordered. No acknowledged record is lost, and the replicas do not differ.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.errors import NotLeaderError, StaleControllerEpochError
from millrace_broker.replication.core import FetchFrom, Follower, Leader
from millrace_broker.replication.core.follower import Effect, Question, Truncate

from .cluster import SETTINGS, Cluster

brokers = st.integers(0, 2)


def check(cluster: Cluster, watermarks: dict[Leader, int]) -> None:
    """Check the invariants that hold at every step."""
    for number in cluster.state.isr:
        records = cluster.brokers[number].log.records
        for offset, record in cluster.acknowledged.items():
            assert records[offset : offset + 1] == [record], f"broker {number} lost {record} at offset {offset}"
    for one, other in combinations(cluster.brokers, 2):
        upto = min(one.replica.high_watermark, other.replica.high_watermark)
        assert one.log.records[:upto] == other.log.records[:upto]
    for broker in cluster.brokers:
        if broker.is_up:
            assert broker.replica.high_watermark <= broker.log.log_end_offset
        if broker.leader is not None:
            assert broker.leader.high_watermark >= watermarks.get(broker.leader, 0)
            watermarks[broker.leader] = broker.leader.high_watermark
            # The last event already let it rise, because no other may follow.
            assert broker.leader.high_watermark == broker.leader.reachable_watermark(cluster.now)


class Replication(RuleBasedStateMachine):
    """Random events on three replicas, in any order."""

    @initialize(does_truncate_on_fetch=st.booleans(), min_in_sync=st.integers(1, 3))
    def begin(self, does_truncate_on_fetch: bool, min_in_sync: int) -> None:
        chosen = replace(SETTINGS, does_truncate_on_fetch=does_truncate_on_fetch, min_insync_replicas=min_in_sync)
        self.cluster = Cluster(settings=chosen)
        self.watermarks: dict[Leader, int] = {}
        self.produced = 0

    @rule(number=brokers)
    def produce(self, number: int) -> None:
        self.produced += self.cluster.produce(number, f"v{self.produced}")

    @rule(number=brokers)
    def ask(self, number: int) -> None:
        self.cluster.ask(number)

    @rule(number=brokers, rounds=st.integers(1, 3))
    def keep_up(self, number: int, rounds: int) -> None:
        for _ in range(rounds):
            self.cluster.ask(number)
            for _ in range(2):
                if self.cluster.network:
                    self.cluster.network.pop().deliver()

    @precondition(lambda self: self.cluster.network)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        which = data.draw(st.integers(0, len(self.cluster.network) - 1))
        self.cluster.network.pop(which).deliver()

    @precondition(lambda self: self.cluster.network)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.cluster.network.pop(data.draw(st.integers(0, len(self.cluster.network) - 1)))

    @rule()
    def settle(self) -> None:
        self.cluster.settle()

    @rule(number=brokers)
    def write_checkpoint(self, number: int) -> None:
        self.cluster.brokers[number].checkpoint = self.cluster.brokers[number].replica.high_watermark

    @rule(number=brokers)
    def crash_or_restart(self, number: int) -> None:
        broker = self.cluster.brokers[number]
        if broker.is_up:
            self.cluster.crash(number)
        else:
            self.cluster.restart(number)
        self.cluster.elect()

    @rule(number=brokers, does_elect=st.booleans())
    def take_for_dead(self, number: int, does_elect: bool) -> None:
        if self.cluster.brokers[number].is_up:
            self.cluster.fence(number, does_elect=does_elect)

    @rule()
    def decide_anew(self) -> None:
        self.cluster.elect()

    @rule(ms=st.sampled_from([500, 10_000, 40_000]))
    def time_passes(self, ms: int) -> None:
        self.cluster.tick(ms)

    @invariant()
    def nothing_is_lost_and_nothing_differs(self) -> None:
        check(self.cluster, self.watermarks)


Replication.TestCase.settings = settings(max_examples=60, stateful_step_count=60)
TestReplication = Replication.TestCase


def step(cluster: Cluster, chance: random.Random, number: int) -> None:
    """Do one random action. Ordinary actions are the most frequent, and most messages arrive in order."""
    broker = cluster.brokers[chance.randrange(3)]
    fault = chance.random()
    if fault < 0.02:
        if broker.is_up:
            cluster.crash(broker.broker_id)
        else:
            cluster.restart(broker.broker_id)
        cluster.elect()
    elif fault < 0.025:
        cluster.elect()
    elif fault < 0.03:
        if broker.is_up:
            cluster.fence(broker.broker_id, does_elect=chance.random() < 0.5)
    elif fault < 0.04:
        broker.checkpoint = broker.replica.high_watermark
    elif fault < 0.07:
        cluster.tick(chance.choice([500, 10_000, 40_000]))
    elif fault < 0.25:
        cluster.produce(broker.broker_id, f"v{number}")
    elif fault < 0.5:
        cluster.ask(broker.broker_id)
    elif cluster.network:
        is_late = chance.random() < 0.1
        message = cluster.network.pop(chance.randrange(len(cluster.network)) if is_late else 0)
        if chance.random() > 0.03:
            message.deliver()


@pytest.mark.parametrize("run", range(40))
def test_no_acknowledged_record_is_lost_in_long_random_runs(run: int, seed: int) -> None:
    chance = random.Random(seed)
    chosen = replace(SETTINGS, does_truncate_on_fetch=run % 2 == 0, min_insync_replicas=1 + run % 3 % 2)
    cluster, watermarks = Cluster(settings=chosen), {}
    for number in range(1000):
        step(cluster, chance, number)
        check(cluster, watermarks)
    heal(cluster)
    assert "last" in {value for _, value in cluster.acknowledged.values()}
    check(cluster, watermarks)
    assert all(broker.log.records == cluster.brokers[0].log.records for broker in cluster.brokers)


def heal(cluster: Cluster) -> None:
    """Restart all brokers, let the followers catch up, and append a last record."""
    for broker in cluster.brokers:
        if not broker.is_up:
            cluster.restart(broker.broker_id)
    cluster.settle()
    cluster.elect()
    cluster.settle()
    for is_written in (False, True):
        if is_written:
            assert cluster.produce(cluster.state.leader, "last")
        for _ in range(max(len(broker.log.records) for broker in cluster.brokers) + 10):
            cluster.tick(500)
            for broker in cluster.brokers:
                cluster.fetch_round(broker.broker_id)


def test_a_fenced_leader_answers_no_request_until_the_controller_decides_again() -> None:
    cluster = Cluster()
    fenced = cluster.brokers[0]
    assert cluster.produce(0, "before")
    cluster.fence(0, does_elect=False)
    assert not cluster.produce(0, "nobody leads")
    with pytest.raises(NotLeaderError):
        fenced.replica.leading(0)
    cluster.settle()
    assert fenced.replica.leading(0).epoch == 0
    assert cluster.produce(0, "after")
    for number in (1, 2, 1, 2, 1, 2):
        cluster.fetch_round(number)
    assert [value for _, value in cluster.acknowledged.values()] == ["after"], "the first record's producer was refused"
    cluster.decide(0, replace(cluster.state, isr=(0,)))
    assert fenced.replica.leading(0).isr == {0, 1, 2}, "a state of a known leader epoch changes nothing"
    cluster.fence(0, does_elect=True)
    cluster.settle()
    assert fenced.follower is not None
    with pytest.raises(NotLeaderError):
        fenced.replica.leading(1)


def test_a_fenced_leader_does_not_follow_in_the_same_epoch_nor_lead_in_an_older_one() -> None:
    cluster = Cluster()
    cluster.elect()
    cluster.settle()
    replica = cluster.brokers[0].replica
    replica.fenced()
    for decision in (replace(cluster.state, leader=1), replace(cluster.state, leader_epoch=0)):
        with pytest.raises(StaleControllerEpochError):
            replica.decided(decision, cluster.brokers[0].log, cluster.now)
    replica.decided(cluster.state, cluster.brokers[0].log, cluster.now)
    assert replica.leading(1).epoch == 1


class ToWatermark(Follower):
    """A follower as before KIP-101.

    The follower truncates to its high watermark and compares no epochs.
    """

    def begin(self) -> tuple[Effect, ...]:
        return (Truncate(self.high_watermark),)

    def question(self, now_ms: int) -> Question | None:
        asked = super().question(now_ms)
        return replace(asked, last_epoch=None) if isinstance(asked, FetchFrom) else asked


ONE_IS_ENOUGH = replace(SETTINGS, min_insync_replicas=1)


def two_replicas(follower: type[Follower]) -> Cluster:
    """Create two replicas with two acknowledged records.

    The follower does not know yet that the second one is acknowledged.
    """
    cluster = Cluster(2, ONE_IS_ENOUGH, follower)
    cluster.produce(0, "m0")
    cluster.fetch_round(1)
    cluster.fetch_round(1)
    cluster.produce(0, "m1")
    cluster.fetch_round(1)
    cluster.ask(1)
    cluster.network.pop(0).deliver()  # the leader knows, and its answer is still in flight
    cluster.network.clear()
    assert [cluster.acknowledged[n][1] for n in (0, 1)] == ["m0", "m1"]
    assert cluster.brokers[1].replica.high_watermark == 1
    cluster.brokers[1].checkpoint = 1
    cluster.brokers[0].checkpoint = 2
    return cluster


def lose_the_leader_after_the_follower_restarts(follower: type[Follower]) -> Cluster:
    cluster = two_replicas(follower)
    cluster.crash(1)
    cluster.restart(1)
    cluster.change(leader_epoch=cluster.state.leader_epoch + 1)
    cluster.decide(1, cluster.state)  # the replica is a follower before it can ask
    cluster.crash(0)
    cluster.elect()
    cluster.settle()
    cluster.restart(0)
    cluster.elect()
    cluster.settle()
    for _ in range(4):
        cluster.fetch_round(0)
    return cluster


def test_going_back_to_the_watermark_loses_what_was_acknowledged() -> None:
    cluster = lose_the_leader_after_the_follower_restarts(ToWatermark)
    assert cluster.acknowledged[1][1] == "m1"
    assert [[record[1] for record in broker.log.records] for broker in cluster.brokers] == [["m0"], ["m0"]]


@pytest.mark.parametrize("does_truncate_on_fetch", [True, False])
def test_going_back_by_epochs_keeps_it(does_truncate_on_fetch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        globals(), "ONE_IS_ENOUGH", replace(ONE_IS_ENOUGH, does_truncate_on_fetch=does_truncate_on_fetch)
    )
    cluster = lose_the_leader_after_the_follower_restarts(Follower)
    assert [[record[1] for record in broker.log.records] for broker in cluster.brokers] == [["m0", "m1"]] * 2


def crash_both_and_let_the_shorter_log_lead(follower: type[Follower]) -> Cluster:
    """Let the follower lose its unsynced second record in a power failure and come back first."""
    cluster = two_replicas(follower)
    cluster.crash(0)
    cluster.crash(1)
    cluster.brokers[1].log.truncate(1)
    cluster.restart(1)
    cluster.elect()
    cluster.settle()
    assert cluster.state.leader == 1
    cluster.produce(1, "m2")
    cluster.restart(0)
    cluster.elect()
    cluster.settle()
    for _ in range(4):
        cluster.fetch_round(0)
    return cluster


def test_going_back_to_the_watermark_leaves_different_records_under_one_offset() -> None:
    cluster = crash_both_and_let_the_shorter_log_lead(ToWatermark)
    assert [[record[1] for record in broker.log.records] for broker in cluster.brokers] == [["m0", "m1"], ["m0", "m2"]]


@pytest.mark.parametrize("does_truncate_on_fetch", [True, False])
def test_going_back_by_epochs_makes_logs_equal(does_truncate_on_fetch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        globals(), "ONE_IS_ENOUGH", replace(ONE_IS_ENOUGH, does_truncate_on_fetch=does_truncate_on_fetch)
    )
    cluster = crash_both_and_let_the_shorter_log_lead(Follower)
    assert [[record[1] for record in broker.log.records] for broker in cluster.brokers] == [["m0", "m2"]] * 2
