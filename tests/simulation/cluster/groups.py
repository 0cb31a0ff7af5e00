"""Simulated consumers.

One is a member of a group, one processes exactly once, and one monitors committed offsets.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    MemberIdRequiredError,
    MillraceError,
    RebalanceInProgressError,
    UnknownMemberError,
    error_of,
)
from millrace.protocol import millrace_pb2 as pb

from ...histories.history import Outcome, Place, Read
from .clients import Client, Position, check, check_topics
from .producers import TransactionalClient

if TYPE_CHECKING:
    from .world import World

READERS: Final = "readers"
TRANSFORMERS: Final = "transformers"
SESSION_MS: Final = 1_500
_OUT: Final = (RebalanceInProgressError, IllegalGenerationError, UnknownMemberError, FencedInstanceIdError)
"""Errors after which a member rejoins."""


def places_in(topics: Any) -> list[pb.TopicPartitions]:
    """Return partitions by topic, as requests have them."""
    by_topic: dict[str, list[int]] = {}
    for place in topics:
        by_topic.setdefault(place.topic, []).append(place.partition)
    return [pb.TopicPartitions(name=name, partitions=numbers) for name, numbers in by_topic.items()]


def commits_of(positions: dict[Place, Position]) -> list[pb.TopicCommits]:
    """Return positions by topic, as requests have them."""
    by_topic: dict[str, list[pb.CommittedOffset]] = {}
    for place, (offset, epoch) in positions.items():
        by_topic.setdefault(place.topic, []).append(
            pb.CommittedOffset(partition=place.partition, offset=offset, leader_epoch=epoch)
        )
    return [pb.TopicCommits(name=name, partitions=commits) for name, commits in by_topic.items()]


async def committed_positions(client: Client, group: str, places: Sequence[Place]) -> dict[Place, Position]:
    """Return a group's committed positions without pending ones. A partition without a commit has the start offset."""
    wanted = pb.OffsetFetchRequest.Group(group_id=group, topics=places_in(places))
    request = pb.OffsetFetchRequest(groups=[wanted], require_stable=True)
    answer: pb.OffsetFetchResponse = await client.ask_coordinator(
        pb.GROUP, group, request, lambda answer: check(answer.groups[0].error)
    )
    positions: dict[Place, Position] = {}
    for topic in answer.groups[0].topics:
        for partition in topic.partitions:
            check(partition.error)
            committed = partition.committed
            position = Position(max(0, committed.offset), committed.leader_epoch)
            positions[Place(topic.name, committed.partition)] = position
    return positions


class Joined(NamedTuple):
    """The answer to a JoinGroup request."""

    error_code: int
    member_id: str
    generation: int
    leader: str
    members: tuple[str, ...]


class Member(Client):
    """A member of a classic group.

    The member joins, gets its assignment, reads it and commits its offsets.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._member_id = ""
        self._generation = -1
        self._joined = 0

    async def work(self) -> None:
        while not self.world.is_over:
            try:
                await self._belong(await self._join())
            except MillraceError as error:
                if isinstance(error, UnknownMemberError):
                    self._member_id = ""
                elif not isinstance(error, _OUT) and not error.retriable:
                    self.world.violated(f"{self.name} cannot be a member: {error!r}")
                await self.rest()

    async def _ask(self, request: Any, verify: Any = lambda _: None) -> Any:
        return await self.ask_coordinator(pb.GROUP, READERS, request, verify)

    async def _join(self) -> list[Place]:
        joined = await self._join_group()
        self._member_id = joined.member_id or self._member_id
        if joined.error_code == MemberIdRequiredError.code:
            joined = await self._join_group()
        if joined.error_code:
            raise error_of(joined.error_code, "JoinGroup is refused")
        self._generation, self._joined = joined.generation, self._joined + 1
        assigned = await self._sync_group(self._assign(joined) if joined.leader == self._member_id else {})
        places = [Place(*each) for each in json.loads(assigned or b"[]")]
        self.world.invariants.owned(READERS, self._generation, self._member_id, places)
        return places

    def _assign(self, joined: Joined) -> dict[str, bytes]:
        members = sorted(joined.members)
        return {
            member: json.dumps(self.world.places[index :: len(members)]).encode()
            for index, member in enumerate(members)
        }

    # --- calls -----------------------------------------------------------------------------------------------

    async def _join_group(self) -> Joined:
        request = pb.JoinGroupRequest(
            group_id=READERS,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[pb.JoinGroupRequest.Protocol(name="range", metadata=b"")],
        )
        answer: pb.JoinGroupResponse = await self._ask(request)
        members = tuple(each.member_id for each in answer.members)
        return Joined(answer.error.code, answer.member_id, answer.generation_id, answer.leader, members)

    async def _sync_group(self, assignments: Mapping[str, bytes]) -> bytes:
        request = pb.SyncGroupRequest(
            group_id=READERS,
            generation_id=self._generation,
            member_id=self._member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                pb.SyncGroupRequest.Assignment(member_id=member, assignment=assignment)
                for member, assignment in assignments.items()
            ],
        )
        answer: pb.SyncGroupResponse = await self._ask(request)
        return answer.assignment

    async def _beat(self) -> None:
        request = pb.HeartbeatRequest(group_id=READERS, generation_id=self._generation, member_id=self._member_id)
        await self._ask(request)

    async def _committed(self, places: Sequence[Place]) -> dict[Place, Position]:
        return await committed_positions(self, READERS, places)

    async def _commit(self, positions: dict[Place, Position]) -> None:
        request = pb.OffsetCommitRequest(
            group_id=READERS,
            generation_id=self._generation,
            member_id=self._member_id,
            topics=commits_of(positions),
        )
        await self._ask(request, lambda answer: check_topics(answer.topics))

    # --- membership ------------------------------------------------------------------------------------------

    async def _belong(self, places: list[Place]) -> None:
        """Read the assigned partitions until the group rebalances. Raises the error that ended the membership."""
        positions = await self._committed(places) if places else {}
        for _ in range(self.choose.randint(2, 30)):
            if self.world.is_over:
                return
            await self._beat()
            for place in places:
                reads, positions[place] = await self.fetch(place, positions[place])
                self.world.recorder.polled(self.name, self._joined, reads)
            is_late = self.choose.random() < 0.1
            if is_late:  # silent for so long that its partitions are assigned to others
                await asyncio.sleep(2 * SESSION_MS / 1000)
            if places and (is_late or self.choose.random() < 0.5):
                await self._commit(positions)
            await self.rest()


class Monitor(Client):
    """A client that requests the groups' committed offsets now and then."""

    async def work(self) -> None:
        while not self.world.is_over:
            asked_ns = self.world.now_ns
            try:
                positions = await committed_positions(self, READERS, self.world.places)
                self.world.recorder.committed(asked_ns, {place: each.offset for place, each in positions.items()})
            except MillraceError as error:
                if not error.retriable:
                    self.world.violated(f"{self.name} is not told offsets: {error!r}")
            await self.rest(0.5)


class Transformer(TransactionalClient):
    """A client that makes one output of each input.

    Each transaction contains outputs and the offsets of their inputs. Each input counts exactly once.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._positions: dict[Place, Position] = {}

    async def work(self) -> None:
        while not self.world.is_over:
            try:
                await self._go_on()
            except MillraceError as error:
                self.world.note(f"{self.name} starts again: {type(error).__name__}: {error.message[:80]}")
                self.producer = None
            await self.rest()
        await self.begin_anew()

    async def _go_on(self) -> None:
        if self.producer is None:
            await self.begin_anew()
            self._positions = await self.settled(lambda: committed_positions(self, TRANSFORMERS, self.world.places))
        place = self.choose.choice(self.world.places)
        reads, position = await self.settled(lambda: self.fetch(place, self._positions[place]))
        if reads:
            await self._transform(reads, {place: position})
            self._positions[place] = position

    async def _transform(self, reads: Sequence[Read], positions: dict[Place, Position]) -> None:
        values = [(self.choose.choice(self.world.outputs), f"{read.value}>{self.new_value()}") for read in reads]
        write = self.begin(values)
        outcome = Outcome.FAILED
        offsets: list[int] = []
        try:
            offsets = await self.send(values)
            await self._commit_offsets(positions)
            outcome = Outcome.UNKNOWN
            self.world.recorder.committing(write)
            await self.end(committed=True)
            outcome = Outcome.OK
        finally:
            self.world.recorder.ended(write, outcome, offsets)

    async def _commit_offsets(self, positions: dict[Place, Position]) -> None:
        assert self.producer is not None
        me = {"transactional_id": self.name, "producer_id": self.producer[0], "producer_epoch": self.producer[1]}
        await self.coordinator(pb.AddOffsetsToTxnRequest(**me, group_id=TRANSFORMERS))
        commit = pb.TxnOffsetCommitRequest(**me, group_id=TRANSFORMERS, generation_id=-1, topics=commits_of(positions))

        await self.settled(
            lambda: self.ask_coordinator(pb.GROUP, TRANSFORMERS, commit, lambda answer: check_topics(answer.topics))
        )
