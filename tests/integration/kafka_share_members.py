"""Members of share groups by the calls of Kafka (KIP-932)."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from millrace.kafka_protocol.calls.metadata import MetadataRequest, MetadataRequestTopic
from millrace.kafka_protocol.calls.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from millrace.kafka_protocol.calls.share_fetch import (
    AcknowledgementBatch as FetchedAcknowledgement,
)
from millrace.kafka_protocol.calls.share_fetch import FetchPartition, FetchTopic, ForgottenTopic, ShareFetchRequest
from millrace.kafka_protocol.calls.share_group_heartbeat import ShareGroupHeartbeatRequest

from .kafka_wire import KafkaWire
from .waiting import Stall

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
BATCHES, RECORDS = 0, 1
"""Acquire modes."""
NOT_YET = (14, 15, 16)
"""Errors while a coordinator is created or loaded."""


class Member:
    """A share group member that uses Kafka's calls, with one partition."""

    def __init__(self, wire: KafkaWire, group: str, topic: str) -> None:
        self.wire, self.group, self.topic = wire, group, topic
        (found,) = wire.call(MetadataRequest(topics=(MetadataRequestTopic(name=topic),)), 12).topics
        self.topic_id: UUID = found.topic_id
        self.member_id = str(uuid4())
        self.epoch = 0

    def beat(self, epoch: int, topics: tuple[str, ...] | None = None, **fields: Any) -> Any:
        request = ShareGroupHeartbeatRequest(
            group_id=fields.pop("group_id", self.group),
            member_id=fields.pop("member_id", self.member_id),
            member_epoch=epoch,
            subscribed_topic_names=topics,
            **fields,
        )
        return self.wire.call(request, 1)

    def join(self) -> Any:
        stall = Stall("the coordinator")
        while (answer := self.beat(0, (self.topic,))).error_code in NOT_YET:
            stall.check()
        assert answer.error_code == 0, answer.error_message
        return answer

    def fetch(
        self,
        *acknowledged: tuple[int, int, int],
        epoch: int | None = None,
        version: int = 2,
        topics: tuple[FetchTopic, ...] | None = None,
        forgotten: tuple[int, ...] = (),
        **fields: Any,
    ) -> Any:
        """Fetch in the member's session; ``acknowledged`` are (first offset, last offset, type)."""
        epoch = self.epoch if epoch is None else epoch
        batches = tuple(
            FetchedAcknowledgement(first_offset=first, last_offset=last, acknowledge_types=(kind,))
            for first, last, kind in acknowledged
        )
        partition = FetchPartition(partition_index=0, acknowledgement_batches=batches)
        mine = (FetchTopic(topic_id=self.topic_id, partitions=(partition,)),) if not epoch or batches else ()
        limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 2**20, "max_records": 100, "batch_size": 100}
        if version >= 2:
            limits["share_acquire_mode"] = RECORDS
        request = ShareFetchRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=epoch,
            topics=mine if topics is None else topics,
            forgotten_topics_data=(ForgottenTopic(topic_id=self.topic_id, partitions=forgotten),) if forgotten else (),
            **(limits | fields),
        )
        answer = self.wire.call(request, version)
        if not answer.error_code:
            self.epoch = epoch + 1
        return answer

    def offsets(self, *acknowledged: tuple[int, int, int], **fields: Any) -> list[int]:
        return acquired(self.fetch(*acknowledged, **fields))

    def acknowledge(
        self, *acknowledged: tuple[int, int, tuple[int, ...]], epoch: int | None = None, **more: Any
    ) -> Any:
        """Acknowledge ranges of (first offset, last offset, types) in the member's session."""
        batches = tuple(
            AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
            for first, last, types in acknowledged
        )
        partition = AcknowledgePartition(partition_index=0, acknowledgement_batches=batches)
        epoch = self.epoch if epoch is None else epoch
        request = ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=epoch,
            topics=(AcknowledgeTopic(topic_id=self.topic_id, partitions=(partition,)),) if batches else (),
            **more,
        )
        answer = self.wire.call(request, 2)
        if not answer.error_code:
            self.epoch = epoch + 1
        return answer


def acquired(answer: Any) -> list[int]:
    assert answer.error_code == 0
    found = []
    for topic in answer.responses:
        for partition in topic.partitions:
            assert partition.error_code == 0, partition.error_message
            found += [n for each in partition.acquired_records for n in range(each.first_offset, each.last_offset + 1)]
    return found


def error_of(answer: Any) -> int:
    """Return the error of the only partition of an answer to ShareAcknowledge."""
    assert answer.error_code == 0
    code: int = answer.responses[0].partitions[0].error_code
    return code
