"""Bounds of heartbeats, epochs and fields of consumer groups."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from millrace.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InvalidRequestError,
    StaleMemberEpochError,
    UnknownMemberError,
    UnsupportedVersionError,
)
from millrace_broker.groups.consumer.consumer_group import (
    ConsumerGroup,
    ConsumerGroupState,
    ConsumerSettings,
    Heartbeat,
    check_request,
)
from millrace_broker.groups.consumer.members import NO_PARTITIONS, ClassicMetadata, ConsumerMember, MemberState
from millrace_broker.groups.requests import Identity

from .cluster import Cluster
from .test_consumer_group import SETTINGS, Driver

TOPIC = uuid.UUID(int=1)
CLASSIC = ClassicMetadata(session_timeout_ms=1, protocols=())
VALID: dict[str, Any] = {
    "member_id": "a",
    "member_epoch": 0,
    "topics": frozenset({"t"}),
    "rebalance_timeout_ms": 1,
    "owned": NO_PARTITIONS,
}


# --- requests ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"topics": None, "regex": "t"},
        {"rebalance_timeout_ms": 0},
        {"instance_id": "i", "rack_id": "r"},
        {"member_epoch": -2, "instance_id": "i"},
        {"member_epoch": -1},
        {"member_epoch": -1, "instance_id": "i", "topics": None, "rebalance_timeout_ms": -1, "owned": None},
        {"member_epoch": 1, "topics": None, "rebalance_timeout_ms": -1, "owned": None},
        {"member_epoch": 1, "owned": frozenset({(TOPIC, 0)})},
    ],
)
def test_a_request_at_the_bounds_is_valid(fields: dict[str, Any]) -> None:
    check_request(Heartbeat(**VALID | fields))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"member_epoch": -3, "instance_id": "i"}, "epoch -3 is invalid"),
        ({"member_epoch": -2}, "no instance id"),
        ({"member_epoch": 1, "member_id": ""}, "no member id"),
        ({"member_epoch": 1, "instance_id": ""}, "instance id is empty"),
        ({"member_epoch": 1, "rack_id": ""}, "rack id is empty"),
        ({"rebalance_timeout_ms": -1}, "no rebalance timeout"),
        ({"owned": frozenset({(TOPIC, 0)})}, "owns no partitions"),
        ({"owned": None}, "owns no partitions"),
        ({"topics": None}, "no subscription"),
    ],
)
def test_an_error_names_what_is_invalid(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        check_request(Heartbeat(**VALID | fields))


@pytest.mark.parametrize(
    ("fields", "is_full"),
    [
        ({}, True),
        ({"topics": None, "regex": ""}, True),
        ({"topics": None}, False),
        ({"rebalance_timeout_ms": -1}, False),
        ({"owned": None}, False),
        ({"member_epoch": 0, "owned": None}, True),
        ({"member_epoch": -1, "owned": None}, False),
    ],
)
def test_a_full_request_has_all_fields(fields: dict[str, Any], is_full: bool) -> None:
    assert Heartbeat(**VALID | {"member_epoch": 1} | fields).is_full is is_full


def test_a_field_that_a_heartbeat_lacks_stays_as_it_is() -> None:
    driver = Driver(t=1, u=1)
    fields = {"rack_id": "r", "server_assignor": "range", "regex": "u", "client_id": "c", "client_host": "h"}
    driver.join("a", "t", **fields)
    driver.beat("a", 1, client_id="c", client_host="h")
    member = driver.group.members["a"]
    assert (member.rack_id, member.server_assignor, member.regex, member.topics) == ("r", "range", "u", {"t"})
    assert member.rebalance_timeout_ms == 1000
    changed = {"rack_id": "s", "server_assignor": "uniform", "regex": "", "client_id": "d", "client_host": "i"}
    driver.beat("a", 1, topics=frozenset({"t", "u"}), rebalance_timeout_ms=7, **changed)
    member = driver.group.members["a"]
    assert {name: getattr(member, name) for name in changed} == changed
    assert (member.topics, member.rebalance_timeout_ms, member.epoch) == ({"t", "u"}, 7, 2)


def test_a_heartbeat_changes_a_classic_member_to_the_consumer_protocol() -> None:
    driver = Driver(t=1)
    driver.join("a", "t")
    driver.group = driver.group.with_member(replace(driver.group.members["a"], classic=CLASSIC))
    group, _ = driver.group.heartbeat(Heartbeat(member_id="a", member_epoch=1), driver.cluster, SETTINGS)
    assert group.members["a"].classic is None


# --- epochs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "owned", "is_fenced"),
    [
        (4, (), True),
        (5, None, True),
        (5, (0, 1), True),
        (5, (0,), False),
        (5, (), False),
        (6, None, True),
        (7, None, False),
        (7, (0, 1), False),
        (8, (), True),
    ],
)
def test_the_previous_epoch_counts_while_its_partitions_are_still_assigned(
    epoch: int, owned: tuple[int, ...] | None, is_fenced: bool
) -> None:
    cluster = Cluster(t=1)
    member = ConsumerMember(
        member_id="a", topics=frozenset({"t"}), epoch=7, previous_epoch=5, assigned=cluster.partitions("t")
    )
    group = ConsumerGroup(
        group_id="g", epoch=7, target_epoch=7, members={"a": member}, target={"a": cluster.partitions("t")}
    ).refreshed(cluster, SETTINGS, is_changed=False)
    group = replace(group, epoch=7, target_epoch=7)
    reported = None if owned is None else frozenset((TOPIC, number) for number in owned)
    beat = Heartbeat(member_id="a", member_epoch=epoch, owned=reported)
    if is_fenced:
        with pytest.raises(FencedMemberEpochError, match=f"is in epoch 7, not {epoch}"):
            group.heartbeat(beat, cluster, SETTINGS)
    else:
        assert group.heartbeat(beat, cluster, SETTINGS)[1].member_epoch == 7


def group_of(*members: ConsumerMember, epoch: int = 3, target_epoch: int = 3) -> ConsumerGroup:
    return ConsumerGroup(
        group_id="g", epoch=epoch, target_epoch=target_epoch, members={each.member_id: each for each in members}
    )


MEMBER = ConsumerMember(member_id="a", epoch=3)
CLASSIC_MEMBER = replace(MEMBER, member_id="c", classic=CLASSIC)


@pytest.mark.parametrize(
    ("group", "state"),
    [
        (group_of(), ConsumerGroupState.EMPTY),
        (group_of(epoch=4), ConsumerGroupState.EMPTY),
        (group_of(MEMBER, epoch=4), ConsumerGroupState.ASSIGNING),
        (group_of(MEMBER), ConsumerGroupState.STABLE),
        (group_of(MEMBER, epoch=4, target_epoch=4), ConsumerGroupState.RECONCILING),
        (group_of(replace(MEMBER, state=MemberState.UNRELEASED_PARTITIONS)), ConsumerGroupState.RECONCILING),
        (group_of(MEMBER, replace(MEMBER, member_id="b", epoch=2)), ConsumerGroupState.RECONCILING),
    ],
)
def test_the_state_is_that_of_the_slowest_member(group: ConsumerGroup, state: ConsumerGroupState) -> None:
    assert group.state is state
    assert group.is_empty is (state is ConsumerGroupState.EMPTY)
    assert group.protocol_type == "consumer"


def commit(member_id: str, epoch: int, version: int = 0, is_transactional: bool = False) -> dict[str, Any]:
    identity = Identity(member_id=member_id, generation_id=epoch, kafka_version=version)
    return {"identity": identity, "is_transactional": is_transactional}


@pytest.mark.parametrize(
    "fields",
    [
        commit("a", 3),
        commit("a", 3, version=9),
        commit("a", 3, is_transactional=True),
        commit("c", 3, version=8),
        commit("", -1, is_transactional=True),
    ],
)
def test_commits_of_members_and_of_transactions_without_one_are_accepted(fields: dict[str, Any]) -> None:
    group_of(MEMBER, CLASSIC_MEMBER).check_commit(**fields)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (commit("a", 2), StaleMemberEpochError),
        (commit("a", 4), StaleMemberEpochError),
        (commit("a", -1), StaleMemberEpochError),
        (commit("a", -1, is_transactional=True), StaleMemberEpochError),
        (commit("c", 2), IllegalGenerationError),
        (commit("a", 3, version=1), UnsupportedVersionError),
        (commit("a", 3, version=8), UnsupportedVersionError),
        (commit("", -1), UnknownMemberError),
        (commit("", 0, is_transactional=True), UnknownMemberError),
        (commit("x", 3), UnknownMemberError),
    ],
)
def test_commits_of_others_are_refused(fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        group_of(MEMBER, CLASSIC_MEMBER).check_commit(**fields)


def test_a_group_without_members_takes_commits_without_a_generation_only() -> None:
    group_of().check_commit(**commit("anyone", -1))
    with pytest.raises(UnknownMemberError):
        group_of().check_commit(**commit("anyone", 0))


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [
        (None, -1, None),
        (None, 0, UnknownMemberError),
        ("", -1, UnknownMemberError),
        ("a", -1, StaleMemberEpochError),
        ("a", 2, StaleMemberEpochError),
        ("a", 3, None),
    ],
)
def test_a_fetch_of_offsets_has_no_member_or_its_epoch(
    member_id: str | None, epoch: int, error: type[Exception] | None
) -> None:
    if error is None:
        group_of(MEMBER).check_fetch(member_id, epoch)
        return
    with pytest.raises(error):
        group_of(MEMBER).check_fetch(member_id, epoch)


# --- members that join and leave -----------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "is_full"), [(1, False), (2, True), (3, True)])
def test_a_group_has_at_most_its_maximum_of_members(size: int, is_full: bool) -> None:
    group = group_of(*(replace(MEMBER, member_id=str(number)) for number in range(size)))
    settings = ConsumerSettings(max_size=2)
    if is_full:
        with pytest.raises(GroupMaxSizeReachedError, match=f"has {size} members"):
            group.check_size(settings)
    else:
        group.check_size(settings)


@pytest.mark.parametrize(
    ("member_id", "epoch", "instance_id", "error"),
    [
        ("x", -1, None, UnknownMemberError),
        ("x", 1, None, UnknownMemberError),
        ("x", -1, "i", FencedInstanceIdError),
        ("x", -2, "i", FencedInstanceIdError),
        ("x", 1, "i", FencedInstanceIdError),
        ("a", -1, "j", UnknownMemberError),
        ("a", -2, "j", UnknownMemberError),
        ("a", 1, "j", UnknownMemberError),
    ],
)
def test_a_heartbeat_under_the_id_of_another_is_refused(
    member_id: str, epoch: int, instance_id: str | None, error: type[Exception]
) -> None:
    driver = Driver(t=1)
    driver.join("a", "t", instance_id="i")
    with pytest.raises(error):
        driver.beat(member_id, epoch, instance_id=instance_id)


def test_a_static_member_leaves_for_good_or_for_a_short_time() -> None:
    driver = Driver(t=2)
    driver.join("a", "t", instance_id="i")
    driver.join("b", "t", instance_id="j")
    revoking = driver.beat("a", 1).assignment
    assert revoking is not None
    assert driver.beat("a", -2, instance_id="i") == ("a", -2, None)
    left = driver.group.members["a"]
    assert (left.epoch, left.assigned, left.revoking) == (-2, revoking, NO_PARTITIONS)
    assert driver.beat("b", 2, instance_id="j").assignment == driver.cluster.partitions("t") - revoking
    for name in ("a", "c"):
        assert driver.join(name, "t", instance_id="i") == (name, 2, revoking)
        back = driver.group.members[name]
        assert (back.state, back.previous_epoch) == (MemberState.STABLE, 0)
        driver.beat(name, -2, instance_id="i")
    assert driver.beat("c", -1, instance_id="i") == ("c", -1, None)
    assert set(driver.group.members) == {"b"}
    assert driver.group.epoch == 3


def test_a_member_that_is_gone_is_not_removed_again() -> None:
    with pytest.raises(UnknownMemberError):
        group_of(MEMBER).without("x", Cluster(), SETTINGS)
    assert group_of(MEMBER).without("a", Cluster(), SETTINGS).epoch == 4


def test_a_member_that_joins_anew_keeps_its_epoch_and_gets_its_assignment() -> None:
    driver = Driver(t=2)
    driver.join("a", "t", instance_id="i")
    assert driver.join("a", "t", instance_id="i") == ("a", 1, driver.cluster.partitions("t"))
    assert driver.group.epoch == 1


# --- target assignment ---------------------------------------------------------------------------------------


def test_only_changes_of_subscriptions_and_of_their_topics_raise_the_epoch() -> None:
    driver = Driver(t=1)
    driver.join("a", "t")
    group, cluster = driver.group, driver.cluster
    assert group.refreshed(cluster, SETTINGS, is_changed=False) is group
    cluster.create("other", 1)
    checked = group.refreshed(cluster, SETTINGS, is_changed=False)
    assert (checked.epoch, checked.topics_revision) == (1, cluster.revision)
    assert group.refreshed(cluster, SETTINGS, is_changed=True).epoch == 2
    cluster.create("t", 2)
    changed = group.refreshed(cluster, SETTINGS, is_changed=False)
    assert (changed.epoch, changed.target_epoch, changed.target) == (2, 2, {"a": cluster.partitions("t")})


@pytest.mark.parametrize("revision", [-1, 1])
def test_a_target_assignment_that_was_not_written_is_made_for_the_present_epoch(revision: int) -> None:
    driver = Driver(t=1)
    driver.join("a", "t")
    behind = replace(driver.group, epoch=2, target={}, topics_revision=revision)
    after = behind.refreshed(driver.cluster, SETTINGS, is_changed=False)
    assert (after.epoch, after.target_epoch) == (2, 2)
    assert after.target == {"a": driver.cluster.partitions("t")}


def test_static_members_are_assigned_by_instance_id() -> None:
    driver = Driver(t=2)
    driver.join("a", "t", server_assignor="range")
    driver.join("z", "t", server_assignor="range", instance_id="i")
    assert driver.group.target == {"z": {(TOPIC, 0)}, "a": {(TOPIC, 1)}}


def test_the_first_of_two_assignors_with_equal_votes_is_used() -> None:
    votes = [replace(MEMBER, member_id=str(place), server_assignor=name) for place, name in enumerate("ab")]
    assert group_of(*votes).assignor(ConsumerSettings(assignors=("b", "a"))) == "b"
    assert group_of(*votes, MEMBER).assignor(ConsumerSettings(assignors=("a", "b"))) == "a"


def test_a_partition_is_free_for_the_only_member_that_has_it() -> None:
    owner = replace(MEMBER, assigned=frozenset({(TOPIC, 0)}), revoking=frozenset({(TOPIC, 1)}))
    assert owner.owned == {(TOPIC, 0), (TOPIC, 1)}
    group = group_of(owner, replace(MEMBER, member_id="b"))
    assert [group.is_free((TOPIC, number), "b") for number in range(3)] == [False, False, True]
    assert all(group.is_free((TOPIC, number), "a") for number in range(3))


@pytest.mark.parametrize("number", [0, 1])
def test_no_member_gets_a_partition_that_another_one_has_or_revokes(number: int) -> None:
    owner = replace(MEMBER, assigned=frozenset({(TOPIC, 0)}), revoking=frozenset({(TOPIC, 1)}))
    wanted = frozenset({(TOPIC, number)})
    for fields in ({"assigned": wanted}, {"revoking": wanted}):
        with pytest.raises(AssertionError, match="b gets owned partitions"):
            group_of(owner).with_member(replace(MEMBER, member_id="b", **fields))
