"""Simulated clients that use Kafka's calls.

They are the producers of ``producers`` and the member of ``groups``. They go through ``millrace_broker.kafka_api``, in
versions that the seed draws. A producer with a transactional id has either protocol: TV1 keeps its epoch over
transactions, TV2 raises it at each end and adds partitions implicitly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from millrace.errors import LeaderNotAvailableError, MillraceError, error_of
from millrace.kafka_protocol.calls.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from millrace.kafka_protocol.calls.end_txn import EndTxnRequest
from millrace.kafka_protocol.calls.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.kafka_protocol.calls.find_coordinator import FindCoordinatorRequest
from millrace.kafka_protocol.calls.heartbeat import HeartbeatRequest
from millrace.kafka_protocol.calls.init_producer_id import InitProducerIdRequest
from millrace.kafka_protocol.calls.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millrace.kafka_protocol.calls.metadata import MetadataRequest, MetadataRequestTopic
from millrace.kafka_protocol.calls.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millrace.kafka_protocol.calls.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from millrace.kafka_protocol.calls.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.kafka_protocol.calls.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from millrace.kafka_protocol.message import Message
from millrace.partitions import numbers_by_topic
from millrace.protocol import millrace_pb2 as pb
from millrace.records import ControlType, read_end_marker, read_rows, scan_headers

from ...histories.history import Place, Read
from .clients import TIMEOUT_S, Client, Position
from .groups import READERS, SESSION_MS, Joined, Member
from .network import ask_kafka
from .producers import ACKNOWLEDGED_MS, TRANSACTION_TIMEOUT_MS, Transactor, Writer

if TYPE_CHECKING:
    from .world import World

_ALL: Final = -1
_READ_COMMITTED: Final = 1
_NO_SESSION, _NEW_SESSION = -1, 0


class KafkaClient(Client):
    """A client that speaks Kafka's protocol."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.topic_ids: dict[str, UUID] = {}

    # --- requests --------------------------------------------------------------------------------------------

    async def call(self, broker_id: int, request: Message, version: int) -> Any:
        """Send a request to a broker."""
        network, target = self.world.network, f"broker-{broker_id}"
        return await ask_kafka(network, self.name, target, request, version, timeout_s=TIMEOUT_S)

    async def call_any(self, request: Message, version: int) -> Any:
        """Send a request to any broker."""
        return await self.call(self.choose.choice(self.world.broker_ids), request, version)

    async def call_leader(self, place: Place, request: Message, version: int) -> Any:
        """Send a request to the known leader of a partition, and forget the leader after an error of the network."""
        try:
            return await self.call(await self.leader(place), request, version)
        except MillraceError:
            self.forget(place)
            raise

    async def call_coordinator(
        self, kind: int, key: str, request: Message, version: int, codes: Callable[[Any], Iterator[int]]
    ) -> Any:
        """Send a request to the coordinator of a group or a transactional id. Forget the coordinator after an error.

        ``codes`` yields the error codes of an answer, whose first one is raised.
        """
        known = self._coordinators.get((kind, key))
        if known is None:
            known = self._coordinators[kind, key] = await self._find_coordinator(kind, key)
        try:
            answer = await self.call(known, request, version)
            for code in codes(answer):
                check_code(code)
        except MillraceError:
            self._coordinators.pop((kind, key), None)
            raise
        return answer

    async def _find_coordinator(self, kind: int, key: str) -> int:
        answer = await self.call_any(FindCoordinatorRequest(key_type=kind, coordinator_keys=(key,)), 4)
        (found,) = answer.coordinators
        check_code(found.error_code, found.error_message)
        node_id: int = found.node_id
        return node_id

    async def _ask_for_leaders(self, place: Place) -> None:
        asked = MetadataRequest(topics=(MetadataRequestTopic(name=place.topic),), allow_auto_topic_creation=False)
        for topic in (await self.call_any(asked, self.choose.choice([9, 12, 13]))).topics:
            check_code(topic.error_code)
            for each in topic.partitions:
                self._learn(Place(topic.name, each.partition_index), each.leader_id, each.leader_epoch)
        if place not in self._leaders:
            raise LeaderNotAvailableError(f"{place} has no leader now")

    async def topic_id(self, topic: str) -> UUID:
        """Return the id of a topic."""
        if topic not in self.topic_ids:
            answer = await self.call_any(MetadataRequest(topics=(MetadataRequestTopic(name=topic),)), 12)
            check_code(answer.topics[0].error_code)
            self.topic_ids[topic] = answer.topics[0].topic_id
        return self.topic_ids[topic]

    def _learn(self, place: Place, leader: int, epoch: int) -> None:
        if leader >= 0 and epoch >= self._epochs.get(place, -1):
            self._leaders[place] = leader, epoch

    def _moved(self, place: Place, named: Any) -> None:
        """Continue with the leader that an answer with an error names, if it is newer (KIP-951)."""
        known = self._leaders.pop(place, (-1, -1))
        if named.leader_epoch > known[1]:
            self._learn(place, named.leader_id, named.leader_epoch)

    # --- records ---------------------------------------------------------------------------------------------

    async def initialize(self, transactional_id: str = "") -> tuple[int, int]:
        """Return a producer id and its epoch."""
        request = InitProducerIdRequest(
            transactional_id=transactional_id or None, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
        )
        if transactional_id:
            answer = await self.call_coordinator(
                pb.TRANSACTION, transactional_id, request, 4, lambda answer: iter((answer.error_code,))
            )
        else:
            answer = await self.call_any(request, 4)
            check_code(answer.error_code)
        return answer.producer_id, answer.producer_epoch

    async def send_batch(self, place: Place, records: bytes, transactional_id: str, version: int) -> int:
        """Send records and return the first offset. Raises the partition's error."""
        data = TopicProduceData(
            name=place.topic if version < 13 else "",
            topic_id=await self.topic_id(place.topic),
            partition_data=(PartitionProduceData(index=place.partition, records=records),),
        )
        request = ProduceRequest(
            transactional_id=transactional_id or None, acks=_ALL, timeout_ms=ACKNOWLEDGED_MS, topic_data=(data,)
        )
        answer = await self.call_leader(place, request, version)
        (result,) = answer.responses[0].partition_responses
        if result.error_code:
            self._moved(place, result.current_leader)
        check_code(result.error_code, result.error_message)
        offset: int = result.base_offset
        return offset

    async def fetch(self, place: Place, position: Position) -> tuple[list[Read], Position]:
        """Return committed records from a position on, and the next position."""
        self._read_up_to(place, position)
        await self.leader(place)
        version = self.choose.choice([11, 12, 15, 17])
        wanted = FetchPartition(
            partition=place.partition,
            current_leader_epoch=self._leaders[place][1],
            fetch_offset=position.offset,
            partition_max_bytes=2000,
        )
        topic_id = await self.topic_id(place.topic)
        request = FetchRequest(
            max_wait_ms=200,
            min_bytes=self.world.plan.fetch_min_bytes,
            max_bytes=2000,
            isolation_level=_READ_COMMITTED,
            session_epoch=self.choose.choice([_NO_SESSION, _NEW_SESSION]),
            topics=(FetchTopic(topic=place.topic if version < 13 else "", topic_id=topic_id, partitions=(wanted,)),),
        )
        answer = await self.call_leader(place, request, version)
        check_code(answer.error_code)
        (result,) = answer.responses[0].partitions
        if result.error_code:
            self._moved(place, result.current_leader)
        check_code(result.error_code)
        reads, following = consumed(place, position, bytes(result.records or b""), result.aborted_transactions or ())
        self.world.recorder.read(self.name, reads)
        return reads, following

    async def committed_by(
        self, group: str, places: Sequence[Place], member_id: str | None = None, member_epoch: int = -1
    ) -> dict[Place, Position]:
        """Return a group's committed positions without pending ones. A partition without a commit has offset 0."""
        wanted = OffsetFetchRequestGroup(
            group_id=group,
            member_id=member_id,
            member_epoch=member_epoch,
            topics=tuple(
                OffsetFetchRequestTopics(name=topic, partition_indexes=tuple(numbers))
                for topic, numbers in numbers_by_topic(places).items()
            ),
        )

        def codes(answer: Any) -> Iterator[int]:
            yield answer.groups[0].error_code
            yield from (each.error_code for topic in answer.groups[0].topics for each in topic.partitions)

        request = OffsetFetchRequest(groups=(wanted,), require_stable=True)
        answer = await self.call_coordinator(pb.GROUP, group, request, 9, codes)
        return {
            Place(topic.name, each.partition_index): Position(
                max(0, each.committed_offset), each.committed_leader_epoch
            )
            for topic in answer.groups[0].topics
            for each in topic.partitions
        }

    async def commit_as(self, group: str, member_id: str, epoch: int, positions: Mapping[Place, Position]) -> None:
        """Commit positions as a member of a group, with its generation or member epoch."""
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            topics=tuple(
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=tuple(
                        OffsetCommitRequestPartition(
                            partition_index=number,
                            committed_offset=positions[Place(topic, number)].offset,
                            committed_leader_epoch=positions[Place(topic, number)].epoch,
                            committed_metadata=None,
                        )
                        for number in numbers
                    ),
                )
                for topic, numbers in numbers_by_topic(positions).items()
            ),
        )

        def codes(answer: Any) -> Iterator[int]:
            return (each.error_code for topic in answer.topics for each in topic.partitions)

        await self.call_coordinator(pb.GROUP, group, request, 9, codes)


class KafkaWriter(KafkaClient, Writer):
    """An idempotent producer of Kafka."""

    async def produce(self, place: Place, records: bytes, transactional_id: str = "") -> int:
        """Send records and return the first offset."""
        return await self.send_batch(place, records, transactional_id, self.choose.choice([9, 11, 12, 13]))


class KafkaTransactor(KafkaClient, Transactor):
    """A transactional producer of Kafka, with one of the two protocols."""

    def __init__(self, world: World, name: str, *, keeps_epoch: bool) -> None:
        """Make one. ``keeps_epoch`` is the protocol TV1."""
        super().__init__(world, name)
        self._keeps_epoch: Final = keeps_epoch

    async def add(self, topics: Mapping[str, Sequence[int]]) -> None:
        """Add partitions to the transaction. In TV2 Produce does."""
        assert self.producer is not None
        if not self._keeps_epoch:
            return
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer[0],
            v3_and_below_producer_epoch=self.producer[1],
            v3_and_below_topics=tuple(
                AddPartitionsToTxnTopic(name=name, partitions=tuple(numbers)) for name, numbers in topics.items()
            ),
        )

        def codes(answer: Any) -> Iterator[int]:
            topics = answer.results_by_topic_v3_and_below
            return (each.partition_error_code for topic in topics for each in topic.results_by_partition)

        await self.settled(lambda: self.call_coordinator(pb.TRANSACTION, self.name, request, 3, codes))

    async def produce(self, place: Place, records: bytes, transactional_id: str = "") -> int:
        """Send records and return the first offset."""
        return await self.send_batch(place, records, transactional_id, 11 if self._keeps_epoch else 12)

    async def end(self, *, committed: bool) -> None:
        """End the transaction. Raises errors that are not retriable."""
        assert self.producer is not None
        producer_id, epoch = self.producer
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=producer_id, producer_epoch=epoch, committed=committed
        )
        version = 4 if self._keeps_epoch else 5
        answer = await self.settled(
            lambda: self.call_coordinator(
                pb.TRANSACTION, self.name, request, version, lambda answer: iter((answer.error_code,))
            )
        )
        if not self._keeps_epoch:
            self.producer = (answer.producer_id, answer.producer_epoch)


class KafkaMember(KafkaClient, Member):
    """A member of Kafka in a group with members of millrace."""

    async def _call(self, request: Message, version: int) -> Any:
        return await self.call_coordinator(
            pb.GROUP, READERS, request, version, lambda answer: iter((answer.error_code,))
        )

    async def _join_group(self) -> Joined:
        request = JoinGroupRequest(
            group_id=READERS,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol(name="range", metadata=b""),),
        )
        answer = await self.call_coordinator(pb.GROUP, READERS, request, 7, lambda _: iter(()))
        members = tuple(each.member_id for each in answer.members)
        return Joined(answer.error_code, answer.member_id, answer.generation_id, answer.leader, members)

    async def _sync_group(self, assignments: Mapping[str, bytes]) -> bytes:
        request = SyncGroupRequest(
            group_id=READERS,
            generation_id=self._generation,
            member_id=self._member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=tuple(
                SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                for member, assignment in assignments.items()
            ),
        )
        assignment: bytes = (await self._call(request, 5)).assignment
        return assignment

    async def _beat(self) -> None:
        await self._call(
            HeartbeatRequest(group_id=READERS, generation_id=self._generation, member_id=self._member_id), 4
        )

    async def _committed(self, places: Sequence[Place]) -> dict[Place, Position]:
        return await self.committed_by(READERS, places)

    async def _commit(self, positions: dict[Place, Position]) -> None:
        await self.commit_as(READERS, self._member_id, self._generation, positions)


def check_code(code: int, message: str | None = None) -> None:
    """Raise the error of a code of Kafka."""
    if code:
        raise error_of(code, message or f"error code {code}")


def consumed(place: Place, start: Position, records: bytes, aborted: Sequence[Any]) -> tuple[list[Read], Position]:
    """Return the committed records of a fetch from ``start``, and the next offset, as Kafka's ``CompletedFetch`` does.

    Kafka's answer names the first offset of an aborted transaction; its marker ends it.
    """
    waiting = sorted(aborted, key=lambda each: each.first_offset)
    open_producers: set[int] = set()
    reads: list[Read] = []
    offset, epoch = start
    for position, header in scan_headers(records):
        while waiting and waiting[0].first_offset <= header.last_offset:
            open_producers.add(waiting.pop(0).producer_id)
        rows = read_rows(records, position, header)
        if header.is_control:
            if read_end_marker(next(iter(rows))).type is ControlType.ABORT:
                open_producers.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in open_producers):
            reads += [Read(place, row.offset, (row.value or b"").decode()) for row in rows if row.offset >= offset]
        if header.next_offset > offset:
            offset, epoch = header.next_offset, header.partition_leader_epoch
    return reads, Position(offset, epoch)
