"""Handler of FindCoordinator for groups, transactional ids and share groups.

A key belongs to one partition of the internal topic that holds the state. The leader of that partition is the key's
coordinator.
"""

from __future__ import annotations

from typing import Final

from millrace.errors import CoordinatorNotAvailableError, InvalidGroupIdError, InvalidRequestError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.coordinators import (
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
    partition_of,
)
from millrace_broker.metadata import LiveBroker
from millrace_broker.runtime.turns import Turns

_TOPICS: Final = {pb.GROUP: OFFSETS_TOPIC, pb.TRANSACTION: TRANSACTIONS_TOPIC, pb.SHARE: SHARE_STATE_TOPIC}


@authorized("FindCoordinator")
async def handle(
    broker: Broker, request: pb.FindCoordinatorRequest, context: RequestContext
) -> pb.FindCoordinatorResponse:
    """Find the coordinator of each key. Create the internal topic if it does not exist."""
    if request.key_type not in _TOPICS:
        raise InvalidRequestError(
            f"key_type {request.key_type}: expected 0 (group), 1 (transaction) or 2 (share group)"
        )
    response, turns = pb.FindCoordinatorResponse(), Turns()
    for key in request.keys:
        await turns.next()
        result = response.coordinators.add(key=key)
        try:
            node = await _find(broker, request.key_type, key, context.listener_name)
            host, port = node.endpoints[context.listener_name]
            result.node.CopyFrom(pb.BrokerNode(node_id=node.broker_id, host=host, port=port, rack=node.rack))
        except Exception as error:  # noqa: BLE001 - the key's error; unexpected errors are logged
            result.error.CopyFrom(error_message(error))
    return response


async def _find(broker: Broker, kind: pb.CoordinatorType.ValueType, key: str, listener: str) -> LiveBroker:
    if not key and kind == pb.TRANSACTION:
        raise InvalidRequestError("the transactional id is empty: set transactional.id")
    if not key and kind == pb.SHARE:  # as in Kafka, consumers without group management may have an empty group id
        raise InvalidGroupIdError("the group id is empty: set group.id")
    topic = await broker.internal_topics.ensure(_TOPICS[kind])
    partition = topic.partitions[partition_of(key, len(topic.partitions))]
    for node in broker.member.live_brokers():
        if node.broker_id == partition.leader:
            if listener not in node.endpoints:
                raise CoordinatorNotAvailableError(
                    f"broker {node.broker_id} coordinates {key} and has no listener {listener}: give all brokers of "
                    "the cluster the same listeners"
                )
            return node
    raise CoordinatorNotAvailableError(f"{topic.name}-{partition.partition} has no leader now: try again")
