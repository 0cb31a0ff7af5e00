"""Handler of ControlledShutdown, which moves leadership away from a stopping broker."""

from __future__ import annotations

from millrace.partitions import numbers_by_topic
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.broker_calls import check_is_broker
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker


@authorized("ControlledShutdown")
async def handle(
    broker: Broker, request: pb.ControlledShutdownRequest, context: RequestContext
) -> pb.ControlledShutdownResponse:
    """Move the leaders, and answer with the partitions that no other broker can lead.

    Raises ``NotControllerError``, ``StaleBrokerEpochError``.
    """
    check_is_broker(broker, context)
    remaining = await broker.member.controlling.ask(
        "shut down", lambda controller: controller.shut_down(request.broker_id, request.broker_epoch)
    )
    return pb.ControlledShutdownResponse(
        remaining=[
            pb.TopicPartitions(name=name, partitions=numbers) for name, numbers in numbers_by_topic(remaining).items()
        ]
    )
