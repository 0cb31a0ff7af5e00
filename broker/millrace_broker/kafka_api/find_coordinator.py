"""Kafka's FindCoordinator call.

The call returns the brokers that coordinate groups and transactional ids.
"""

from __future__ import annotations

from typing import Final

from millrace.kafka_protocol.calls.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.find_coordinator import handle as find
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of, text_of

_WITH_BATCHES: Final = 4
_FOUND: Final = "NONE"
"""Kafka's text of an answer without an error, before version 4."""
_NO_NODE: Final = pb.BrokerNode(node_id=-1, port=-1)


async def handle(message: FindCoordinatorRequest, request: KafkaRequest) -> FindCoordinatorResponse:
    """Find the coordinator of each key; before version 4 there is one key."""
    keys = message.coordinator_keys if request.version >= _WITH_BATCHES else (message.key,)
    wanted = pb.FindCoordinatorRequest(keys=keys)
    wanted.key_type = message.key_type  # type: ignore[assignment]  # the handler checks the number
    answer = await find(request.broker, wanted, request.context)
    has_batches = request.version >= _WITH_BATCHES
    found = tuple(_coordinator(each, "" if has_batches else _FOUND) for each in answer.coordinators)
    return FindCoordinatorResponse(coordinators=found) if has_batches else _single(found[0])


def _coordinator(result: pb.FindCoordinatorResponse.Coordinator, text_if_found: str) -> Coordinator:
    node = _NO_NODE if result.HasField("error") else result.node
    return Coordinator(
        key=result.key,
        node_id=node.node_id,
        host=node.host,
        port=node.port,
        error_code=code_of(result.error),
        error_message=text_of(result.error, text_if_found),
    )


def _single(found: Coordinator) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def refuse(message: FindCoordinatorRequest, version: int, error_code: int) -> FindCoordinatorResponse:
    """Answer each key with the error."""
    keys = message.coordinator_keys if version >= _WITH_BATCHES else (message.key,)
    failed = tuple(
        Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error_code, error_message=None) for key in keys
    )
    return FindCoordinatorResponse(coordinators=failed) if version >= _WITH_BATCHES else _single(failed[0])
