"""Simulated members of a KIP-848 consumer group.

A check shows that a partition has one owner at a time. A member owns a partition from the answer that assigns it until
the member has given it up, or has lost its membership. While a member is in its session, no other member gets its
partitions. Members of a coordinator that has been replaced are no exception: what that coordinator answers does not
extend their sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from uuid import UUID

from millrace.errors import (
    FencedMemberEpochError,
    MillraceError,
    StaleMemberEpochError,
    UnknownMemberError,
)
from millrace.kafka_protocol.calls.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from millrace.partitions import numbers_by_topic
from millrace.protocol import millrace_pb2 as pb

from ...histories.history import Place
from .clients import Position
from .kafka_clients import KafkaClient

if TYPE_CHECKING:
    from .world import World

CONSUMERS: Final = "consumers"
CONSUMER_SESSION_MS: Final = 1_500
_REVOCATION_MS: Final = 30_000
_JOIN, _LEAVE = 0, -1
_OUT: Final = (FencedMemberEpochError, UnknownMemberError, StaleMemberEpochError)
"""Errors after which a member joins again."""
_OFFSETS: Final = Place("__consumer_offsets", 0)


class Ownership:
    """Partition owners of one group, and its committed offsets."""

    def __init__(self, world: World) -> None:
        self._world: Final = world
        self._owners: Final[dict[Place, ConsumerMember]] = {}
        self._committed: Final[dict[Place, int]] = {}

    def gained(self, member: ConsumerMember, place: Place) -> None:
        """Record that a member owns a partition, and check that no other one does."""
        owner = self._owners.get(place)
        if owner is not None and owner is not member and place in owner.holds:
            left_s = owner.session_ends_s - self._world.loop.time()
            if left_s > 0:
                self._world.violated(
                    f"{member.name} gets {place}, which {owner.name} owns, whose session has {left_s:.3f} s left"
                )
        self._owners[place] = member

    def committed(self, member: ConsumerMember, positions: Mapping[Place, Position]) -> None:
        """Record an acknowledged commit, or what the group has committed, and check that no offset decreases."""
        for place, (offset, _) in positions.items():
            known = self._committed.get(place, 0)
            if offset < known:
                self._world.violated(f"{member.name}: {place} is committed at {offset}, after {known}")
            self._committed[place] = offset


class ConsumerMember(KafkaClient):
    """A member that reads the partitions assigned by the coordinator.

    The member commits before it revokes a partition.
    """

    def __init__(self, world: World, name: str, ownership: Ownership) -> None:
        super().__init__(world, name)
        self._ownership: Final = ownership
        self._lives = 0
        self._member_id = ""
        self._epoch = _JOIN
        self._is_full = True
        """True if the next heartbeat has all fields, because the coordinator may not know them."""
        self._assignments = 0
        self._positions: dict[Place, Position] = {}
        self.holds: frozenset[Place] = frozenset()
        """The partitions that were assigned to the member and that it has not given up."""
        self.session_ends_s = 0.0
        """The earliest time at which the coordinator may remove the member."""

    @property
    def owned(self) -> frozenset[Place]:
        """The partitions that the member reads."""
        return frozenset(self._positions)

    async def work(self) -> None:
        while not self.world.is_over:
            self._begin_life()
            try:
                await self._belong()
            except MillraceError as error:
                if not isinstance(error, _OUT) and not error.retriable:
                    self.world.violated(f"{self.name} cannot be a member: {error!r}")
                self.world.note(f"{self.name} starts again: {type(error).__name__}: {error.message[:80]}")
            await self.rest()

    def _begin_life(self) -> None:
        """Begin anew under another member id, as a new process does. The earlier one is silent from now on."""
        self._lives += 1
        self._member_id, self._epoch, self._is_full = f"{self.name}.{self._lives}", _JOIN, True
        self._positions, self.holds = {}, frozenset()

    async def _belong(self) -> None:
        for _ in range(self.choose.randint(5, 60)):
            if self.world.is_over:
                return
            await self._heartbeat()
            for place in sorted(self._positions):
                reads, self._positions[place] = await self.settled(
                    lambda place=place: self.fetch(place, self._positions[place])  # type: ignore[misc]
                )
                self.world.recorder.polled(self.name, self._assignments, reads)
            is_late = self.choose.random() < 0.1
            if is_late:  # silent for so long that its partitions are assigned to others
                await asyncio.sleep(2 * CONSUMER_SESSION_MS / 1000)
            if self._positions and (is_late or self.choose.random() < 0.4):
                await self._commit(self._positions)
            await self.rest()
        if self.choose.random() < 0.5 and self._epoch != _JOIN:  # else there may be no group to leave
            await self._commit(self._positions)
            self._positions, self.holds = {}, frozenset()
            await self._send(_LEAVE)

    async def _heartbeat(self) -> None:
        """Send a heartbeat and carry out what its answer says."""
        try:
            assigned = await self._send(self._epoch)
        except MillraceError as error:
            if not error.retriable:
                raise
            self._is_full = True
            return
        if assigned is None or assigned == self.owned:
            return
        lost = {place: position for place, position in self._positions.items() if place not in assigned}
        if lost:
            await self._commit(lost)
            self.holds &= assigned
            self._positions = {place: each for place, each in self._positions.items() if place in assigned}
            self._is_full = True
        gained = sorted(assigned - self.owned)
        if gained:
            positions = await self.committed_by(CONSUMERS, gained, self._member_id, self._epoch)
            self._ownership.committed(self, positions)
            self._assignments += 1
            self._positions |= positions
            self._is_full = True

    async def _commit(self, positions: dict[Place, Position]) -> None:
        """Commit positions. An unknown outcome ends the member's life, because the commit may still arrive."""
        if positions:
            await self.commit_as(CONSUMERS, self._member_id, self._epoch, positions)
            self._ownership.committed(self, positions)

    async def _send(self, epoch: int) -> frozenset[Place] | None:
        """Send a heartbeat. Return the assignment, if the answer has one."""
        topics = sorted({place.topic for place in self.world.places})
        ids = {await self.settled(lambda topic=topic: self.topic_id(topic)): topic for topic in topics}  # type: ignore[misc]
        is_full = (self._is_full or self.choose.random() < 0.3) and epoch != _LEAVE
        request = ConsumerGroupHeartbeatRequest(
            group_id=CONSUMERS,
            member_id=self._member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=_REVOCATION_MS if is_full else -1,
            subscribed_topic_names=tuple(topics) if is_full else None,
            topic_partitions=self._owned_by_id(ids) if is_full else None,
        )
        sent_s = self.world.loop.time()
        answer = await self.call_coordinator(pb.GROUP, CONSUMERS, request, 1, lambda answer: iter((answer.error_code,)))
        if epoch == _LEAVE:
            return None
        self._is_full = False
        self._epoch = answer.member_epoch
        is_current = (
            self.world.invariants.newest_leader(_OFFSETS) == f"broker-{self._coordinators[pb.GROUP, CONSUMERS]}"
        )
        if is_current:
            self.session_ends_s = sent_s + CONSUMER_SESSION_MS / 1000
        if answer.assignment is None:
            return None
        assigned = frozenset(
            Place(ids[topic.topic_id], number)
            for topic in answer.assignment.topic_partitions
            for number in topic.partitions
        )
        if is_current:
            for place in sorted(assigned - self.holds):
                self._ownership.gained(self, place)
            self.holds |= assigned
        return assigned

    def _owned_by_id(self, ids: dict[UUID, str]) -> tuple[ConsumerGroupHeartbeatRequestTopicPartitions, ...]:
        owned = numbers_by_topic(sorted(self.owned))
        return tuple(
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=tuple(owned[topic]))
            for topic_id, topic in ids.items()
            if topic in owned
        )
