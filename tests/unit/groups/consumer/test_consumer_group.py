"""Tests of the state machine of consumer groups (KIP-848), without a broker."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.coordinator_records import read_offsets_key
from millrace.coordinator_records.offsets_topic import CONSUMER_GROUP_KEYS
from millrace.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    StaleMemberEpochError,
    UnknownMemberError,
    UnreleasedInstanceIdError,
    UnsupportedAssignorError,
    UnsupportedVersionError,
)
from millrace_broker.groups.consumer.classic_members import (
    assignment_bytes,
    check_member,
    subscription_bytes,
    upgraded,
)
from millrace_broker.groups.consumer.consumer_group import (
    ConsumerGroup,
    ConsumerGroupState,
    ConsumerSettings,
    Heartbeat,
    HeartbeatAnswer,
    check_request,
)
from millrace_broker.groups.consumer.members import NO_PARTITIONS, ClassicMetadata, ConsumerMember, MemberState
from millrace_broker.groups.consumer.records import LoadedConsumerGroup, change_records
from millrace_broker.groups.consumer.topics import matches
from millrace_broker.groups.members import MemberMetadata
from millrace_broker.groups.requests import Identity

from .cluster import Cluster

SETTINGS = ConsumerSettings()


class Driver:
    """A group with its cluster; each change is checked against its records."""

    def __init__(self, settings: ConsumerSettings = SETTINGS, **counts: int) -> None:
        self.cluster = Cluster(**counts)
        self.settings = settings
        self.group = ConsumerGroup(group_id="g")
        self._loaded = LoadedConsumerGroup("g")
        self._is_stored = False

    def beat(self, member_id: str, member_epoch: int, **fields: Any) -> HeartbeatAnswer:
        beat = Heartbeat(member_id=member_id, member_epoch=member_epoch, **fields)
        after, answer = self.group.heartbeat(beat, self.cluster, self.settings)
        self.apply(after)
        return answer

    def join(self, member_id: str, *topics: str, **fields: Any) -> HeartbeatAnswer:
        values = {"topics": frozenset(topics), "rebalance_timeout_ms": 1000, "owned": NO_PARTITIONS, **fields}
        return self.beat(member_id, 0, **values)

    def apply(self, after: ConsumerGroup) -> None:
        for record in change_records(self.group if self._is_stored else None, after, 1):
            key = read_offsets_key(record.key)
            assert isinstance(key, CONSUMER_GROUP_KEYS)
            self._loaded.take(key, record.value)
        self.group, self._is_stored = after, True
        assert self._loaded.group() == after


def test_a_first_member_gets_all_partitions_at_once() -> None:
    driver = Driver(t=3)
    assert driver.join("a", "t") == ("a", 1, driver.cluster.partitions("t"))
    assert driver.group.state is ConsumerGroupState.STABLE
    assert driver.beat("a", 1).assignment is None


def test_a_partition_moves_after_its_revocation() -> None:
    driver = Driver(t=2)
    everything = driver.join("a", "t").assignment
    assert everything is not None
    assert driver.join("b", "t") == ("b", 2, NO_PARTITIONS)
    assert driver.group.members["b"].state is MemberState.UNRELEASED_PARTITIONS
    revoked = driver.beat("a", 1, owned=everything)
    assert revoked.member_epoch == 1
    assert revoked.assignment is not None
    assert len(revoked.assignment) == 1
    assert driver.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    assert driver.beat("b", 2).assignment is None
    assert driver.beat("a", 1, owned=revoked.assignment).member_epoch == 2
    assert driver.beat("b", 2).assignment == everything - revoked.assignment
    assert driver.group.state is ConsumerGroupState.STABLE


def test_a_member_that_still_owns_revoked_partitions_keeps_its_epoch() -> None:
    driver = Driver(t=2)
    everything = driver.join("a", "t").assignment
    driver.join("b", "t")
    for owned in (everything, everything, None):
        assert driver.beat("a", 1, owned=owned).member_epoch == 1


def test_partitions_of_a_removed_member_go_to_the_others() -> None:
    driver = Driver(t=2)
    driver.join("a", "t")
    driver.join("b", "t")
    driver.beat("a", -1)
    assert set(driver.group.members) == {"b"}
    assert driver.beat("b", 2).assignment == driver.cluster.partitions("t")


def test_an_answer_that_was_lost_is_repeated_for_the_previous_epoch() -> None:
    driver = Driver(t=2)
    everything = driver.join("a", "t").assignment
    driver.cluster.create("t", 3)
    assert driver.beat("a", 1, owned=everything).member_epoch == 2
    again = driver.beat("a", 1, owned=everything, topics=frozenset(["t"]), rebalance_timeout_ms=1000)
    assert again == ("a", 2, driver.cluster.partitions("t"))


@pytest.mark.parametrize("epoch", [2, 7])
def test_a_heartbeat_with_another_epoch_is_fenced(epoch: int) -> None:
    driver = Driver(t=2)
    for count in (3, 4, 5):
        driver.join("a", "t")
        driver.cluster.create("t", count)
        driver.beat("a", driver.group.members["a"].epoch, owned=None)
    with pytest.raises(FencedMemberEpochError):
        driver.beat("a", epoch, owned=NO_PARTITIONS)


def test_a_fenced_member_joins_again_with_its_member_id() -> None:
    driver = Driver(t=2)
    everything = driver.join("a", "t").assignment
    assert driver.join("a", "t") == ("a", 1, everything)


def test_new_partitions_and_new_and_deleted_topics_reach_the_members() -> None:
    driver = Driver(t=1, u=1)
    driver.join("a", "t", "u", "later")
    driver.cluster.create("t", 2)
    assert driver.beat("a", 1).assignment == driver.cluster.partitions("t") | driver.cluster.partitions("u")
    driver.cluster.create("later", 1)
    assert driver.beat("a", 2).assignment is not None
    driver.cluster.delete("u")
    answer = driver.beat("a", 3)
    assert answer.assignment == driver.cluster.partitions("t") | driver.cluster.partitions("later")
    assert driver.beat("a", 3, owned=answer.assignment).member_epoch == 4


def test_topics_of_others_do_not_change_the_epoch() -> None:
    driver = Driver(t=1)
    driver.join("a", "t")
    driver.cluster.create("other", 3)
    assert driver.beat("a", 1).member_epoch == 1


def test_a_regular_expression_subscribes_to_topics_that_come_later() -> None:
    driver = Driver(orders_eu=1, users=1)
    driver.join("a", regex="orders.*")
    assert driver.group.subscribed_topics() == {"orders_eu"}
    driver.cluster.create("orders_us", 1)
    expected = driver.cluster.partitions("orders_eu") | driver.cluster.partitions("orders_us")
    assert driver.beat("a", 1).assignment == expected
    driver.beat("a", 2, regex="", topics=frozenset(["users"]))
    assert driver.group.subscribed_topics() == {"users"}
    assert driver.group.regexes == {}


def test_a_regular_expression_has_the_topics_that_the_client_may_describe() -> None:
    def visible(names: frozenset[str]) -> frozenset[str]:
        return names - {"orders_secret"}

    driver = Driver(orders_eu=1, orders_secret=1)
    answer = driver.join("a", regex="orders.*", visible=visible)
    assert answer.assignment == driver.cluster.partitions("orders_eu")
    driver.beat("a", 1, visible=visible)
    driver.join("b", "orders_eu")
    assert driver.group.regexes == {"orders.*": {"orders_eu"}}, "another member's rights do not count"
    driver.cluster.create("orders_us", 1)
    driver.apply(driver.group.without("b", driver.cluster, driver.settings))
    assert driver.group.regexes == {"orders.*": {"orders_eu"}}, "nobody's rights are known"
    driver.beat("a", 1, visible=visible)
    assert driver.group.regexes == {"orders.*": {"orders_eu", "orders_us"}}


@pytest.mark.parametrize("expression", ["(", "a)|(b", "(?=a)", r"(a)\1", "*"])
def test_an_invalid_regular_expression_is_refused(expression: str) -> None:
    with pytest.raises(InvalidRegularExpressionError, match="is not a valid regular expression of RE2"):
        Driver(t=1).join("a", regex=expression)


def test_an_expression_must_match_the_whole_name() -> None:
    assert matches("a|bc", ["a", "ab", "bc", "abc", "bcd"]) == {"a", "bc"}


def test_the_preferred_assignor_of_most_members_is_used() -> None:
    driver = Driver(t=2)
    assert driver.group.assignor(SETTINGS) == "uniform"
    for member_id, name in (("a", "range"), ("b", "range"), ("c", "uniform")):
        driver.join(member_id, "t", server_assignor=name)
    assert driver.group.assignor(SETTINGS) == "range"
    with pytest.raises(UnsupportedAssignorError, match="sticky"):
        driver.join("d", "t", server_assignor="sticky")


def test_a_full_group_refuses_new_members_only() -> None:
    driver = Driver(ConsumerSettings(max_size=1), t=1)
    driver.join("a", "t")
    driver.join("a", "t")
    with pytest.raises(GroupMaxSizeReachedError):
        driver.join("b", "t")


def test_a_static_member_keeps_its_partitions_while_it_restarts() -> None:
    driver = Driver(t=2)
    everything = driver.join("a", "t", instance_id="i").assignment
    with pytest.raises(UnreleasedInstanceIdError):
        driver.join("b", "t", instance_id="i")
    driver.beat("a", -2, instance_id="i")
    assert driver.join("b", "t", instance_id="i") == ("b", 1, everything)
    assert set(driver.group.members) == {"b"}
    with pytest.raises(FencedInstanceIdError):
        driver.beat("a", 1, instance_id="i")
    with pytest.raises(UnknownMemberError):
        driver.beat("c", 1, instance_id="other")


def test_static_members_change_from_the_classic_protocol_one_after_another() -> None:
    driver = Driver(t=2)
    everything = driver.cluster.partitions("t")
    topic, content = driver.cluster.find("t"), subscription_bytes(frozenset({"t"}))
    assert topic is not None
    members = [
        MemberMetadata(
            member_id=f"old{number}",
            group_instance_id=f"i{number}",
            client_id="c",
            client_host="h",
            session_timeout_ms=1000,
            rebalance_timeout_ms=1000,
            protocols=(("range", content),),
            assignment=assignment_bytes(frozenset({(topic.topic_id, number)}), driver.cluster),
        )
        for number in range(2)
    ]
    driver.apply(upgraded("g", 5, members, driver.cluster))
    assigned = [driver.join(f"new{number}", "t", instance_id=f"i{number}").assignment for number in range(2)]
    assert assigned == [{(topic.topic_id, 0)}, {(topic.topic_id, 1)}]
    assert frozenset().union(*(each.assigned for each in driver.group.members.values())) == everything
    assert all(each.classic is None for each in driver.group.members.values())
    with pytest.raises(FencedInstanceIdError):
        check_member(driver.group, Identity(member_id="old0", generation_id=5, group_instance_id="i0"))
    with pytest.raises(UnreleasedInstanceIdError):
        driver.join("newer", "t", instance_id="i0")


def test_commits_need_the_present_epoch() -> None:
    driver = Driver(t=1)

    def check(member_id: str, epoch: int, **fields: Any) -> None:
        identity = Identity(member_id=member_id, generation_id=epoch)
        driver.group.check_commit(identity, is_transactional=fields.get("is_transactional", False))

    check("", -1)
    driver.join("a", "t")
    check("a", 1)
    check("", -1, is_transactional=True)
    driver.group.check_fetch(None, -1)
    driver.group.check_fetch("a", 1)
    with pytest.raises(UnknownMemberError):
        check("", -1)
    with pytest.raises(StaleMemberEpochError):
        check("a", 0)
    with pytest.raises(StaleMemberEpochError):
        driver.group.check_fetch("a", 0)
    classic = ConsumerMember(member_id="c", classic=ClassicMetadata(session_timeout_ms=1, protocols=()))
    driver.group = driver.group.with_member(classic)
    with pytest.raises(IllegalGenerationError):
        check("c", 9)


@pytest.mark.parametrize(
    "fields",
    [
        {"member_id": ""},
        {"member_epoch": -2},
        {"member_epoch": -3},
        {"instance_id": ""},
        {"rack_id": ""},
        {"rebalance_timeout_ms": -1},
        {"owned": None},
        {"topics": None},
    ],
)
def test_an_invalid_heartbeat_is_refused(fields: dict[str, Any]) -> None:
    valid: dict[str, Any] = {
        "member_id": "a",
        "member_epoch": 0,
        "topics": frozenset(["t"]),
        "rebalance_timeout_ms": 1,
        "owned": NO_PARTITIONS,
    }
    check_request(Heartbeat(**valid))
    with pytest.raises(InvalidRequestError):
        check_request(Heartbeat(**{**valid, **fields}))


def test_a_member_without_names_and_with_an_empty_expression_joins_without_a_topic() -> None:
    driver = Driver(t=1)
    beat = Heartbeat(member_id="a", member_epoch=0, topics=None, regex="", rebalance_timeout_ms=1, owned=NO_PARTITIONS)
    check_request(beat)
    answer = driver.join("a", topics=None, regex="")
    assert (answer.member_epoch, answer.assignment) == (1, NO_PARTITIONS)
    assert driver.group.subscribed_topics() == frozenset()
    assert driver.group.regexes == {}


@pytest.mark.parametrize("version", [0, 9, 10])
def test_a_member_with_an_epoch_commits_with_the_version_of_members(version: int) -> None:
    driver = Driver(t=1)
    epoch = driver.join("a", "t").member_epoch
    identity = Identity(member_id="a", generation_id=epoch, kafka_version=version)
    driver.group.check_commit(identity, is_transactional=False)


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_a_member_with_an_epoch_does_not_commit_with_a_version_of_generations(epoch: int) -> None:
    driver = Driver(t=1)
    driver.join("a", "t")
    identity = Identity(member_id="a", generation_id=epoch, kafka_version=8)
    with pytest.raises(UnsupportedVersionError):
        driver.group.check_commit(identity, is_transactional=False)


class Client:
    """A member that follows the protocol of consumer groups.

    The member revokes the partitions that its answers lack, and later reports this.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.owned = NO_PARTITIONS
        self.topics = frozenset[str]()


class Members(RuleBasedStateMachine):
    """Clients, a changing cluster, and lost answers.

    A partition never has two owners, and all members reach the target assignment in the end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(t=3, u=2)
        self.clients: dict[str, Client] = {}

    @rule(name=st.sampled_from("abcd"), topics=st.sets(st.sampled_from(["t", "u", "v"]), min_size=1))
    def subscribe(self, name: str, topics: set[str]) -> None:
        client = self.clients.setdefault(name, Client())
        client.topics = frozenset(topics)
        self._beat(name, is_full=True)

    @rule(name=st.sampled_from("abcd"), is_lost=st.booleans())
    def beat(self, name: str, is_lost: bool) -> None:
        if name in self.clients:
            self._beat(name, is_full=False, is_lost=is_lost)

    @rule(name=st.sampled_from("abcd"))
    def leave(self, name: str) -> None:
        if self.clients.pop(name, None) is not None:
            self.driver.beat(name, -1)

    @rule(name=st.sampled_from("tuv"), count=st.integers(1, 5))
    def create(self, name: str, count: int) -> None:
        topic = self.driver.cluster.find(name)
        self.driver.cluster.create(name, count if topic is None else max(count, topic.partition_count))

    @rule(name=st.sampled_from("tuv"))
    def delete(self, name: str) -> None:
        if self.driver.cluster.find(name) is not None:
            self.driver.cluster.delete(name)

    def _beat(self, name: str, *, is_full: bool, is_lost: bool = False) -> None:
        client = self.clients[name]
        fields: dict[str, Any] = {"owned": client.owned}
        if is_full or not client.epoch:
            fields |= {"topics": client.topics, "rebalance_timeout_ms": 1}
        answer = self.driver.beat(name, client.epoch, **fields)
        if is_lost and client.epoch:
            # A client repeats all fields until it has an answer.
            try:
                answer = self.driver.beat(
                    name, client.epoch, owned=client.owned, topics=client.topics, rebalance_timeout_ms=1
                )
            except FencedMemberEpochError:
                # The lost answer had a new epoch, and lacked partitions that the client has: Kafka fences it as well.
                assert not client.owned <= self.driver.group.members[name].assigned
                client.owned = NO_PARTITIONS
                answer = self.driver.join(name, *client.topics)
        client.epoch = answer.member_epoch
        if answer.assignment is not None:
            client.owned = answer.assignment

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owned = [partition for client in self.clients.values() for partition in client.owned]
        assert len(owned) == len(set(owned))

    @precondition(lambda self: self.clients)
    @rule()
    def settle(self) -> None:
        for _ in range(4):
            for name in self.clients:
                self._beat(name, is_full=False)
        group = self.driver.group
        assert group.state is ConsumerGroupState.STABLE
        assert {name: client.owned for name, client in self.clients.items()} == group.target


TestMembers = Members.TestCase
TestMembers.settings = hypothesis_settings(max_examples=60, stateful_step_count=30, deadline=None)
