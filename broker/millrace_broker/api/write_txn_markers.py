"""Handler of WriteTxnMarkers, which appends transaction markers to partitions led here.

Transaction coordinators of other brokers send them. Administrators send them to end a hanging transaction, which no
coordinator knows. As in Kafka, they need ALTER on the cluster.
"""

from __future__ import annotations

from typing import Final

from millrace.acls import AclOperation, ResourceType
from millrace.config.integers import SHORT_MAX
from millrace.errors import InvalidProducerEpochError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access import Need, access_for
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.broker_calls import check_is_broker
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.runtime.turns import Turns
from millrace_broker.transactions import TransactionMarker

_ALTER: Final = Need(AclOperation.ALTER, ResourceType.CLUSTER)


@authorized("WriteTxnMarkers")
async def handle(
    broker: Broker, request: pb.WriteTxnMarkersRequest, context: RequestContext
) -> pb.WriteTxnMarkersResponse:
    """Append the markers, each partition separately."""
    access = access_for(broker, context)
    if access is None or not access.would_allow(_ALTER):
        check_is_broker(broker, context)
    response, turns = pb.WriteTxnMarkersResponse(), Turns()
    for wanted in request.markers:
        result = response.results.add(producer_id=wanted.producer_id)
        marker = TransactionMarker(
            producer_id=wanted.producer_id,
            epoch=wanted.producer_epoch,
            committed=wanted.committed,
            coordinator_epoch=wanted.coordinator_epoch,
            version=wanted.transaction_version,
        )
        for topic in wanted.topics:
            errors = result.topics.add(name=topic.name)
            for number in topic.partitions:
                await turns.next()
                answer = errors.partitions.add(partition=number)
                try:
                    _check_epoch(wanted.producer_epoch)
                    await broker.transactions.write_marker((topic.name, number), marker)
                except Exception as error:  # noqa: BLE001 - the partition's error; unexpected errors are logged
                    answer.error.CopyFrom(error_message(error))
    return response


def _check_epoch(epoch: int) -> None:
    """Raise ``InvalidProducerEpochError`` for an epoch that no record can have."""
    if not 0 <= epoch <= SHORT_MAX:
        raise InvalidProducerEpochError(f"the producer epoch {epoch} does not exist: epochs are 0 to {SHORT_MAX}")
