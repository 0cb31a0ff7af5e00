"""Writer of audit batches to the topic ``__audit``.

Each broker writes to one partition, whose leader may be another broker.
"""

from __future__ import annotations

from typing import Final, Protocol

from millrace.coordinator_records import AUDIT_TOPIC
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import check_item
from millrace_broker.audit.events import AuditBatch
from millrace_broker.coordinators import InternalTopics
from millrace_broker.log import ProducedBatches
from millrace_broker.metadata import ProducerIds
from millrace_broker.network import Peers
from millrace_broker.replication.runtime import Appends, PartitionDirectory
from millrace_broker.runtime import Executors

_ALL: Final = -1


class AuditTarget(Protocol):
    """Place to which batches are written."""

    async def write(self, batch: AuditBatch, timeout_s: float) -> None:
        """Write a batch, as durable as the topic requires. Raises ``MillraceError``."""
        ...

    async def producer_id(self) -> int:
        """Return a new producer id. Raises ``MillraceError``."""
        ...


class AuditTopic:
    """The topic ``__audit``. A broker writes to one partition, so that its rows have an order and no duplicates."""

    def __init__(
        self,
        broker_id: int,
        *,
        topics: InternalTopics,
        partitions: PartitionDirectory,
        appends: Appends,
        peers: Peers,
        executors: Executors,
        producer_ids: ProducerIds,
    ) -> None:
        self._broker_id: Final = broker_id
        self._topics: Final = topics
        self._partitions: Final = partitions
        self._appends: Final = appends
        self._peers: Final = peers
        self._executors: Final = executors
        self._producer_ids: Final = producer_ids

    async def producer_id(self) -> int:
        """See ``AuditTarget``."""
        return await self._executors.administer(self._producer_ids.next_id)

    async def write(self, batch: AuditBatch, timeout_s: float) -> None:
        """See ``AuditTarget``. The topic is created first, if there is none."""
        topic = await self._topics.ensure(AUDIT_TOPIC)
        number = self._broker_id % len(topic.partitions)
        leader = self._partitions.leader_elsewhere((AUDIT_TOPIC, number))
        # Rows have the columns of the first version, also if an administrator has added some.
        data = await self._executors.run_io(batch.record_batch, self._broker_id, topic.schemas[0].id)
        if leader is None:
            partition = self._partitions.led(topic, number)
            batches = ProducedBatches(data, topic.config)
            await self._appends.append(partition, batches, timeout_s=timeout_s)
            return
        request = pb.ProduceRequest(acks=_ALL, timeout_ms=round(timeout_s * 1000))
        request.topics.add(name=AUDIT_TOPIC).partitions.add(partition=number, records=data)
        response: pb.ProduceResponse = await self._peers.call(leader, "Produce", request, timeout_s=timeout_s)
        for each in response.topics[0].partitions:
            check_item(each.error)
