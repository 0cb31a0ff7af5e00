"""A simulated administrator: moves partitions, has preferred replicas elected, makes topics and deletes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.coordination import NodeExistsError, paths
from millrace.coordination.notices import PreferredElectionNode, ReassignmentNode
from millrace.errors import MillraceError, TopicExistsError
from millrace.protocol import millrace_pb2 as pb
from millrace.records import Record, build_rows_batch

from ...histories.history import Place
from .clients import Client, check, check_topics
from .producers import produce, produce_request

if TYPE_CHECKING:
    from .world import World

_TIMEOUT_MS = 1_500


class Administrator(Client):
    """See the module. What it is refused, as brokers are down, it leaves. Its topics come and go, most with records."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._topics: list[str] = []
        self._made = 0

    async def work(self) -> None:
        while not self.world.is_over:
            work = self.choose.choice(
                [self._reassign, self._cancel, self._elect, self._create, self._create, self._delete, self._use_tool]
            )
            try:
                await work()
            except MillraceError as error:
                self.world.note(f"{self.name}: {work.__name__[1:]}: {type(error).__name__}: {error.message[:80]}")
            await self.rest(2.0)

    async def _reassign(self) -> None:
        place = self.choose.choice([*self.world.places, *self.world.outputs])
        replicas = self.choose.sample(self.world.broker_ids, 3)
        self.world.note(f"{self.name}: {place.topic}-{place.partition} to {replicas}")
        await self._alter(place, pb.AlterPartitionReassignmentsRequest.PartitionTarget(replicas=replicas))

    async def _cancel(self) -> None:
        place = self.choose.choice([*self.world.places, *self.world.outputs])
        await self._alter(place, pb.AlterPartitionReassignmentsRequest.PartitionTarget(is_cancelled=True))

    async def _alter(self, place: Place, target: pb.AlterPartitionReassignmentsRequest.PartitionTarget) -> None:
        target.partition = place.partition
        topic = pb.AlterPartitionReassignmentsRequest.TopicTargets(name=place.topic, partitions=[target])
        request = pb.AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)
        check_topics((await self.ask_any(request)).topics)

    async def _elect(self) -> None:
        request = pb.ElectLeadersRequest(election_type=pb.PREFERRED, all_partitions=True, timeout_ms=_TIMEOUT_MS)
        await self.ask_any(request)

    async def _use_tool(self) -> None:
        """Have a partition moved, or preferred leaders elected, by a node in ZooKeeper, as Kafka's old tools do."""
        places = [*self.world.places, *self.world.outputs]
        path, data = paths.PREFERRED_ELECTION, PreferredElectionNode(tuple(places)).encode()
        if self.choose.random() < 0.6:
            place, replicas = self.choose.choice(places), tuple(self.choose.sample(self.world.broker_ids, 3))
            self.world.note(f"{self.name}: {place.topic}-{place.partition} to {list(replicas)} by a tool")
            path, data = paths.REASSIGN_PARTITIONS, ReassignmentNode({tuple(place): replicas}).encode()
        try:
            self.world.ensemble.outside.create(path, data)
        except NodeExistsError:
            self.world.note(f"{self.name}: a tool waits for {path}")

    async def _create(self) -> None:
        """Make a topic: perhaps one of a name that was deleted. Write a record to it."""
        if not self._topics or self.choose.random() < 0.5:
            self._made += 1
        name = f"passing-{self._made}"
        request = pb.CreateTopicsRequest(
            topics=[pb.NewTopic(name=name, num_partitions=2, replication_factor=3)], timeout_ms=_TIMEOUT_MS
        )
        for result in (await self.ask_any(request)).results:
            if result.error.code != TopicExistsError.code:
                check(result.error)
        self._topics.append(name)
        place = Place(name, self.choose.randrange(2))
        self.forget(place)
        record = Record(key=None, value=self.new_value().encode(), timestamp_ms=self.world.now_ms)
        batch = build_rows_batch([record])
        await produce(self, place, produce_request(place, batch))

    async def _delete(self) -> None:
        if self._topics:
            name = self._topics.pop(self.choose.randrange(len(self._topics)))
            self.world.note(f"{self.name} deletes {name}")
            for result in (await self.ask_any(pb.DeleteTopicsRequest(names=[name], timeout_ms=_TIMEOUT_MS))).results:
                check(result.error)
