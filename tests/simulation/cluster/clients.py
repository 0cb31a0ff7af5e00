"""Common parts of the simulated clients.

These are leader and coordinator lookup, retries and reads. Clients speak the protocol themselves, not through
``millrace.clients``, whose threads use real time. Their actions and results go into a history (``tests/histories``),
whose checker judges it at the end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from millrace.errors import LeaderNotAvailableError, MillraceError, error_of
from millrace.protocol import millrace_pb2 as pb
from millrace.records import read_rows, scan_headers

from ...histories.history import Place, Read
from .loop import Process
from .network import ask

if TYPE_CHECKING:
    from .world import World

T = TypeVar("T")
TIMEOUT_S: Final = 2.0
"""The time that a client waits for an answer."""


class Position(NamedTuple):
    """The next offset of a consumer. ``epoch`` is the leader epoch of the record before, or -1 without one."""

    offset: int
    epoch: int


class Client:
    """A client with a name, which is its host on the network. ``work`` is its task until the end of the run."""

    def __init__(self, world: World, name: str) -> None:
        self.world: Final = world
        self.name: Final = name
        self.choose: Final = random.Random(f"{world.seed} {name}")
        self.process: Final = Process(name)
        self._leaders: dict[Place, tuple[int, int]] = {}
        """Leader and leader epoch of each partition, as far as the client knows them."""
        self._epochs: dict[Place, int] = {}
        """Leader epochs of records that were read or committed. Leaders of older epochs have been replaced."""
        self._coordinators: dict[tuple[int, str], int] = {}
        self._values = 0

    async def work(self) -> None:
        """Work until ``world.is_over``, and complete the last operation."""
        raise NotImplementedError

    # --- requests --------------------------------------------------------------------------------------------

    async def ask(self, broker_id: int, request: Any) -> Any:
        """Send a request to a broker, and raise its error."""
        return await ask(self.world.network, self.name, f"broker-{broker_id}", request, timeout_s=TIMEOUT_S)

    async def ask_any(self, request: Any) -> Any:
        """Send a request to any broker."""
        return await self.ask(self.choose.choice(self.world.broker_ids), request)

    async def ask_leader(self, place: Place, request: Any) -> Any:
        """Send a request to the known leader of a partition, and forget the leader after an error."""
        try:
            return await self.ask(await self.leader(place), request)
        except MillraceError:
            self._leaders.pop(place, None)
            raise

    def forget(self, place: Place) -> None:
        """Forget a leader, because another one was elected."""
        self._leaders.pop(place, None)

    async def leader(self, place: Place) -> int:
        """Return the leader of a partition, if necessary from any broker's metadata."""
        if place not in self._leaders:
            await self._ask_for_leaders(place)
        return self._leaders[place][0]

    async def _ask_for_leaders(self, place: Place) -> None:
        answer: pb.MetadataResponse = await self.ask_any(pb.MetadataRequest(topics=[place.topic]))
        for topic in answer.topics:
            check(topic.error)
            for partition in topic.partitions:
                found = Place(topic.name, partition.partition)
                if partition.leader >= 0 and partition.leader_epoch >= self._epochs.get(found, -1):
                    self._leaders[found] = partition.leader, partition.leader_epoch
        if place not in self._leaders:
            raise LeaderNotAvailableError(f"{place} has no leader now")

    async def ask_coordinator(
        self, kind: int, key: str, request: Any, verify: Callable[[Any], None] = lambda _: None
    ) -> Any:
        """Send a request to the coordinator of a group or a transactional id. Forget the coordinator after an error.

        ``verify`` raises errors within the answer.
        """
        known = self._coordinators.get((kind, key))
        if known is None:
            known = self._coordinators[kind, key] = await self._find_coordinator(kind, key)
        try:
            answer = await self.ask(known, request)
            verify(answer)
        except MillraceError:
            self._coordinators.pop((kind, key), None)
            raise
        return answer

    async def _find_coordinator(self, kind: int, key: str) -> int:
        find = pb.FindCoordinatorRequest(key_type=pb.CoordinatorType.ValueType(kind), keys=[key])
        found = (await self.ask_any(find)).coordinators[0]
        check(found.error)
        node_id: int = found.node.node_id
        return node_id

    async def settled(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retry until there is an answer, or an error that is not retriable."""
        while True:
            try:
                return await attempt()
            except MillraceError as error:
                if not error.retriable:
                    raise
            await self.rest()

    async def rest(self, longest_s: float = 0.3) -> None:
        await asyncio.sleep(self.choose.uniform(0.02, longest_s))

    def new_value(self) -> str:
        """Return a value that no client has sent."""
        self._values += 1
        return f"{self.name}:{self._values}"

    # --- reading ---------------------------------------------------------------------------------------------

    def _read_up_to(self, place: Place, position: Position) -> None:
        """Forget a leader of an older epoch than the position's, as Kafka's consumers do (KIP-320)."""
        self._epochs[place] = max(position.epoch, self._epochs.get(place, -1))
        if place in self._leaders and self._leaders[place][1] < self._epochs[place]:
            self.forget(place)

    async def fetch(self, place: Place, position: Position) -> tuple[list[Read], Position]:
        """Return committed records from a position on, and the next position."""
        self._read_up_to(place, position)
        await self.leader(place)
        wanted = pb.FetchRequest.PartitionFetch(
            partition=place.partition,
            fetch_offset=position.offset,
            partition_max_bytes=2000,
            current_leader_epoch=self._leaders[place][1],
        )
        topics = [pb.FetchRequest.TopicFetch(name=place.topic, partitions=[wanted])]
        request = pb.FetchRequest(
            replica_id=-1,
            max_wait_ms=200,
            min_bytes=self.world.plan.fetch_min_bytes,
            max_bytes=2000,
            isolation_level=pb.READ_COMMITTED,
            topics=topics,
        )
        answer: pb.FetchResponse = await self.ask_leader(place, request)
        result = answer.topics[0].partitions[0]
        if result.error.code:
            self.forget(place)
        check(result.error)
        reads, following = committed_reads(place, position, result.records, result.aborted_transactions)
        self.world.recorder.read(self.name, reads)
        return reads, following


def committed_reads(
    place: Place, start: Position, records: bytes, aborted: Sequence[Any]
) -> tuple[list[Read], Position]:
    """Return the committed records of a fetch from ``start``, and the next offset."""
    reads: list[Read] = []
    offset, epoch = start
    for position, header in scan_headers(records):
        is_aborted = header.is_transactional and any(
            each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
            for each in aborted
        )
        if not header.is_control and not is_aborted:
            rows = read_rows(records, position, header)
            reads += [Read(place, row.offset, (row.value or b"").decode()) for row in rows if row.offset >= offset]
        if header.next_offset > offset:
            offset, epoch = header.next_offset, header.partition_leader_epoch
    return reads, Position(offset, epoch)


def check(error: pb.Error) -> None:
    """Raise the error of an item, if it has one."""
    if error.code:
        raise error_of(error.code, error.message)


def check_topics(topics: Any) -> None:
    """Raise the first error of a response's partitions."""
    for topic in topics:
        for partition in topic.partitions:
            check(partition.error)
