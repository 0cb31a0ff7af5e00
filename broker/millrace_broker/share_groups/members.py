"""The members of one share group: who is there, and which partitions each one reads. Pure.

There is no rebalance that anybody waits for. Whatever changes (members, subscriptions, topics) raises the group's epoch
and changes the target assignment, and each member learns its part, and the epoch, with its next heartbeat.
Partitions may have several readers, so nobody must give up anything first.

Invariants

- The group's epoch only grows; a member's epoch is at most the group's, and is the one of what it was told last.
- Every subscribed partition has a reader, and every member something to read, as long as there is something.

Source: KIP-932; Kafka's ``GroupMetadataManager`` for share groups, and ``SimpleAssignor``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.errors import FencedMemberEpochError, GroupMaxSizeReachedError, InvalidRequestError, UnknownMemberError

JOINS: Final = 0
LEAVES: Final = -1

Assignment = Mapping[str, tuple[int, ...]]
"""Partitions by topic."""

CountOf = Callable[[str], int]
"""How many partitions a topic has; 0 if there is none of that name."""


@dataclass(slots=True, eq=False, kw_only=True)
class ShareMember:
    """A member. ``previous_epoch`` is accepted too, for the answer with the present one may have been lost."""

    member_id: str
    client_id: str
    client_host: str
    rack_id: str
    topics: frozenset[str]
    epoch: int = 0
    previous_epoch: int = -1
    deadline_ms: int = 0
    told: Assignment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A member's heartbeat. ``topics`` is None where they have not changed."""

    member_id: str
    member_epoch: int
    client_id: str = ""
    client_host: str = ""
    rack_id: str = ""
    topics: frozenset[str] | None = None


class ShareMembers:
    """The members of one group."""

    def __init__(self, group_id: str, *, size_max: int, session_timeout_ms: int) -> None:
        self._group_id: Final = group_id
        self._size_max: Final = size_max
        self._session_timeout_ms: Final = session_timeout_ms
        self.epoch = 0
        self.members: Final[dict[str, ShareMember]] = {}
        self._counts: dict[str, int] = {}
        self._target: dict[str, Assignment] = {}

    def __contains__(self, member_id: str) -> bool:
        return member_id in self.members

    def get(self, member_id: str) -> ShareMember:
        """The member. Raises ``UnknownMemberError``."""
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberError(
                f"share group {self._group_id} does not know member {member_id or '(none)'}: join with epoch 0"
            )
        return member

    def beat(self, beat: Beat, count_of: CountOf, now_ms: int) -> tuple[int, Assignment | None]:
        """A member lives, joins or leaves; returns its epoch, and its assignment unless it knows that.

        Raises ``UnknownMemberError``,
        ``FencedMemberEpochError``, ``GroupMaxSizeReachedError``, ``InvalidRequestError``.
        """
        if not beat.member_id:
            raise InvalidRequestError("a member of a share group chooses its member id: send one")
        if beat.member_epoch < LEAVES:
            raise InvalidRequestError(
                f"member epoch {beat.member_epoch}: expected -1 to leave, 0 to join, or the epoch"
            )
        if beat.member_epoch == LEAVES:
            self.remove(self.get(beat.member_id).member_id)
            return LEAVES, None
        member = self._joined(beat) if beat.member_epoch == JOINS else self._present(beat)
        member.deadline_ms = now_ms + self._session_timeout_ms
        is_changed = beat.topics is not None and beat.topics != member.topics
        if beat.topics is not None:
            member.topics = beat.topics
        is_full = beat.member_epoch == JOINS or beat.topics is not None
        self._update(count_of, is_changed=is_changed or member.epoch == 0)
        if member.epoch != self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch
        assignment = self._target[member.member_id]
        if assignment == member.told and not is_full and beat.member_epoch == member.epoch:
            return member.epoch, None
        member.told = assignment
        return member.epoch, assignment

    def _joined(self, beat: Beat) -> ShareMember:
        if beat.topics is None:
            raise InvalidRequestError("a heartbeat that joins says which topics are subscribed to")
        member = self.members.get(beat.member_id)
        if member is None:
            if len(self.members) >= self._size_max:
                raise GroupMaxSizeReachedError(
                    f"share group {self._group_id} has {len(self.members)} members, as many as group.share.max.size"
                )
            member = ShareMember(
                member_id=beat.member_id,
                client_id=beat.client_id,
                client_host=beat.client_host,
                rack_id=beat.rack_id,
                topics=beat.topics,
            )
            self.members[beat.member_id] = member
        return member

    def _present(self, beat: Beat) -> ShareMember:
        member = self.get(beat.member_id)
        if beat.member_epoch not in (member.epoch, member.previous_epoch):
            raise FencedMemberEpochError(
                f"member {beat.member_id} of share group {self._group_id} is in epoch {member.epoch}, not "
                f"{beat.member_epoch}: join again with epoch 0"
            )
        return member

    def is_overdue(self, member_id: str, now_ms: int) -> bool:
        """Whether a member has not been heard of in time."""
        return now_ms >= self.members[member_id].deadline_ms

    def remove(self, member_id: str) -> None:
        """A member has gone."""
        del self.members[member_id]
        self._update(lambda topic: self._counts.get(topic, 0), is_changed=True)

    def _update(self, count_of: CountOf, *, is_changed: bool) -> None:
        subscribed = frozenset[str]().union(*(member.topics for member in self.members.values()))
        counts = {topic: count for topic in sorted(subscribed) if (count := count_of(topic))}
        if is_changed or counts != self._counts:
            self.epoch += 1
            self._counts = counts
            self._target = assign(counts, {each.member_id: each.topics for each in self.members.values()})


def assign(partition_counts: Mapping[str, int], topics: Mapping[str, frozenset[str]]) -> dict[str, Assignment]:
    """Share out partitions among members, who subscribe to ``topics``; a partition may go to several.

    Members with equal subscriptions share their partitions evenly when there are enough, else each gets all of them.
    Of different subscriptions each is shared out by itself.
    """
    target: dict[str, Assignment] = {}
    for subscription in dict.fromkeys(topics.values()):
        members = sorted(member_id for member_id, wanted in topics.items() if wanted == subscription)
        partitions = [
            (topic, number) for topic in sorted(subscription) for number in range(partition_counts.get(topic, 0))
        ]
        for place, member_id in enumerate(members):
            shared = len(members) > len(partitions)
            target[member_id] = _by_topic(partitions if shared else partitions[place :: len(members)])
    return target


def _by_topic(partitions: Sequence[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return {topic: tuple(numbers) for topic, numbers in topics.items()}
