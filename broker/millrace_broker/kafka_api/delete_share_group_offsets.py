"""Kafka's DeleteShareGroupOffsets call (KIP-932).

The call deletes the offsets of topics in a share group without members.
"""

from __future__ import annotations

from millrace.errors import MillraceError
from millrace.kafka_protocol.calls.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import NONE, code_of, text_of
from millrace_broker.kafka_api.share_coordinators import ask
from millrace_broker.kafka_api.topics import id_of, visible_id


async def handle(message: DeleteShareGroupOffsetsRequest, request: KafkaRequest) -> DeleteShareGroupOffsetsResponse:
    """Delete the offsets, each topic separately."""
    wanted = pb.DeleteShareGroupOffsetsRequest(
        group_id=message.group_id, topics=[each.topic_name for each in message.topics]
    )
    ids = {name: id_of(request.broker.catalog, name) for name in wanted.topics}  # a topic may be deleted meanwhile
    try:
        answer: pb.DeleteShareGroupOffsetsResponse = await ask(
            request, message.group_id, "DeleteShareGroupOffsets", wanted
        )
    except MillraceError as error:
        return _failed(code_of(error), error.message)
    return DeleteShareGroupOffsetsResponse(
        throttle_time_ms=0,
        error_code=NONE,
        responses=tuple(
            DeleteShareGroupOffsetsResponseTopic(
                topic_name=each.name,
                topic_id=visible_id(ids[each.name], [each.error]),
                error_code=code_of(each.error),
                error_message=text_of(each.error),
            )
            for each in answer.topics
        ),
    )


def _failed(error_code: int, text: str | None) -> DeleteShareGroupOffsetsResponse:
    return DeleteShareGroupOffsetsResponse(throttle_time_ms=0, error_code=error_code, error_message=text, responses=())


def refuse(message: DeleteShareGroupOffsetsRequest, version: int, error_code: int) -> DeleteShareGroupOffsetsResponse:
    """Answer with the error."""
    return _failed(error_code, None)
