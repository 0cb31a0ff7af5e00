"""Members of one share group and their assignments.

There is no rebalance. A change of members, subscriptions or topics raises the group epoch and gives a new target
assignment. Each member gets its assignment and the epoch with its next heartbeat. A partition may have several readers,
so no member has to give up a partition first.

Invariants

- The group epoch does not decrease. The epoch of a member is the one of its last answer, and at most the group epoch.
- Each subscribed partition has a reader. Each member has a partition if its topics have any.

Source: KIP-932; Kafka's ``GroupMetadataManager`` for share groups, and ``SimpleAssignor``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from millrace.errors import FencedMemberEpochError, GroupMaxSizeReachedError, InvalidRequestError, UnknownMemberError
from millrace.partitions import numbers_by_topic

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1

Assignment = Mapping[str, tuple[int, ...]]
"""Partitions by topic."""


class SubscribedTopic(NamedTuple):
    """Topic with its number of partitions. A later topic of the same name has another id."""

    topic_id: UUID
    partition_count: int


FindTopic = Callable[[str], SubscribedTopic | None]
"""Returns the topic with a name; None if there is none."""


@dataclass(slots=True, eq=False, kw_only=True)
class ShareMember:
    """Member of a share group (Kafka's ``ShareGroupMember``).

    ``previous_epoch`` is accepted too, because the answer with the present epoch may be lost.
    """

    member_id: str
    client_id: str
    client_host: str
    rack_id: str
    topics: frozenset[str]
    epoch: int = 0
    previous_epoch: int = -1
    deadline_ms: int = 0
    sent_assignment: Assignment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeat:
    """ShareGroupHeartbeat request; ``topics`` is None if the subscription has not changed."""

    member_id: str
    member_epoch: int
    client_id: str = ""
    client_host: str = ""
    rack_id: str = ""
    topics: frozenset[str] | None = None


class ShareMembers:
    """Members of one share group (Kafka's ``ShareGroup``)."""

    def __init__(self, group_id: str, *, size_max: int) -> None:
        self._group_id: Final = group_id
        self._size_max: Final = size_max
        self.epoch = 0
        self.members: Final[dict[str, ShareMember]] = {}
        self._topics: dict[str, SubscribedTopic] = {}
        self._target: dict[str, Assignment] = {}

    def __contains__(self, member_id: str) -> bool:
        return member_id in self.members

    def get(self, member_id: str) -> ShareMember:
        """Return the member. Raises ``UnknownMemberError``."""
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberError(
                f"share group {self._group_id} has no member {member_id or '(no member id)'}: join with epoch 0"
            )
        return member

    def heartbeat(
        self, heartbeat: ShareHeartbeat, find_topic: FindTopic, now_ms: int, *, session_timeout_ms: int
    ) -> tuple[int, Assignment | None]:
        """Extend, add or remove a member; return its epoch, and its assignment if the member does not have it.

        Raises ``UnknownMemberError``, ``FencedMemberEpochError``, ``GroupMaxSizeReachedError``,
        ``InvalidRequestError``.
        """
        if not heartbeat.member_id:
            raise InvalidRequestError("the heartbeat has no member id: choose one, and send it with each heartbeat")
        if heartbeat.member_epoch < LEAVE_EPOCH:
            raise InvalidRequestError(
                f"member epoch {heartbeat.member_epoch} is invalid: send -1 to leave, 0 to join, or the present epoch"
            )
        if heartbeat.member_epoch == LEAVE_EPOCH:
            self.remove(self.get(heartbeat.member_id).member_id)
            return LEAVE_EPOCH, None
        member = self._join(heartbeat) if heartbeat.member_epoch == JOIN_EPOCH else self._check_epoch(heartbeat)
        member.deadline_ms = now_ms + session_timeout_ms
        is_changed = heartbeat.topics is not None and heartbeat.topics != member.topics
        if heartbeat.topics is not None:
            member.topics = heartbeat.topics
        is_full = heartbeat.member_epoch == JOIN_EPOCH or heartbeat.topics is not None
        self._update(find_topic, is_changed=is_changed or member.epoch == 0)
        if member.epoch != self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch
        assignment = self._target[member.member_id]
        if assignment == member.sent_assignment and not is_full and heartbeat.member_epoch == member.epoch:
            return member.epoch, None
        member.sent_assignment = assignment
        return member.epoch, assignment

    def _join(self, heartbeat: ShareHeartbeat) -> ShareMember:
        if heartbeat.topics is None:
            raise InvalidRequestError("a heartbeat with epoch 0 has no subscription: send the topics to join")
        member = self.members.get(heartbeat.member_id)
        if member is None:
            if len(self.members) >= self._size_max:
                raise GroupMaxSizeReachedError(
                    f"share group {self._group_id} has {len(self.members)} members, and group.share.max.size allows no "
                    "more: stop other members, or raise it"
                )
            member = ShareMember(
                member_id=heartbeat.member_id,
                client_id=heartbeat.client_id,
                client_host=heartbeat.client_host,
                rack_id=heartbeat.rack_id,
                topics=heartbeat.topics,
            )
            self.members[heartbeat.member_id] = member
        return member

    def _check_epoch(self, heartbeat: ShareHeartbeat) -> ShareMember:
        member = self.get(heartbeat.member_id)
        if heartbeat.member_epoch not in (member.epoch, member.previous_epoch):
            raise FencedMemberEpochError(
                f"member {heartbeat.member_id} of share group {self._group_id} is in epoch {member.epoch}, not "
                f"{heartbeat.member_epoch}: join again with epoch 0"
            )
        return member

    def partitions(self) -> set[tuple[str, int]]:
        """Return the partitions of all subscribed topics."""
        return {(name, number) for name, topic in self._topics.items() for number in range(topic.partition_count)}

    def is_overdue(self, member_id: str, now_ms: int) -> bool:
        """Return whether the session of a member has ended."""
        return now_ms >= self.members[member_id].deadline_ms

    def remove(self, member_id: str) -> None:
        """Remove a member."""
        del self.members[member_id]
        self._update(self._topics.get, is_changed=True)

    def _update(self, find_topic: FindTopic, *, is_changed: bool) -> None:
        """Assign anew after a change of members or topics. The ids tell a topic from a deleted one of the same name."""
        subscribed = frozenset[str]().union(*(member.topics for member in self.members.values()))
        topics = {name: topic for name in sorted(subscribed) if (topic := find_topic(name)) is not None}
        if is_changed or topics != self._topics:
            self.epoch += 1
            self._topics = topics
            counts = {name: topic.partition_count for name, topic in topics.items()}
            self._target = assign(counts, {each.member_id: each.topics for each in self.members.values()})


def assign(partition_counts: Mapping[str, int], topics: Mapping[str, frozenset[str]]) -> dict[str, Assignment]:
    """Assign partitions to members by their subscriptions; a partition may have several readers.

    Members with equal subscriptions get an equal share of the partitions. If there are more members than partitions,
    each member gets all of them. Different subscriptions are assigned independently of each other.
    """
    target: dict[str, Assignment] = {}
    for subscription in dict.fromkeys(topics.values()):
        members = sorted(member_id for member_id, wanted in topics.items() if wanted == subscription)
        topics_there = sorted(partition_counts.keys() & subscription)
        partitions = [(topic, number) for topic in topics_there for number in range(partition_counts[topic])]
        for place, member_id in enumerate(members):
            shared = len(members) > len(partitions)
            target[member_id] = numbers_by_topic(partitions if shared else partitions[place :: len(members)])
    return target
