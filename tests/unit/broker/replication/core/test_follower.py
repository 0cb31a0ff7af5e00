"""Tests of a follower's rules.

The tests cover fetching, truncation, waiting and changes of role.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.errors import (
    FencedLeaderEpochError,
    NotLeaderError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    StaleControllerEpochError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from millrace_broker.decisions import PartitionDecision
from millrace_broker.replication.core import (
    EpochEnd,
    FetchedRecords,
    FetchFrom,
    Follower,
    Leader,
    Replica,
    ReplicationSettings,
    check_controller_epoch,
)
from millrace_broker.replication.core.follower import (
    Append,
    AskEpochEnd,
    AskLogBounds,
    RaiseLogStart,
    Stage,
    StartAt,
    Truncate,
)
from millrace_broker.replication.core.partition import EPOCH_DURING_DELETE, NO_EPOCH
from millrace_broker.replication.core.truncation import TruncationPoint, epoch_end, find_divergence, truncation_point

from .cluster import MemoryLog

NOW = 1_000_000
FOLLOW = PartitionDecision(controller_epoch=1, leader=1, leader_epoch=5, partition_epoch=7, isr=(1, 2), replicas=(1, 2))
COMPARING = ReplicationSettings(does_truncate_on_fetch=False)


def log_of(*epochs: int) -> MemoryLog:
    """Create a log with one record of each epoch."""
    log = MemoryLog()
    for epoch in epochs:
        log.append((epoch, f"record {log.log_end_offset}"))
    return log


def following(log: MemoryLog, settings: ReplicationSettings | None = None, watermark: int = 0) -> Follower:
    return Follower(FOLLOW, log, settings or ReplicationSettings(), watermark)


def test_a_follower_fetches_from_its_log_end_with_its_last_epoch() -> None:
    follower = following(log_of(0, 0, 3), watermark=1)
    assert follower.begin() == ()
    asked = follower.question(NOW)
    assert asked == FetchFrom(leader_epoch=5, offset=3, last_epoch=3, log_start_offset=0)
    assert follower.fetched(asked, FetchedRecords(end_offset=6, high_watermark=9)) == (Append(6),)
    assert follower.high_watermark == 6


def test_a_lower_high_watermark_of_the_leader_does_not_lower_the_followers() -> None:
    log = log_of(0, 0, 3)
    replica = Replica("orders-0", 2, ReplicationSettings(), 3)
    replica.decided(FOLLOW, log, NOW)
    follower = replica.role
    assert isinstance(follower, Follower)
    asked = follower.question(NOW)
    assert isinstance(asked, FetchFrom)
    follower.fetched(asked, FetchedRecords(end_offset=3, high_watermark=1))
    assert follower.high_watermark == 3
    replica.decided(replace(FOLLOW, leader=2, leader_epoch=6), log, NOW)
    assert replica.high_watermark == 3, "the leader keeps the offsets that it knew as a follower"


def test_a_follower_without_epochs_first_truncates_to_its_high_watermark() -> None:
    log = MemoryLog()
    log.records = [(0, "old format")] * 4
    follower = following(log, watermark=3)
    assert follower.begin() == (Truncate(3),)


def test_a_follower_truncates_to_the_offset_at_which_the_logs_diverge() -> None:
    log = log_of(0, 0, 2, 2, 2)
    follower = following(log, watermark=2)
    asked = follower.question(NOW)
    assert isinstance(asked, FetchFrom)
    diverging = EpochEnd(epoch=2, end_offset=4)
    assert follower.fetched(asked, FetchedRecords(end_offset=5, high_watermark=4, diverging=diverging)) == (
        Truncate(4),
    )
    assert follower.stage is Stage.FETCHING


def test_an_epoch_without_records_is_truncated_too() -> None:
    log = log_of(0, 0)
    log.epochs.assign(4, 2)  # the replica led and was replaced before any record arrived
    follower = following(log)
    asked = follower.question(NOW)
    assert isinstance(asked, FetchFrom)
    assert asked.last_epoch == 4
    diverging = EpochEnd(epoch=0, end_offset=3)
    assert follower.fetched(asked, FetchedRecords(end_offset=2, high_watermark=2, diverging=diverging)) == (
        Truncate(2),
    )
    log.truncate(2)
    asked = follower.question(NOW)
    assert isinstance(asked, FetchFrom)
    assert asked.last_epoch == 0


def test_epochs_are_compared_again_where_the_follower_does_not_know_the_leaders() -> None:
    log = log_of(0, 0, 1, 1, 4, 4)
    follower = following(log, COMPARING)
    asked = follower.question(NOW)
    assert asked == AskEpochEnd(leader_epoch=5, epoch=4)
    assert follower.compared(asked, EpochEnd(epoch=3, end_offset=6)) == (Truncate(4),)
    log.truncate(4)
    asked = follower.question(NOW)
    assert asked == AskEpochEnd(leader_epoch=5, epoch=1)
    assert follower.compared(asked, EpochEnd(epoch=1, end_offset=3)) == (Truncate(3),)
    assert follower.stage is Stage.FETCHING


@pytest.mark.parametrize(
    ("own", "leaders", "expected"),
    [
        ((0, 0, 1), EpochEnd(epoch=1, end_offset=2), TruncationPoint(2, True)),
        ((0, 0, 1), EpochEnd(epoch=1, end_offset=9), TruncationPoint(3, True)),
        ((0, 0, 2), EpochEnd(epoch=1, end_offset=9), TruncationPoint(2, False)),
        ((0, 0, 2), None, TruncationPoint(1, True)),
        ((), EpochEnd(epoch=1, end_offset=9), TruncationPoint(0, True)),
    ],
)
def test_the_truncation_point_follows_from_the_leaders_end_of_the_epoch(
    own: tuple[int, ...], leaders: EpochEnd | None, expected: TruncationPoint
) -> None:
    assert truncation_point(log_of(*own), 1, leaders) == expected


def test_a_leader_finds_where_logs_diverge() -> None:
    log = log_of(0, 0, 2, 2, 5)
    assert epoch_end(log, 3) == EpochEnd(epoch=2, end_offset=4)
    assert find_divergence("t-0", log, 4, 2) is None
    assert find_divergence("t-0", log, 5, 2) == EpochEnd(epoch=2, end_offset=4)
    assert find_divergence("t-0", log, 3, 1) == EpochEnd(epoch=0, end_offset=2)
    with pytest.raises(OffsetOutOfRangeError, match="epoch 6"):
        find_divergence("t-0", log, 5, 6)
    log.log_start_offset = 3
    with pytest.raises(OffsetOutOfRangeError, match="below the log start offset, 3"):
        find_divergence("t-0", log, 2, 2)


@pytest.mark.parametrize(
    ("bounds", "effects"), [((0, 2), (Truncate(2),)), ((7, 9), (StartAt(7),)), ((0, 9), ()), ((1, 3), ())]
)
def test_a_follower_out_of_range_truncates_to_the_leaders_end_or_starts_again(
    bounds: tuple[int, int], effects: tuple[object, ...]
) -> None:
    follower = following(log_of(0, 0, 0))
    asked = follower.question(NOW)
    assert asked is not None
    follower.failed(asked, OffsetOutOfRangeError("gone"), NOW)
    bounds_asked = follower.question(NOW)
    assert bounds_asked == AskLogBounds(leader_epoch=5)
    assert follower.bounded(bounds_asked, *bounds) == effects
    assert follower.stage is Stage.FETCHING


@pytest.mark.parametrize(("leader_end", "watermark"), [(1, 1), (2, 2), (3, 2), (9, 2)])
def test_a_watermark_is_never_behind_where_the_log_was_truncated(leader_end: int, watermark: int) -> None:
    follower = following(log_of(0, 0, 0), watermark=2)
    asked = follower.question(NOW)
    assert asked is not None
    follower.failed(asked, OffsetOutOfRangeError("gone"), NOW)
    bounds_asked = follower.question(NOW)
    assert isinstance(bounds_asked, AskLogBounds)
    follower.bounded(bounds_asked, 0, leader_end)
    assert follower.high_watermark == watermark


def test_answers_that_were_not_asked_for_change_nothing() -> None:
    follower = following(log_of(0, 0, 0))
    assert follower.bounded(AskLogBounds(leader_epoch=5), 0, 1) == ()
    assert follower.compared(AskEpochEnd(leader_epoch=5, epoch=0), None) == ()
    assert follower.stage is Stage.FETCHING


@pytest.mark.parametrize(
    ("leaders_start", "leaders_end", "effects", "watermark"),
    [
        (0, 1, (StartAt(0),), 0),
        (0, 2, (Truncate(2),), 2),
        (3, 9, (), 3),
        (4, 9, (StartAt(4),), 4),
    ],
)
def test_a_log_without_an_offset_in_common_with_the_leaders_starts_again(
    leaders_start: int, leaders_end: int, effects: tuple[object, ...], watermark: int
) -> None:
    log = log_of(0, 0, 0)
    log.log_start_offset = 2
    follower = following(log, watermark=3)
    asked = follower.question(NOW)
    assert asked is not None
    follower.failed(asked, OffsetOutOfRangeError("gone"), NOW)
    assert follower.bounded(AskLogBounds(leader_epoch=5), leaders_start, leaders_end) == effects
    assert follower.high_watermark == watermark


@pytest.mark.parametrize(("leader", "stage"), [(-1, Stage.WAITING), (0, Stage.FETCHING), (1, Stage.FETCHING)])
def test_without_a_leader_a_follower_waits(leader: int, stage: Stage) -> None:
    follower = Follower(replace(FOLLOW, leader=leader), MemoryLog(), ReplicationSettings(), 0)
    assert (follower.stage, follower.begin()) == (stage, ())
    assert (follower.question(NOW) is None) is (stage is Stage.WAITING)


def test_a_stopped_replica_keeps_the_watermark_that_it_heard_of_as_a_follower() -> None:
    log, replica = log_of(0, 0, 0), Replica("t-0", 2, ReplicationSettings(), high_watermark=1)
    replica.decided(FOLLOW, log, NOW)
    follower = replica.role
    assert isinstance(follower, Follower)
    asked = follower.question(NOW)
    assert isinstance(asked, FetchFrom)
    follower.fetched(asked, FetchedRecords(end_offset=3, high_watermark=3))
    replica.stopped(NO_EPOCH)
    assert (replica.role, replica.high_watermark) == (None, 3)


def test_a_fenced_follower_waits_for_the_controller_and_other_errors_are_retried() -> None:
    follower = following(log_of(0))
    asked = follower.question(NOW)
    assert asked is not None
    assert follower.question(0) == asked
    follower.failed(asked, RequestTimedOutError("no answer"), NOW)
    assert follower.question(NOW + 999) is None
    assert follower.question(NOW + 1000) == asked
    follower.failed(asked, FencedLeaderEpochError("over"), NOW)
    assert follower.stage is Stage.WAITING
    assert follower.question(NOW + 5000) is None


def test_a_leader_that_does_not_know_its_role_yet_is_asked_again_for_a_limited_time() -> None:
    follower = following(log_of(0))
    asked, now = follower.question(NOW), NOW
    assert asked is not None
    for _ in range(20):
        follower.failed(asked, UnknownLeaderEpochError("not yet"), now)
        assert follower.question(now + 49) is None
        now += 50
        assert follower.question(now) == asked
    follower.failed(asked, NotLeaderError("not yet"), now)
    assert follower.question(now + 999) is None
    assert follower.asked_again_ms == now + 1000


def test_the_early_retries_wait_no_longer_than_the_configured_backoff() -> None:
    follower = following(log_of(0), ReplicationSettings(replica_fetch_backoff_ms=10))
    asked = follower.question(NOW)
    assert asked is not None
    follower.failed(asked, NotLeaderError("not yet"), NOW)
    assert follower.asked_again_ms == NOW + 10


def test_an_answer_to_an_older_question_changes_nothing() -> None:
    log = log_of(0, 0)
    follower = following(log)
    asked = follower.question(NOW)
    assert isinstance(asked, FetchFrom)
    answer = FetchedRecords(end_offset=4, high_watermark=4)
    assert follower.fetched(replace(asked, leader_epoch=4), answer) == ()
    assert follower.fetched(replace(asked, offset=1), answer) == ()
    assert follower.high_watermark == 0


@pytest.mark.parametrize(
    ("log_start", "effects"), [(0, ()), (1, ()), (2, (RaiseLogStart(2),)), (3, (RaiseLogStart(3),)), (4, ())]
)
def test_records_that_the_leader_has_deleted_are_deleted_before_the_watermark(
    log_start: int, effects: tuple[object, ...]
) -> None:
    log = log_of(0, 0, 0)
    log.log_start_offset = 1
    follower = following(log)
    asked = follower.question(NOW)
    assert isinstance(asked, FetchFrom)
    assert asked.log_start_offset == 1
    answer = FetchedRecords(end_offset=3, high_watermark=3, log_start_offset=log_start)
    assert follower.fetched(asked, answer) == effects


def test_a_replica_keeps_its_high_watermark_when_its_role_changes() -> None:
    log, replica = log_of(0, 0, 0), Replica("t-0", 2, ReplicationSettings(), high_watermark=2)
    change = replica.decided(FOLLOW, log, NOW)
    assert change.is_new_role
    assert isinstance(replica.role, Follower)
    change = replica.decided(replace(FOLLOW, leader=2, leader_epoch=6, partition_epoch=8), log, NOW)
    assert (change.is_new_role, change.begins_epoch) == (True, 6)
    assert isinstance(replica.role, Leader)
    assert replica.high_watermark == 2
    assert replica.leading(6).epoch == 6
    assert not replica.decided(replace(FOLLOW, leader=2, leader_epoch=7, partition_epoch=9), log, NOW).is_new_role
    replica.stopped(7)
    assert (replica.role, replica.high_watermark) == (None, 2)


def test_a_fenced_leader_leads_again_in_its_epoch_and_another_broker_only_in_a_later_one() -> None:
    log, replica, lead = log_of(0), Replica("t-0", 2, ReplicationSettings(), 9), replace(FOLLOW, leader=2)
    replica.decided(lead, log, NOW)
    assert replica.high_watermark == 1, "the log has no more records"
    replica.fenced()
    assert (replica.role, replica.leader_epoch) == (None, 5)
    for stale in (FOLLOW, replace(lead, leader_epoch=4)):
        with pytest.raises(StaleControllerEpochError):
            replica.decided(stale, log, NOW)
    assert replica.decided(lead, log, NOW).is_new_role
    for end in (lambda: None, lambda: replica.stopped(5)):
        end()
        with pytest.raises(StaleControllerEpochError):
            replica.decided(lead, log, NOW)


def test_a_follower_has_a_new_role_with_each_other_leader_and_is_not_fenced() -> None:
    log, replica = log_of(0), Replica("t-0", 2, ReplicationSettings())
    assert replica.leader_epoch == -1
    leaders = [(1, True), (1, False), (3, True), (3, False)]
    for epoch, (leader, is_new_role) in enumerate(leaders, start=1):
        decision = replace(FOLLOW, leader=leader, leader_epoch=epoch)
        assert replica.decided(decision, log, NOW).is_new_role is is_new_role
        assert replica.leader_epoch == epoch
    replica.fenced()
    assert isinstance(replica.role, Follower)


def test_requests_of_other_epochs_are_refused() -> None:
    log, replica = log_of(0), Replica("t-0", 2, ReplicationSettings())
    replica.decided(FOLLOW, log, NOW)
    with pytest.raises(FencedLeaderEpochError):
        replica.leading(4)
    with pytest.raises(UnknownLeaderEpochError):
        replica.leading(6)
    with pytest.raises(NotLeaderError):
        replica.leading(None)
    with pytest.raises(StaleControllerEpochError):
        replica.decided(FOLLOW, log, NOW)
    with pytest.raises(UnknownTopicOrPartitionError, match="broker 2"):
        replica.decided(replace(FOLLOW, leader_epoch=6, replicas=(1, 3)), log, NOW)
    with pytest.raises(StaleControllerEpochError):
        check_controller_epoch(3, 2)
    check_controller_epoch(3, 3)


@pytest.mark.parametrize("epoch", [NO_EPOCH, EPOCH_DURING_DELETE, 5, 6])
def test_a_stop_of_the_same_or_a_later_epoch_ends_the_role(epoch: int) -> None:
    replica = Replica("t-0", 2, ReplicationSettings())
    replica.decided(FOLLOW, log_of(0), NOW)
    with pytest.raises(FencedLeaderEpochError):
        replica.stopped(4)
    assert replica.role is not None
    replica.stopped(epoch)
    assert replica.role is None


def test_a_follower_has_caught_up_when_it_has_its_leaders_committed_records() -> None:
    log = log_of(0, 0)
    follower = following(log, watermark=2)
    assert not follower.has_caught_up  # no epoch of this leader is known
    asked = follower.question(NOW)
    assert isinstance(asked, FetchFrom)
    follower.fetched(asked, FetchedRecords(end_offset=3, high_watermark=4))
    log.append((5, "record 2"))
    assert not follower.has_caught_up
    asked = follower.question(NOW)
    assert isinstance(asked, FetchFrom)
    follower.fetched(asked, FetchedRecords(end_offset=4, high_watermark=4))
    assert not follower.has_caught_up  # the record is not appended yet
    log.append((5, "record 3"))
    assert follower.has_caught_up
