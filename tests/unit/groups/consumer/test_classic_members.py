"""Classic members of consumer groups, and migration between the protocols."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millrace.coordinator_records import (
    AssignedPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    OwnedPartitions,
    read_assignment,
    read_subscription,
    write_versioned,
)
from millrace.errors import (
    FencedInstanceIdError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    UnknownMemberError,
)
from millrace_broker.groups.consumer import classic_members
from millrace_broker.groups.consumer.consumer_group import ConsumerGroup, ConsumerSettings
from millrace_broker.groups.consumer.members import ClassicMetadata, ConsumerMember, MemberState, Partitions
from millrace_broker.groups.effects import StoredMember
from millrace_broker.groups.members import MemberMetadata
from millrace_broker.groups.requests import Identity, JoinAnswer, JoinRequest, Protocols, SyncRequest

from .cluster import Cluster

CLUSTER = Cluster(t=2, u=1)
SETTINGS = ConsumerSettings()
EMPTY = ConsumerGroup(group_id="g")


def subscription(*topics: str, version: int = 3, **fields: Any) -> bytes:
    return write_versioned(ConsumerProtocolSubscription(topics=topics, user_data=None, **fields), version)


RANGE: Protocols = (("range", subscription("t")),)


def request(member_id: str = "", **fields: Any) -> JoinRequest:
    values: dict[str, Any] = {
        "new_member_id": "new",
        "group_instance_id": None,
        "client_id": "client",
        "client_host": "host",
        "session_timeout_ms": 10,
        "rebalance_timeout_ms": 20,
        "protocol_type": "consumer",
        "protocols": RANGE,
    }
    return JoinRequest(member_id=member_id, **values | fields)


def join(group: ConsumerGroup, member_id: str = "", **fields: Any) -> tuple[ConsumerGroup, JoinAnswer]:
    return classic_members.join(group, request(member_id, **fields), CLUSTER, SETTINGS)


def partitions(*numbers: int, topic: str = "t") -> Partitions:
    found = CLUSTER.find(topic)
    assert found is not None
    return frozenset((found.topic_id, number) for number in numbers)


# --- JoinGroup -----------------------------------------------------------------------------------------------


def test_a_join_has_the_name_and_the_subscription_of_the_preferred_assignor() -> None:
    protocols = (("range", subscription("t", rack_id="r")), ("sticky", subscription("u", rack_id="other")))
    group, answer = join(EMPTY, protocols=protocols)
    assert answer == JoinAnswer(
        generation_id=1, protocol_type="consumer", protocol_name="range", leader="", member_id="new"
    )
    assert group.members["new"] == ConsumerMember(
        member_id="new",
        rack_id="r",
        client_id="client",
        client_host="host",
        topics=frozenset({"t"}),
        rebalance_timeout_ms=20,
        classic=ClassicMetadata(session_timeout_ms=10, protocols=protocols),
        epoch=1,
        previous_epoch=0,
        assigned=partitions(0, 1),
    )
    assert join(group, "new")[0].members["new"].rack_id == "r", "a subscription without a rack changes none"


def test_only_another_subscription_raises_the_generation_of_a_member_that_joins_again() -> None:
    group, _ = join(EMPTY)
    again, answer = join(group, "new")
    assert (again, answer.generation_id) == (group, 1)
    changed, answer = join(group, "new", protocols=(("range", subscription("t", "u")),))
    assert answer.generation_id == 2
    assert changed.members["new"].assigned == partitions(0, 1) | partitions(0, topic="u")


def test_a_member_that_no_longer_has_a_regular_expression_gets_a_new_assignment() -> None:
    group, _ = join(EMPTY)
    with_regex = replace(group.members["new"], regex="u")
    group = replace(group, members={"new": with_regex}, regexes={"u": frozenset({"u"})})
    group, answer = join(group, "new")
    assert answer.generation_id == 2
    assert group.members["new"].regex == ""


def test_a_first_member_without_topics_is_in_the_target_assignment() -> None:
    group, answer = join(EMPTY, protocols=(("range", subscription()),))
    assert (answer.generation_id, group.target) == (1, {"new": frozenset()})


def test_a_join_reports_the_partitions_that_the_member_has_given_up() -> None:
    group, _ = join(EMPTY, new_member_id="a")
    group, _ = join(group, new_member_id="b")
    (kept,) = group.target["a"]
    owns_all = subscription("t", owned_partitions=(OwnedPartitions(topic="t", partitions=(0, 1)),))
    owns_kept = subscription(
        "t",
        owned_partitions=(
            OwnedPartitions(topic="t", partitions=(kept[1],)),
            OwnedPartitions(topic="gone", partitions=(0,)),
        ),
    )
    group, answer = join(group, "a", protocols=(("range", owns_all),))
    assert (answer.generation_id, group.members["a"].state) == (1, MemberState.UNREVOKED_PARTITIONS)
    group, answer = join(group, "a", protocols=(("range", owns_kept),))
    assert (answer.generation_id, group.members["a"].state) == (2, MemberState.STABLE)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"protocol_type": "connect"}, "protocol type connect"),
        ({"protocol_type": "", "protocols": ()}, "protocol type none and assignors none"),
        ({"protocols": (("sticky", subscription("t")),)}, "assignors sticky"),
        ({"protocols": (("range", b"\0"),)}, "cannot be read"),
    ],
    ids=["another type", "nothing", "no common assignor", "unreadable"],
)
def test_a_request_of_another_protocol_is_refused(fields: dict[str, Any], problem: str) -> None:
    group, _ = join(EMPTY, new_member_id="a")
    with pytest.raises(InconsistentGroupProtocolError, match=problem):
        join(group, **fields)


def test_a_member_changes_its_assignor_alone() -> None:
    group, _ = join(EMPTY)
    consumer = ConsumerMember(member_id="c", topics=frozenset({"t"}))
    group = replace(group, members={**group.members, "c": consumer})
    assert join(group, "new", protocols=(("sticky", subscription("t")),))[1].protocol_name == "sticky"


def test_a_full_group_refuses_new_classic_members_only() -> None:
    group, _ = join(EMPTY)
    settings = ConsumerSettings(max_size=1)
    classic_members.join(group, request("new"), CLUSTER, settings)
    with pytest.raises(GroupMaxSizeReachedError):
        classic_members.join(group, request(new_member_id="other"), CLUSTER, settings)
    with pytest.raises(GroupMaxSizeReachedError):
        classic_members.join(group, request("other"), CLUSTER, settings)


# --- static members ------------------------------------------------------------------------------------------


def static_group() -> ConsumerGroup:
    return join(EMPTY, new_member_id="s", group_instance_id="i")[0]


@pytest.mark.parametrize(
    ("member_id", "instance_id", "members"),
    [
        ("", "i", {"new": "i"}),
        ("s", "i", {"s": "i"}),
        ("", "j", {"s": "i", "new": "j"}),
        ("", None, {"s": "i", "new": None}),
        ("dynamic", None, {"s": "i", "dynamic": None}),
    ],
)
def test_a_process_joins_under_its_instance_id(
    member_id: str, instance_id: str | None, members: dict[str, str | None]
) -> None:
    group, answer = join(static_group(), member_id, group_instance_id=instance_id)
    assert {each.member_id: each.instance_id for each in group.members.values()} == members
    assert set(group.target) == set(members)
    assert answer.member_id == (member_id or "new")
    assert answer.generation_id == len(members), "a replaced member does not rebalance the group"
    if len(members) == 1:
        assert group.members[answer.member_id].assigned == partitions(0, 1)


@pytest.mark.parametrize(
    ("member_id", "instance_id", "error"),
    [("other", "i", FencedInstanceIdError), ("other", "j", UnknownMemberError), ("s", "j", UnknownMemberError)],
)
def test_a_member_id_with_another_instance_id_is_refused(
    member_id: str, instance_id: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match=f"group.instance.id={instance_id}"):
        join(static_group(), member_id, group_instance_id=instance_id)


def test_a_static_member_that_has_left_for_a_short_time_begins_again() -> None:
    group = static_group()
    left = replace(group.members["s"], epoch=-2, state=MemberState.UNREVOKED_PARTITIONS, assigned=partitions(0))
    group, answer = join(replace(group, members={"s": left}), group_instance_id="i")
    after = group.members["new"]
    assert (after.state, after.epoch, after.previous_epoch) == (MemberState.STABLE, 1, 0)
    assert after.assigned == partitions(0, 1), "it goes on to the target assignment"
    assert answer.generation_id == 1


# --- SyncGroup, Heartbeat ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("identity", "error"),
    [
        (Identity(member_id="x", generation_id=1), UnknownMemberError),
        (Identity(member_id="x", group_instance_id="i", generation_id=1), FencedInstanceIdError),
        (Identity(member_id="x", group_instance_id="j", generation_id=1), UnknownMemberError),
        (Identity(member_id="c", generation_id=0), UnknownMemberError),
        (Identity(member_id="s", generation_id=0), IllegalGenerationError),
        (Identity(member_id="s", generation_id=2), IllegalGenerationError),
    ],
)
def test_requests_of_others_than_classic_members_of_the_generation_are_refused(
    identity: Identity, error: type[Exception]
) -> None:
    group = static_group()
    group = group.with_member(ConsumerMember(member_id="c"))
    with pytest.raises(error):
        classic_members.check_member(group, identity)
    present = Identity(member_id="s", group_instance_id="i", generation_id=1)
    assert classic_members.check_member(group, present) is group.members["s"]


@pytest.mark.parametrize(
    ("fields", "is_valid"),
    [
        ({}, True),
        ({"protocol_type": "consumer", "protocol_name": "range"}, True),
        ({"protocol_type": "connect", "protocol_name": "range"}, False),
        ({"protocol_type": "consumer", "protocol_name": "sticky"}, False),
        ({"protocol_name": "sticky"}, False),
    ],
)
def test_the_protocol_of_a_sync_is_the_members_own(fields: dict[str, str], is_valid: bool) -> None:
    group, _ = join(EMPTY, protocols=(("range", subscription("t", version=1)), ("sticky", subscription("t"))))
    sync = SyncRequest(identity=Identity(member_id="new", generation_id=1), **fields)  # type: ignore[arg-type]
    if not is_valid:
        with pytest.raises(InconsistentGroupProtocolError, match="join again"):
            classic_members.sync(group, sync, CLUSTER)
        return
    answer = classic_members.sync(group, sync, CLUSTER)
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    version, assignment = read_assignment(answer.assignment)
    assert version == 1, "the version of the subscription"
    assert assignment.assigned_partitions == (AssignedPartitions(topic="t", partitions=(0, 1)),)


@pytest.mark.parametrize(
    ("epoch", "state", "is_synced"),
    [
        (2, MemberState.STABLE, True),
        (1, MemberState.STABLE, False),
        (1, MemberState.UNRELEASED_PARTITIONS, False),
        (1, MemberState.UNREVOKED_PARTITIONS, True),
    ],
)
def test_a_member_behind_its_group_joins_again_unless_it_has_to_revoke(
    epoch: int, state: MemberState, is_synced: bool
) -> None:
    group, _ = join(EMPTY)
    member = replace(group.members["new"], epoch=epoch, state=state)
    group = replace(group, epoch=2, members={"new": member})
    sync = SyncRequest(identity=Identity(member_id="new", generation_id=epoch))
    if is_synced:
        assert classic_members.sync(group, sync, CLUSTER).assignment
    else:
        with pytest.raises(RebalanceInProgressError):
            classic_members.sync(group, sync, CLUSTER)


@pytest.mark.parametrize(
    ("state", "epoch", "taken", "expected"),
    [
        (MemberState.STABLE, 2, (), False),
        (MemberState.STABLE, 1, (), True),
        (MemberState.UNREVOKED_PARTITIONS, 2, (0, 1), True),
        (MemberState.UNRELEASED_PARTITIONS, 2, (1,), False),
        (MemberState.UNRELEASED_PARTITIONS, 2, (), True),
    ],
)
def test_a_member_joins_again_when_it_can_continue(
    state: MemberState, epoch: int, taken: tuple[int, ...], expected: bool
) -> None:
    member = ConsumerMember(member_id="a", state=state, epoch=epoch, assigned=partitions(0) - partitions(*taken))
    other = ConsumerMember(member_id="b", epoch=2, assigned=partitions(*taken))
    group = ConsumerGroup(
        group_id="g", epoch=2, target_epoch=2, members={"a": member, "b": other}, target={"a": partitions(0, 1)}
    )
    assert classic_members.needs_to_rejoin(group, member) is expected
    absent = replace(group, target={})
    assert classic_members.needs_to_rejoin(absent, replace(member, state=MemberState.UNRELEASED_PARTITIONS)) is (
        epoch < 2
    )


# --- migration -----------------------------------------------------------------------------------------------


def classic(member_id: str, *numbers: int, **fields: Any) -> MemberMetadata:
    assigned = ConsumerProtocolAssignment(
        assigned_partitions=(AssignedPartitions(topic="t", partitions=numbers),), user_data=fields.pop("data", None)
    )
    values: dict[str, Any] = {
        "group_instance_id": None,
        "client_id": "client",
        "client_host": "host",
        "session_timeout_ms": 10,
        "rebalance_timeout_ms": 20,
        "protocols": (("range", subscription("t", rack_id="r")), ("sticky", b"")),
        "assignment": write_versioned(assigned, 3),
    }
    return MemberMetadata(member_id=member_id, **values | fields)


def test_an_upgraded_group_has_the_assignments_as_its_target() -> None:
    first, second = classic("a", 0, group_instance_id="i"), classic("b", 0, 1)
    group = classic_members.upgraded("g", 5, [first, second, classic("c", assignment=b"")], CLUSTER)
    assert group.members["a"] == ConsumerMember(
        member_id="a",
        instance_id="i",
        rack_id="r",
        client_id="client",
        client_host="host",
        topics=frozenset({"t"}),
        rebalance_timeout_ms=20,
        classic=ClassicMetadata(session_timeout_ms=10, protocols=first.protocols),
        epoch=5,
        previous_epoch=5,
        assigned=partitions(0),
    )
    assert (group.epoch, group.target_epoch) == (5, 5)
    assert group.target == {"a": partitions(0), "b": partitions(1), "c": frozenset()}, "each partition has one member"
    assert {each.member_id: each.assigned for each in group.members.values()} == group.target


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"protocols": (("range", b"\0"),)}, "member a does not use the consumer protocol"),
        ({"assignment": b"\0"}, "member a does not use the consumer protocol"),
        ({"data": b"state"}, "has data of its assignor"),
    ],
)
def test_a_group_of_other_members_is_not_upgraded(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(GroupIdNotFoundError, match=problem):
        classic_members.upgraded("g", 5, [classic("a", 0, **fields)], CLUSTER)


def test_a_downgraded_group_has_the_members_and_a_common_assignor() -> None:
    old, new = subscription("t", version=1), subscription("t")
    protocols: dict[str, Protocols] = {"a": (("sticky", old), ("range", new)), "b": (("range", new), ("sticky", old))}
    group, _ = join(EMPTY, new_member_id="a", protocols=protocols["a"], group_instance_id="i")
    group, _ = join(group, new_member_id="b", protocols=protocols["b"])
    deleted = Cluster(t=2, u=1, gone=1).partitions("gone")
    first = replace(group.members["a"], assigned=partitions(0, 1) | deleted)
    group = replace(group, members={**group.members, "a": first})
    stored, assignors = classic_members.downgraded(group, 2, CLUSTER)
    assert assignors == protocols
    assert (stored.protocol_type, stored.generation_id, stored.leader) == ("consumer", 2, "a")
    assert stored.protocol_name == "range"
    assert stored.members[0] == StoredMember(
        member_id="a",
        group_instance_id="i",
        client_id="client",
        client_host="host",
        session_timeout_ms=10,
        rebalance_timeout_ms=20,
        subscription=old,
        assignment=classic_members.assignment_bytes(partitions(0, 1), CLUSTER, 1),
    )
    assert read_assignment(stored.members[1].assignment)[0] == 3


def test_subscriptions_and_assignments_have_the_newest_version() -> None:
    version, content = read_subscription(classic_members.subscription_bytes(frozenset({"u", "t"})))
    assert (version, content.topics) == (3, ("t", "u"))
    assert read_assignment(classic_members.assignment_bytes(partitions(1), CLUSTER))[0] == 3


def test_a_group_is_classic_while_all_of_its_members_are() -> None:
    group, _ = join(EMPTY)
    assert classic_members.is_classic(group)
    assert not classic_members.is_classic(EMPTY)
    assert not classic_members.is_classic(group.with_member(ConsumerMember(member_id="c")))
