"""A simulated administrator of brokers, topics and partitions.

It moves partitions, throttles the moves, elects preferred replicas and alters options. It also creates topics, adds
partitions to them and deletes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from millrace.coordination import NodeExistsError, paths
from millrace.coordination.notices import PreferredElectionNode, ReassignmentNode
from millrace.errors import InvalidRequestError, MillraceError, TopicExistsError
from millrace.protocol import millrace_pb2 as pb
from millrace.records import Record, build_rows_batch

from ...histories.history import Place
from .clients import check, check_topics
from .producers import Producing

if TYPE_CHECKING:
    from .world import World

_TIMEOUT_MS: Final = 1_500
_TOPIC_OPTIONS: Final = {
    "min.insync.replicas": ("1", "2"),
    "segment.bytes": ("1000", "4000"),
    "max.message.bytes": ("100000", "1000000"),
}
"""Options that may be altered, with their values. None of them weakens the durability of acknowledged records."""
_THROTTLED_REPLICAS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_THROTTLED_RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_RATES: Final = ("100", "1000", "100000")
"""Bytes a second. Clients write some thousands."""


class Administrator(Producing):
    """The administrator of this module.

    It gives up operations that are refused because brokers are down. Its topics come and go, most with records.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._topics: list[str] = []
        self._made = 0
        self._throttled: set[int] = set()

    async def work(self) -> None:
        works = (
            self._reassign,
            self._cancel,
            self._elect,
            self._create,
            self._create,
            self._delete,
            self._add_partitions,
            self._configure,
            self._throttle,
            self._use_tool,
        )
        while not self.world.is_over:
            work = self.choose.choice(works)
            try:
                await work()
            except MillraceError as error:
                self.world.note(f"{self.name}: {work.__name__[1:]}: {type(error).__name__}: {error.message[:80]}")
            await self.rest(2.0)
        await self._let_go()

    async def _reassign(self) -> None:
        place = self.choose.choice([*self.world.places, *self.world.outputs])
        replicas = self._some_brokers()
        self.world.note(f"{self.name}: {place.topic}-{place.partition} to {replicas}")
        await self._alter(place, pb.AlterPartitionReassignmentsRequest.PartitionTarget(replicas=replicas))

    def _some_brokers(self) -> list[int]:
        return self.choose.sample(self.world.broker_ids, self.choose.choice((1, 2, 3, 3)))

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
        """Request a reassignment or a preferred leader election by a node in ZooKeeper, as Kafka's old tools do."""
        places = [*self.world.places, *self.world.outputs]
        path, data = paths.PREFERRED_ELECTION, PreferredElectionNode(tuple(places)).encode()
        if self.choose.random() < 0.6:
            place, replicas = self.choose.choice(places), tuple(self._some_brokers())
            self.world.note(f"{self.name}: {place.topic}-{place.partition} to {list(replicas)} by a tool")
            path, data = paths.REASSIGN_PARTITIONS, ReassignmentNode({tuple(place): replicas}).encode()
        try:
            self.world.ensemble.outside.create(path, data)
        except NodeExistsError:
            self.world.note(f"{self.name}: a tool waits for {path}")

    async def _create(self) -> None:
        """Create a topic, perhaps under the name of a deleted one, and write a record to it."""
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
        await self.produce(place, batch)

    async def _add_partitions(self) -> None:
        """Add a partition to one of the administrator's topics."""
        if self._topics:
            counts = [pb.CreatePartitionsRequest.TopicCount(name=self.choose.choice(self._topics), count=3)]
            request = pb.CreatePartitionsRequest(topics=counts, timeout_ms=_TIMEOUT_MS)
            self.world.note(f"{self.name}: 3 partitions of {counts[0].name}")
            _check_all(await self.ask_any(request))

    async def _configure(self) -> None:
        """Alter an option of a topic to which all clients write."""
        topic = self.choose.choice([self.world.places[0].topic, self.world.outputs[0].topic])
        option, values = self.choose.choice([*_TOPIC_OPTIONS.items()])
        await self._set(pb.TOPIC, topic, {option: self.choose.choice(values)})

    async def _throttle(self) -> None:
        """Throttle a broker's replication as leader and follower, or lift its throttle."""
        topic = self.choose.choice([*self.world.places, *self.world.outputs]).topic
        await self._set(pb.TOPIC, topic, dict.fromkeys(_THROTTLED_REPLICAS, "*"))
        broker_id = self.choose.choice(self.world.broker_ids)
        self._throttled.add(broker_id)
        await self._set(pb.BROKER, str(broker_id), dict.fromkeys(_THROTTLED_RATES, self.choose.choice(_RATES)))

    async def _let_go(self) -> None:
        """Remove all throttles. A broker that is shutting down gets none of this until it has restarted."""
        while self._throttled:
            name = str(min(self._throttled))
            try:
                await self.settled(lambda name=name: self._set(pb.BROKER, name, {}, _THROTTLED_RATES))  # type: ignore[misc]
                self._throttled.remove(int(name))
            except InvalidRequestError:
                await self.rest()

    async def _set(self, kind: Any, name: str, options: Mapping[str, str], removed: Sequence[str] = ()) -> None:
        self.world.note(f"{self.name}: {name}: {dict(options) or f'without {removed}'}")
        alteration = pb.AlterConfigsRequest.Alteration(
            resource=pb.ConfigResource(type=kind, name=name), set=options, delete=removed
        )
        _check_all(await self.ask_any(pb.AlterConfigsRequest(alterations=[alteration])))

    async def _delete(self) -> None:
        if self._topics:
            name = self._topics.pop(self.choose.randrange(len(self._topics)))
            self.world.note(f"{self.name} deletes {name}")
            _check_all(await self.ask_any(pb.DeleteTopicsRequest(names=[name], timeout_ms=_TIMEOUT_MS)))


def _check_all(answer: Any) -> None:
    """Raise the first error of an answer."""
    for result in answer.results:
        check(result.error)
