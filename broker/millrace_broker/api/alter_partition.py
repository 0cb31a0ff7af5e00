"""Handler of AlterPartition, a leader's request to change an ISR (KIP-497)."""

from __future__ import annotations

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.broker_calls import check_is_broker
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.cluster.wire import isr_answers_message, read_isr_changes


@authorized("AlterPartition")
async def handle(
    broker: Broker, request: pb.AlterPartitionRequest, context: RequestContext
) -> pb.AlterPartitionResponse:
    """Answer with each partition's current ISR or its error.

    Raises ``NotControllerError``, ``StaleBrokerEpochError``.
    """
    check_is_broker(broker, context)
    changes = read_isr_changes(request)
    answers = await broker.member.controlling.ask(
        "alter ISRs", lambda controller: controller.alter_isrs(request.broker_id, request.broker_epoch, changes)
    )
    return isr_answers_message(answers)
