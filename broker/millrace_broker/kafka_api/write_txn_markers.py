"""Kafka's WriteTxnMarkers call (KIP-664).

The call appends end markers of transactions. Administrators use it to end a hanging transaction.
"""

from __future__ import annotations

from millrace.kafka_protocol.calls.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.write_txn_markers import handle as write
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of


async def handle(message: WriteTxnMarkersRequest, request: KafkaRequest) -> WriteTxnMarkersResponse:
    """Append the markers, each partition separately."""
    wanted = pb.WriteTxnMarkersRequest(
        markers=[
            pb.WriteTxnMarkersRequest.Marker(
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                committed=each.transaction_result,
                topics=[
                    pb.TopicPartitions(name=topic.name, partitions=topic.partition_indexes) for topic in each.topics
                ],
                coordinator_epoch=each.coordinator_epoch,
                transaction_version=each.transaction_version,
            )
            for each in message.markers
        ]
    )
    answer = await write(request.broker, wanted, request.context)
    return WriteTxnMarkersResponse(
        markers=tuple(
            WritableTxnMarkerResult(
                producer_id=each.producer_id,
                topics=tuple(
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=tuple(
                            WritableTxnMarkerPartitionResult(
                                partition_index=result.partition, error_code=code_of(result.error)
                            )
                            for result in topic.partitions
                        ),
                    )
                    for topic in each.topics
                ),
            )
            for each in answer.results
        )
    )


def refuse(message: WriteTxnMarkersRequest, version: int, error_code: int) -> WriteTxnMarkersResponse:
    """Answer each partition with the error."""
    return WriteTxnMarkersResponse(
        markers=tuple(
            WritableTxnMarkerResult(
                producer_id=each.producer_id,
                topics=tuple(
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=tuple(
                            WritableTxnMarkerPartitionResult(partition_index=number, error_code=error_code)
                            for number in topic.partition_indexes
                        ),
                    )
                    for topic in each.topics
                ),
            )
            for each in message.markers
        )
    )
