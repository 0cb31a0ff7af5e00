"""One consumer group of KIP-848, as frozen data. Each event gives the group after it.

Invariants, asserted where a member changes (``ConsumerGroup.with_member``) and where the target changes:

- A partition belongs to at most one member, among those that members own, were offered, or have yet to revoke.
- Epochs do not decrease: the group's, the target assignment's and, but for a new join, a member's.
- The epoch of a member is at most the group epoch. The target assignment has the group epoch after each event.
- Each partition of a subscribed topic is in the target assignment of one member, which subscribes to the topic.

Times and timers are the caller's. Source: KIP-848, and Kafka 4.3's ``GroupMetadataManager`` and ``ConsumerGroup``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from millrace.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InvalidRequestError,
    StaleMemberEpochError,
    UnknownMemberError,
    UnreleasedInstanceIdError,
    UnsupportedAssignorError,
    UnsupportedVersionError,
)
from millrace_broker.groups.consumer.assignors import ASSIGNORS, AssignorInput
from millrace_broker.groups.consumer.members import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_PARTITIONS,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    MemberState,
    Partition,
    Partitions,
)
from millrace_broker.groups.consumer.reconciliation import reconcile
from millrace_broker.groups.consumer.topics import ClusterTopics, SubscribedTopic, metadata_hash
from millrace_broker.groups.requests import CONSUMER, WITH_MEMBER_EPOCHS, Identity


class ConsumerGroupState(Enum):
    """State of a consumer group, with Kafka's name."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The target assignment is older than the group epoch."""
    RECONCILING = "Reconciling"
    """Some member does not have its target assignment yet."""
    STABLE = "Stable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Broker options for consumer groups; fields have the names of the options."""

    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = tuple(ASSIGNORS)
    may_upgrade: bool = True
    may_downgrade: bool = True


Visible = Callable[[frozenset[str]], frozenset[str]]
"""Returns those of some topics that a client may describe."""


def every_topic(names: frozenset[str]) -> frozenset[str]:
    """Return all of the topics, because there is no authorizer."""
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """ConsumerGroupHeartbeat request of a member.

    A field that is None has not changed since the last request. ``visible`` returns those of some topics that the
    client may describe. Regular expressions are resolved to these topics only, as in Kafka.
    """

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] | None = None
    regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None
    visible: Visible = field(default=every_topic, compare=False)

    @property
    def is_full(self) -> bool:
        """True if the request repeats all fields, so that its answer must have the assignment."""
        has_subscription = self.topics is not None or self.regex is not None
        return self.member_epoch == JOIN_EPOCH or (
            self.rebalance_timeout_ms != -1 and has_subscription and self.owned is not None
        )


class HeartbeatAnswer(NamedTuple):
    """Answer to a heartbeat of a member.

    ``assignment`` is None if the member has it already.
    """

    member_id: str
    member_epoch: int
    assignment: Partitions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroup:
    """Consumer group (Kafka's class). ``regexes`` has the topics of each regular expression.

    ``topics_revision`` is the revision of the cluster's topics to which the target assignment belongs. It is not
    stored.
    """

    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    members: Mapping[str, ConsumerMember] = field(default_factory=dict)
    target_epoch: int = 0
    target: Mapping[str, Partitions] = field(default_factory=dict)
    regexes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    topics_revision: int = field(default=-1, compare=False)

    # --- views ---------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        """The present state."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        for member in self.members.values():
            if member.state is not MemberState.STABLE or member.epoch != self.target_epoch:
                return ConsumerGroupState.RECONCILING
        return ConsumerGroupState.STABLE

    @property
    def is_empty(self) -> bool:
        """True if the group has no members."""
        return not self.members

    @property
    def protocol_type(self) -> str:
        """The protocol type of consumers."""
        return CONSUMER

    def subscribed_topics(self) -> frozenset[str]:
        """Return the topics of all members."""
        return frozenset[str]().union(*map(self.topics_of, self.members.values()))

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Return the topics of a member, with those of its regular expression."""
        return member.topics | self.regexes.get(member.regex, frozenset())

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """Return the member with this instance id."""
        return next((each for each in self.members.values() if each.instance_id == instance_id), None)

    def member(self, member_id: str) -> ConsumerMember:
        """Return the member. Raises ``UnknownMemberError``."""
        found = self.members.get(member_id)
        if found is None:
            raise UnknownMemberError(
                f"group {self.group_id} has no member {member_id or '(no member id)'}: join again with epoch 0"
            )
        return found

    def is_free(self, partition: Partition, member_id: str) -> bool:
        """Return whether no member but this one owns a partition, or has yet to revoke it."""
        return not any(
            partition in each.assigned or partition in each.revoking
            for each in self.members.values()
            if each.member_id != member_id
        )

    def assignor(self, settings: ConsumerSettings) -> str:
        """Return the assignor that most members prefer, the first supported one without preferences."""
        votes = Counter(each.server_assignor for each in self.members.values() if each.server_assignor is not None)
        return max(settings.assignors, key=lambda name: votes[name])

    def check_commit(self, identity: Identity, *, is_transactional: bool) -> None:
        """Check that a client may commit offsets of the group.

        Raises ``UnknownMemberError``, ``StaleMemberEpochError``, ``IllegalGenerationError`` for classic members, and
        ``UnsupportedVersionError`` for a member with an epoch whose request has generations only.
        """
        if identity.generation_id < 0 and (not self.members or (is_transactional and not identity.member_id)):
            return
        member = self.member(identity.member_id)
        if member.classic is None and 0 < identity.kafka_version < WITH_MEMBER_EPOCHS:
            raise UnsupportedVersionError(
                f"member {member.member_id} of group {self.group_id} commits with version {identity.kafka_version} of "
                f"OffsetCommit, but members with epochs need {WITH_MEMBER_EPOCHS} or later: upgrade the client"
            )
        self._check_epoch(member, identity.generation_id)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Check that a client may fetch offsets of the group. Raises ``UnknownMemberError``, ``StaleMemberEpochError``.

        A client without a member id and epoch may.
        """
        if member_id is not None or member_epoch >= 0:
            self._check_epoch(self.member(member_id or ""), member_epoch)

    def _check_epoch(self, member: ConsumerMember, epoch: int) -> None:
        if epoch == member.epoch:
            return
        if member.classic is not None:
            raise IllegalGenerationError(
                f"member {member.member_id} of group {self.group_id} is in generation {member.epoch}, not {epoch}: "
                "join again"
            )
        raise StaleMemberEpochError(
            f"member {member.member_id} of group {self.group_id} is in epoch {member.epoch}, not {epoch}: send a "
            "heartbeat, and retry with the new epoch"
        )

    # --- changes -------------------------------------------------------------------------------------------

    def with_member(self, member: ConsumerMember) -> ConsumerGroup:
        """Return the group with a member that was added or has changed."""
        before = self.members.get(member.member_id)
        gained = member.owned if before is None else member.owned - before.owned
        assert all(self.is_free(each, member.member_id) for each in gained), f"{member.member_id} gets owned partitions"
        assert not member.assigned & member.revoking, f"{member.member_id} owns and revokes a partition"
        assert member.epoch <= self.epoch, f"{member.member_id} is ahead of its group"
        return replace(self, members={**self.members, member.member_id: member})

    def replaced(self, old: ConsumerMember, member: ConsumerMember) -> ConsumerGroup:
        """Return the group with a static member under the member id of its new process."""
        members = {each_id: each for each_id, each in self.members.items() if each_id != old.member_id}
        target = {each_id: each for each_id, each in self.target.items() if each_id != old.member_id}
        target[member.member_id] = self.target.get(old.member_id, NO_PARTITIONS)
        return replace(self, members={**members, member.member_id: member}, target=target)

    def without(self, member_id: str, topics: ClusterTopics, settings: ConsumerSettings) -> ConsumerGroup:
        """Return the group without a member, with a new target assignment. Raises ``UnknownMemberError``."""
        self.member(member_id)
        members = {each_id: each for each_id, each in self.members.items() if each_id != member_id}
        return replace(self, members=members).refreshed(topics, settings, is_changed=True)

    def refreshed(
        self, topics: ClusterTopics, settings: ConsumerSettings, *, is_changed: bool, visible: Visible | None = None
    ) -> ConsumerGroup:
        """Return the group with a new epoch and target assignment if subscriptions or topics have changed.

        Without ``visible`` no client's rights are known. Regular expressions then keep their topics until the next
        heartbeat. Raises ``InvalidRegularExpressionError``.
        """
        if not is_changed and self.topics_revision == topics.revision and self.target_epoch == self.epoch:
            return self
        group = self._resolved(topics, visible)
        found = {name: topic for name in group.subscribed_topics() if (topic := topics.find(name)) is not None}
        new_hash = metadata_hash(found)
        if not is_changed and new_hash == self.metadata_hash and self.target_epoch == self.epoch:
            return group
        epoch = self.epoch + (is_changed or new_hash != self.metadata_hash)
        return replace(
            group,
            epoch=epoch,
            metadata_hash=new_hash,
            target_epoch=epoch,
            target=group._assign(found, settings),
        )

    def _resolved(self, topics: ClusterTopics, visible: Visible | None) -> ConsumerGroup:
        """Return the group with the topics of regular expressions that are new, or of all if topics have changed."""
        expressions = sorted({each.regex for each in self.members.values() if each.regex})
        if visible is None and expressions:
            return replace(self, regexes={each: self.regexes.get(each, frozenset()) for each in expressions})
        known = self.regexes if self.topics_revision == topics.revision else {}
        regexes = {
            each: known[each] if each in known else (visible or every_topic)(topics.matching(each))
            for each in expressions
        }
        return replace(self, regexes=regexes, topics_revision=topics.revision)

    def _assign(self, topics: Mapping[str, SubscribedTopic], settings: ConsumerSettings) -> Mapping[str, Partitions]:
        given = AssignorInput(
            subscriptions={
                member_id: frozenset(topics[name].topic_id for name in self.topics_of(member) if name in topics)
                for member_id, member in self.members.items()
            },
            partition_counts={topic.topic_id: topic.partition_count for topic in topics.values()},
            target=self.target,
            instance_ids={
                member_id: member.instance_id
                for member_id, member in self.members.items()
                if member.instance_id is not None
            },
        )
        target = ASSIGNORS[self.assignor(settings)](given)
        assigned = sum(map(len, target.values()))
        assert assigned == sum(given.partition_counts.values()), "each partition is in one target assignment"
        assert len(NO_PARTITIONS.union(*target.values())) == assigned, "no partition is in two target assignments"
        return target

    def reconciled(self, member: ConsumerMember, owned: Partitions | None) -> tuple[ConsumerGroup, ConsumerMember]:
        """Return the group after a step of a member towards its target assignment, and the member.

        Raises ``FencedMemberEpochError``.
        """
        after = reconcile(
            member,
            target=self.target.get(member.member_id, NO_PARTITIONS),
            target_epoch=self.target_epoch,
            owned=owned,
            is_free=lambda partition: self.is_free(partition, member.member_id),
        )
        return self.with_member(after), after

    # --- ConsumerGroupHeartbeat ----------------------------------------------------------------------------

    def heartbeat(
        self, beat: Heartbeat, topics: ClusterTopics, settings: ConsumerSettings
    ) -> tuple[ConsumerGroup, HeartbeatAnswer]:
        """Return the group after a heartbeat, and the answer.

        Raises ``UnknownMemberError``, ``FencedMemberEpochError``, ``FencedInstanceIdError``,
        ``UnreleasedInstanceIdError``, ``UnsupportedAssignorError``, ``GroupMaxSizeReachedError``,
        ``InvalidRegularExpressionError``.
        """
        if beat.member_epoch < JOIN_EPOCH:
            return self._leave(beat, topics, settings)
        if beat.server_assignor is not None and beat.server_assignor not in settings.assignors:
            raise UnsupportedAssignorError(
                f"group.remote.assignor={beat.server_assignor} is not supported: set one of "
                f"{', '.join(settings.assignors)} (group.consumer.assignors)"
            )
        group, before = self._subscribed(beat, settings)
        member = _updated(before, beat)
        is_new = member.member_id not in group.target
        has_changed = (before.topics, before.regex) != (member.topics, member.regex)
        group = replace(group, members={**group.members, member.member_id: member})
        group = group.refreshed(topics, settings, is_changed=is_new or has_changed, visible=beat.visible)
        group, after = group.reconciled(member, beat.owned)
        is_sent = beat.is_full or after.assigned != before.assigned
        return group, HeartbeatAnswer(after.member_id, after.epoch, after.assigned if is_sent else None)

    def _subscribed(self, beat: Heartbeat, settings: ConsumerSettings) -> tuple[ConsumerGroup, ConsumerMember]:
        """Return the group with the member of a heartbeat, which joins with epoch 0, and the member."""
        is_joining = beat.member_epoch == JOIN_EPOCH
        found = self.members.get(beat.member_id)
        if beat.instance_id is not None:
            found = self.static_member(beat.instance_id)
            if found is None and not is_joining:
                raise UnknownMemberError(
                    f"group {self.group_id} has no member with group.instance.id={beat.instance_id}: join with epoch 0"
                )
            if found is not None and found.member_id != beat.member_id:
                return self._taken_over(found, beat)
        if is_joining:
            if found is None:
                self.check_size(settings)
                found = ConsumerMember(member_id=beat.member_id, instance_id=beat.instance_id)
            elif found.epoch == STATIC_LEAVE_EPOCH:
                found = _rejoined(found, beat.member_id)
            return self, found
        member = self.member(beat.member_id)
        self._check_heartbeat_epoch(member, beat)
        return self, member

    def check_size(self, settings: ConsumerSettings) -> None:
        """Raise ``GroupMaxSizeReachedError`` if no member may join."""
        if len(self.members) >= settings.max_size:
            raise GroupMaxSizeReachedError(
                f"group {self.group_id} has {len(self.members)} members, and group.consumer.max.size allows no more: "
                "stop other members, or raise it"
            )

    def _taken_over(self, found: ConsumerMember, beat: Heartbeat) -> tuple[ConsumerGroup, ConsumerMember]:
        """Give the place of a static member to its new process.

        A member that uses the consumer protocol must have left for a short time. A classic one need not, because its
        clients leave no static groups when they stop.
        """
        if beat.member_epoch != JOIN_EPOCH:
            raise self.fenced_instance(beat.instance_id)
        if found.classic is None and found.epoch != STATIC_LEAVE_EPOCH:
            raise UnreleasedInstanceIdError(
                f"member {found.member_id} of group {self.group_id} has group.instance.id={beat.instance_id}: stop it, "
                "or give this process an instance id of its own"
            )
        member = _rejoined(found, beat.member_id)
        return self.replaced(found, member), member

    def fenced_instance(self, instance_id: str | None) -> FencedInstanceIdError:
        """Return the error of a process whose instance id another one has."""
        return FencedInstanceIdError(
            f"another process has joined group {self.group_id} with group.instance.id={instance_id}: give each process "
            "an instance id of its own"
        )

    def _check_heartbeat_epoch(self, member: ConsumerMember, beat: Heartbeat) -> None:
        if beat.member_epoch == member.epoch:
            return
        is_answer_lost = beat.owned is not None and beat.owned <= member.assigned
        if beat.member_epoch == member.previous_epoch and is_answer_lost:
            return
        raise FencedMemberEpochError(
            f"member {member.member_id} of group {self.group_id} is in epoch {member.epoch}, not {beat.member_epoch}: "
            "give up its partitions, and join again with epoch 0"
        )

    def _leave(
        self, beat: Heartbeat, topics: ClusterTopics, settings: ConsumerSettings
    ) -> tuple[ConsumerGroup, HeartbeatAnswer]:
        answer = HeartbeatAnswer(beat.member_id, beat.member_epoch)
        if beat.instance_id is None:
            member = self.member(beat.member_id)
        else:
            found = self.static_member(beat.instance_id)
            if found is None:
                raise UnknownMemberError(f"group {self.group_id} has no member with id {beat.instance_id}")
            if found.member_id != beat.member_id:
                raise self.fenced_instance(beat.instance_id)
            member = found
        if beat.member_epoch == LEAVE_EPOCH:
            return self.without(member.member_id, topics, settings), answer
        return self.with_member(replace(member, epoch=STATIC_LEAVE_EPOCH, revoking=NO_PARTITIONS)), answer


def _rejoined(member: ConsumerMember, member_id: str) -> ConsumerMember:
    return replace(
        member,
        member_id=member_id,
        epoch=JOIN_EPOCH,
        previous_epoch=JOIN_EPOCH,
        state=MemberState.STABLE,
        revoking=NO_PARTITIONS,
    )


def _updated(member: ConsumerMember, beat: Heartbeat) -> ConsumerMember:
    """Return the member with the fields that a heartbeat has. It uses the consumer protocol from now on."""
    is_new = beat.rebalance_timeout_ms != -1
    return replace(
        member,
        rack_id=beat.rack_id if beat.rack_id is not None else member.rack_id,
        client_id=beat.client_id,
        client_host=beat.client_host,
        topics=beat.topics if beat.topics is not None else member.topics,
        regex=beat.regex if beat.regex is not None else member.regex,
        rebalance_timeout_ms=beat.rebalance_timeout_ms if is_new else member.rebalance_timeout_ms,
        server_assignor=beat.server_assignor if beat.server_assignor is not None else member.server_assignor,
        classic=None,
    )


def check_request(beat: Heartbeat) -> None:
    """Raise ``InvalidRequestError`` for a heartbeat that no client sends (Kafka's checks of the request)."""
    if beat.member_epoch < STATIC_LEAVE_EPOCH:
        raise _invalid(f"member epoch {beat.member_epoch} is invalid: send -2 or -1 to leave, 0 to join, or the epoch")
    if not beat.member_id:
        raise _invalid("the heartbeat has no member id: choose one, and send it with each heartbeat")
    if beat.instance_id == "":
        raise _invalid("the instance id is empty: set group.instance.id, or send none")
    if beat.rack_id == "":
        raise _invalid("the rack id is empty: set client.rack, or send none")
    if beat.member_epoch == STATIC_LEAVE_EPOCH and beat.instance_id is None:
        raise _invalid("a heartbeat with epoch -2 has no instance id: dynamic members leave with epoch -1")
    if beat.member_epoch != JOIN_EPOCH:
        return
    if beat.rebalance_timeout_ms == -1:
        raise _invalid("a heartbeat with epoch 0 has no rebalance timeout: send max.poll.interval.ms")
    if beat.owned is None or beat.owned:
        raise _invalid("a member that joins owns no partitions: send an empty list of them")
    if beat.topics is None and beat.regex is None:
        raise _invalid("a heartbeat with epoch 0 has no subscription: send topic names or a regular expression")


def _invalid(text: str) -> InvalidRequestError:
    return InvalidRequestError(text)
