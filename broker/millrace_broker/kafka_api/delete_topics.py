"""DeleteTopics: delete or refuse each topic."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from millrace.errors import UnknownTopicIdError
from millrace.kafka_protocol.calls.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from millrace.kafka_protocol.fields import NIL_UUID
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.delete_topics import handle as delete
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of, text_of
from millrace_broker.kafka_api.topics import name_of

_WITH_IDS: Final = 6


async def handle(message: DeleteTopicsRequest, request: KafkaRequest) -> DeleteTopicsResponse:
    """Delete the topics, named by name or, from version 6 on, by id."""
    results = []
    names = []
    for topic in _wanted(message, request.version):
        try:
            names.append(name_of(request.broker, topic.name, topic.topic_id))
        except UnknownTopicIdError as error:
            results.append(_failed(topic, code_of(error), error.message))
    asked = pb.DeleteTopicsRequest(names=names, timeout_ms=max(0, message.timeout_ms))
    answer = await delete(request.broker, asked, request.context)
    results += [
        DeletableTopicResult(
            name=each.name,
            topic_id=UUID(bytes=each.topic_id) if each.topic_id else NIL_UUID,
            error_code=code_of(each.error),
            error_message=text_of(each.error),
        )
        for each in answer.results
    ]
    return DeleteTopicsResponse(throttle_time_ms=0, responses=tuple(results))


def _wanted(message: DeleteTopicsRequest, version: int) -> tuple[DeleteTopicState, ...]:
    if version >= _WITH_IDS:
        return message.topics
    return tuple(DeleteTopicState(name=name) for name in message.topic_names)


def _failed(topic: DeleteTopicState, error_code: int, text: str | None = None) -> DeletableTopicResult:
    return DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=error_code, error_message=text)


def refuse(message: DeleteTopicsRequest, version: int, error_code: int) -> DeleteTopicsResponse:
    """Answer each topic with the error."""
    failed = tuple(_failed(topic, error_code) for topic in _wanted(message, version))
    return DeleteTopicsResponse(throttle_time_ms=0, responses=failed)
