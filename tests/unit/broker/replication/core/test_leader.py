"""Tests of a leader's rules.

The tests cover the high watermark, the ISR and acknowledgements.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    ReplicaNotAvailableError,
    RequestTimedOutError,
)
from millrace_broker.decisions import PartitionDecision
from millrace_broker.replication.core import AlterIsr, Leader, ReplicationSettings, preferred_read_replica
from millrace_broker.replication.core.leader import LeaderOutcome
from millrace_broker.replication.core.read_replicas import ReplicaView

LAG = 30_000
NOW = 1_000_000
FIRST = PartitionDecision(
    controller_epoch=1, leader=1, leader_epoch=5, partition_epoch=7, isr=(1, 2, 3), replicas=(1, 2, 3)
)


def leading(
    decision: PartitionDecision = FIRST, *, min_in_sync: int = 2, log_end: int = 10, watermark: int = 4
) -> Leader:
    leader = Leader("t-0", 1, ReplicationSettings(min_insync_replicas=min_in_sync), watermark)
    assert not leader.decided(decision, log_end, NOW).has_watermark_risen
    return leader


def test_the_watermark_follows_the_slowest_in_sync_over_two_rounds() -> None:
    leader = leading()
    assert leader.high_watermark == 4  # the followers' log end offsets are not known yet
    leader.fetched(2, 10, 0, NOW)
    assert leader.high_watermark == 4
    assert leader.fetched(3, 8, 0, NOW).has_watermark_risen
    assert leader.high_watermark == 8
    assert not leader.appended(12, NOW).has_watermark_risen
    assert leader.fetched(3, 12, 0, NOW).has_watermark_risen
    assert leader.high_watermark == 10


def test_one_replica_alone_acknowledges_at_once() -> None:
    leader = Leader("t-0", 1, ReplicationSettings(min_insync_replicas=2), 0)
    assert leader.decided(replace(FIRST, isr=(1,), replicas=(1,)), 3, NOW).has_watermark_risen
    leader.check_enough_in_sync()  # min.insync.replicas is limited by the number of replicas
    assert leader.appended(5, NOW).has_watermark_risen
    assert leader.is_acknowledged(5)


def test_a_follower_near_the_leader_is_waited_for_before_it_is_in_sync() -> None:
    leader = leading(replace(FIRST, isr=(1, 2)), watermark=10)
    leader.fetched(2, 10, 0, NOW)
    leader.fetched(3, 10, 0, NOW)  # caught up, but the controller has not confirmed it
    leader.appended(12, NOW)
    assert not leader.fetched(2, 12, 0, NOW + 1).has_watermark_risen
    leader.know_alive(lambda broker: broker != 3)
    # a replica that was asked to be added may be elected
    assert leader.appended(12, NOW + 1).has_watermark_risen is False
    assert leader.maximal_isr == {1, 2, 3}


def test_the_watermark_rises_as_soon_as_a_follower_that_asked_to_join_is_refused() -> None:
    leader = leading(replace(FIRST, isr=(1, 2)), watermark=10)
    leader.fetched(2, 10, 0, NOW)
    asked = leader.fetched(3, 10, 0, NOW).alter_isr
    assert asked is not None
    leader.appended(12, NOW + LAG + 1)
    assert not leader.fetched(2, 12, 0, NOW + LAG + 1).has_watermark_risen, "replica 3 may be in the ISR by now"
    leader.know_alive(lambda broker: broker != 3)
    assert leader.isr_refused(asked, IneligibleReplicaError("shutting down"), NOW + LAG + 1).has_watermark_risen
    assert leader.high_watermark == 12


def near_and_refused() -> Leader:
    """Return a leader whose third replica has caught up, may not join the ISR, and lacks the last two records."""
    leader = leading(replace(FIRST, isr=(1, 2)), watermark=10)
    leader.fetched(2, 10, 0, NOW)
    asked = leader.fetched(3, 10, 0, NOW).alter_isr
    assert asked is not None
    assert not leader.isr_refused(asked, IneligibleReplicaError("shutting down"), NOW).has_watermark_risen
    leader.appended(12, NOW + 1)
    assert not leader.fetched(2, 12, 0, NOW + 1).has_watermark_risen
    return leader


def test_the_watermark_rises_as_soon_as_a_follower_near_the_leader_is_dead() -> None:
    leader = near_and_refused()
    assert not leader.brokers_changed(NOW + 2).has_watermark_risen
    leader.know_alive(lambda broker: broker != 3)
    assert leader.brokers_changed(NOW + 2).has_watermark_risen
    assert leader.high_watermark == 12


@pytest.mark.parametrize("is_fetch", [False, True])
def test_the_watermark_rises_without_an_append_once_a_follower_is_no_longer_near(is_fetch: bool) -> None:
    leader = near_and_refused()

    def look(now_ms: int) -> LeaderOutcome:
        return leader.fetched(2, 12, 0, now_ms) if is_fetch else leader.shrink_isr(now_ms)

    assert not look(NOW + LAG).has_watermark_risen
    assert look(NOW + LAG + 1).has_watermark_risen
    assert leader.high_watermark == 12


def test_a_follower_far_behind_is_not_waited_for() -> None:
    leader = leading(replace(FIRST, isr=(1, 2)))
    leader.fetched(3, 2, 0, NOW)
    assert leader.fetched(2, 10, 0, NOW).has_watermark_risen
    assert leader.high_watermark == 10


def test_the_isr_grows_when_a_follower_has_the_watermark_and_the_epochs_start() -> None:
    leader = leading(replace(FIRST, isr=(1, 2)), log_end=10, watermark=4)
    # has reached the high watermark, but not the start of this epoch
    assert leader.fetched(3, 4, 0, NOW).alter_isr is None
    outcome = leader.fetched(3, 10, 0, NOW)
    assert outcome.alter_isr == AlterIsr(isr=(1, 2, 3), leader_epoch=5, partition_epoch=7)
    assert leader.fetched(3, 10, 0, NOW).alter_isr is None  # one ISR change in flight
    assert leader.isr == {1, 2}
    leader.isr_altered((1, 2, 3), 5, 8, NOW)
    assert (leader.isr, leader.partition_epoch) == ({1, 2, 3}, 8)


def test_an_isr_change_names_the_broker_epochs_of_the_fetches_of_added_followers() -> None:
    leader = leading(replace(FIRST, isr=(1, 2)))
    leader.fetched(2, 10, 0, NOW, 41)
    outcome = leader.fetched(3, 10, 0, NOW, 42)
    assert outcome.alter_isr is not None
    assert outcome.alter_isr.broker_epochs == {3: 42}
    leader.isr_refused(outcome.alter_isr, IneligibleReplicaError("registered again"), NOW)
    again = leader.fetched(3, 10, 0, NOW, 43).alter_isr
    assert again is not None
    assert again.broker_epochs == {3: 43}


def test_a_broker_that_is_away_does_not_come_into_the_isr() -> None:
    leader = leading(replace(FIRST, isr=(1, 2)))
    leader.know_alive(lambda broker: broker != 3)
    assert leader.fetched(3, 10, 0, NOW).alter_isr is None


def test_a_follower_that_lags_for_too_long_leaves_the_isr_and_the_watermark_advances_after_the_confirmation() -> None:
    leader = leading()
    leader.fetched(2, 10, 0, NOW)
    assert leader.shrink_isr(NOW + LAG).alter_isr is None
    later = NOW + LAG + 1
    leader.fetched(2, 10, 0, later)
    assert leader.shrink_isr(later).alter_isr == AlterIsr(isr=(1, 2), leader_epoch=5, partition_epoch=7)
    assert leader.shrink_isr(later) == LeaderOutcome(), "one ISR change is in flight"
    assert leader.maximal_isr == {1, 2, 3}
    assert leader.high_watermark == 4
    assert leader.isr_altered((1, 2), 5, 8, later).has_watermark_risen
    assert leader.high_watermark == 10


def test_a_follower_that_keeps_up_with_writes_but_is_never_at_the_end_stays() -> None:
    leader = leading()
    for round_number in range(100):
        now = NOW + round_number * 1000
        leader.appended(10 + round_number + 1, now)
        for follower in (2, 3):
            leader.fetched(follower, 10 + round_number, 0, now)
        assert leader.shrink_isr(now).alter_isr is None


@pytest.mark.parametrize(("after_ms", "isr"), [(0, (1, 2)), (1, (1,))])
@pytest.mark.parametrize("fetches", [[(10, 0)], [(9, 0), (10, LAG)], [(10, 0), (10, LAG)]])
def test_a_follower_had_caught_up_when_it_asked_for_what_came_after_the_end_of_then(
    fetches: list[tuple[int, int]], after_ms: int, isr: tuple[int, ...]
) -> None:
    leader = leading()
    for number, (offset, at_ms) in enumerate(fetches):
        leader.appended(10 + number, NOW + LAG + at_ms)
        leader.fetched(2, offset, 0, NOW + LAG + at_ms)
    leader.appended(12, NOW + 2 * LAG)
    altered = leader.shrink_isr(NOW + 2 * LAG + after_ms).alter_isr
    assert altered == AlterIsr(isr=isr, leader_epoch=5, partition_epoch=7)


def test_a_follower_that_fetches_the_same_old_offset_again_does_not_catch_up() -> None:
    leader = leading()
    leader.appended(20, NOW)
    for at_ms in (0, LAG):
        for follower in (2, 3):
            leader.fetched(follower, 12, 0, NOW + at_ms)
    assert leader.shrink_isr(NOW + LAG).alter_isr is None
    assert leader.shrink_isr(NOW + LAG + 1).alter_isr == AlterIsr(isr=(1,), leader_epoch=5, partition_epoch=7)


@pytest.mark.parametrize(("min_in_sync", "isr"), [(2, (1,)), (3, (1, 2))])
def test_too_few_in_sync_refuse_the_append(min_in_sync: int, isr: tuple[int, ...]) -> None:
    leader = leading(replace(FIRST, isr=isr), min_in_sync=min_in_sync)
    with pytest.raises(NotEnoughReplicasError, match="t-0"):
        leader.check_enough_in_sync()


def test_a_too_small_isr_after_the_append_is_reported_and_stops_the_high_watermark() -> None:
    leader = leading()
    for follower in (2, 3):
        leader.fetched(follower, 10, 0, NOW)
    leader.isr_altered((1,), 5, 8, NOW)
    with pytest.raises(NotEnoughReplicasAfterAppendError):
        leader.is_acknowledged(10)
    leader.appended(11, NOW)
    assert not leader.is_acknowledged(11)


def test_an_answer_of_another_epoch_changes_no_isr() -> None:
    leader = leading()
    for leader_epoch, partition_epoch in ((4, 9), (6, 9), (5, 6)):
        assert leader.isr_altered((1,), leader_epoch, partition_epoch, NOW) == LeaderOutcome()
    assert (leader.isr, leader.partition_epoch) == ({1, 2, 3}, 7)


def test_a_refused_change_is_asked_again_forgotten_or_left_to_the_controller() -> None:
    leader = leading(replace(FIRST, isr=(1, 2)))
    asked = leader.fetched(3, 10, 0, NOW).alter_isr
    assert asked is not None
    earlier = replace(asked, partition_epoch=6)
    assert leader.isr_refused(earlier, RequestTimedOutError("no answer"), NOW) == LeaderOutcome()
    assert leader.isr_refused(earlier, IneligibleReplicaError("shutting down"), NOW) == LeaderOutcome()
    assert leader.isr_refused(asked, RequestTimedOutError("no answer"), NOW).alter_isr == asked
    assert leader.isr_refused(asked, FencedLeaderEpochError("old"), NOW) == LeaderOutcome()
    assert leader.maximal_isr == {1, 2, 3}  # the controller may have carried it out
    assert leader.isr_refused(asked, IneligibleReplicaError("shutting down"), NOW) == LeaderOutcome()
    assert leader.maximal_isr == {1, 2}
    assert leader.fetched(3, 10, 0, NOW).alter_isr == asked


def test_a_new_epoch_restarts_the_lag_time_of_replicas_in_sync_and_keeps_the_state_of_the_same_leader() -> None:
    leader = leading()
    for follower in (2, 3):
        leader.fetched(follower, 10, 0, NOW)
    later = NOW + 10 * LAG
    leader.decided(replace(FIRST, leader_epoch=6, partition_epoch=9), 10, later)
    assert leader.shrink_isr(later + LAG).alter_isr is None
    assert leader.followers[2].log_end_offset == 10
    assert leader.high_watermark == 10


def test_another_decision_in_the_same_leader_epoch_begins_no_epoch() -> None:
    leader = leading()
    leader.decided(replace(FIRST, partition_epoch=8, replicas=(1, 2), isr=(1, 2)), 20, NOW + 1)
    assert (leader.epoch_start, leader.partition_epoch, leader.isr) == (10, 8, {1, 2})
    assert leader.shrink_isr(NOW + LAG).alter_isr is None
    assert leader.shrink_isr(NOW + LAG + 1).alter_isr == AlterIsr(isr=(1,), leader_epoch=5, partition_epoch=8)


def test_a_decision_older_than_the_last_confirmation_is_passed_over() -> None:
    leader = leading()
    leader.isr_altered((1, 2), 5, 9, NOW)
    assert leader.decided(replace(FIRST, partition_epoch=8), 10, NOW) == LeaderOutcome()
    assert leader.isr == {1, 2}


def test_the_first_leader_epoch_of_a_partition_is_0() -> None:
    leader = leading(replace(FIRST, leader_epoch=0, partition_epoch=0))
    assert (leader.epoch, leader.epoch_start, leader.partition_epoch) == (0, 10, 0)
    assert leader.shrink_isr(NOW + LAG) == LeaderOutcome(), "replicas in sync have the whole lag time to fetch"
    assert leader.shrink_isr(NOW + LAG + 1).alter_isr == AlterIsr(isr=(1,), leader_epoch=0, partition_epoch=0)


def test_a_broker_without_a_replica_is_refused() -> None:
    with pytest.raises(ReplicaNotAvailableError, match="broker 9"):
        leading().fetched(9, 0, 0, NOW)


def test_a_replica_that_a_reassignment_removes_is_waited_for_until_it_has_left_the_isr() -> None:
    leader = leading()
    leader.fetched(2, 5, 0, NOW)
    leader.fetched(3, 10, 0, NOW)
    assert leader.high_watermark == 5
    moved = replace(FIRST, leader_epoch=6, partition_epoch=8, replicas=(1, 3))
    assert not leader.decided(moved, 12, NOW).has_watermark_risen
    assert not leader.fetched(3, 12, 0, NOW).has_watermark_risen
    assert leader.high_watermark == 5  # broker 2 can still be elected
    assert leader.isr_altered((1, 3), 6, 9, NOW).has_watermark_risen
    assert leader.high_watermark == 12


def test_the_low_watermark_is_where_all_logs_have_begun() -> None:
    leader = leading()
    leader.fetched(2, 10, 3, NOW)
    leader.fetched(3, 10, 5, NOW)
    assert leader.low_watermark == 3


def test_consumers_are_sent_to_followers_in_sync_in_their_rack() -> None:
    leader = leading()
    leader.fetched(2, 10, 0, NOW)
    leader.fetched(3, 10, 0, NOW)
    own, followers = leader.views({1: "a", 2: "b", 3: "c"}, NOW)
    assert preferred_read_replica("c", 4, own, followers) == 3
    assert preferred_read_replica("a", 4, own, followers) is None


def test_a_consumer_is_shown_the_leader_and_its_followers() -> None:
    leader = leading(replace(FIRST, isr=(1, 2)))
    leader.fetched(2, 10, 3, NOW)
    own, followers = leader.views({1: "a", 2: "b"}, NOW + 5)
    assert own == ReplicaView(
        broker_id=1, rack="a", log_start_offset=0, log_end_offset=10, caught_up_ms_ago=0, is_in_sync=True
    )
    second, third = sorted(followers, key=lambda view: view.broker_id)
    assert second == ReplicaView(
        broker_id=2, rack="b", log_start_offset=3, log_end_offset=10, caught_up_ms_ago=5, is_in_sync=True
    )
    assert (third.broker_id, third.rack, third.is_in_sync) == (3, "", False)
    assert leader.views({}, NOW - 9)[1][0].caught_up_ms_ago == 0, "never negative"
