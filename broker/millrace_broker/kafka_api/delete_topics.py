"""Kafka's DeleteTopics call, which deletes or refuses each topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from millrace.acls import AclOperation, ResourceType
from millrace.errors import InvalidRequestError, MillraceError, TopicAuthorizationError, TopicDeletionDisabledError
from millrace.kafka_protocol.calls.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from millrace.kafka_protocol.fields import NIL_UUID
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access import Need, access_for
from millrace_broker.api.delete_topics import handle as delete
from millrace_broker.broker import Broker
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of, text_of
from millrace_broker.kafka_api.topics import name_of

_WITH_IDS: Final = 6
_WITH_DELETION_ERROR: Final = 3
"""First version whose clients know the error TOPIC_DELETION_DISABLED (KIP-322)."""
_WITH_QUOTA_ERROR: Final = 5
"""First version whose clients know the error THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


async def handle(message: DeleteTopicsRequest, request: KafkaRequest) -> DeleteTopicsResponse:
    """Delete the topics, named by name or, from version 6 on, by id."""
    results = []
    names = []
    ids: dict[str, UUID] = {}
    for topic in _wanted(message, request.version):
        try:
            names.append(_name(request.broker, topic))
            if topic.name is None:
                ids[names[-1]] = topic.topic_id
        except MillraceError as error:
            results.append(_failed(topic, code_of(error), error.message))
    times = Counter(names)
    results += [_twice(name, ids) for name in times if times[name] > 1]
    asked = pb.DeleteTopicsRequest(
        names=[name for name in times if times[name] == 1], timeout_ms=max(0, message.timeout_ms)
    )
    request.refuse_mutations(_WITH_QUOTA_ERROR)
    answer = await delete(request.broker, asked, request.context)
    results += [_result(each, ids, request) for each in answer.results]
    return DeleteTopicsResponse(throttle_time_ms=0, responses=tuple(results))


def _name(broker: Broker, topic: DeleteTopicState) -> str:
    """Return the name of a topic. Raises ``InvalidRequestError``, ``UnknownTopicIdError``."""
    if (topic.name is None) == (topic.topic_id == NIL_UUID):
        raise InvalidRequestError("a topic is deleted by its name or by its id: set one of them")
    return name_of(broker.catalog, topic.name, topic.topic_id)


def _twice(name: str, ids: Mapping[str, UUID]) -> DeletableTopicResult:
    """Return the result of a topic that the request names twice. The name of an id is not disclosed."""
    topic = DeleteTopicState(topic_id=ids[name]) if name in ids else DeleteTopicState(name=name)
    return _failed(topic, InvalidRequestError.code, "the topic is in the request twice: name it once")


def _result(
    result: pb.DeleteTopicsResponse.Result, ids: Mapping[str, UUID], request: KafkaRequest
) -> DeletableTopicResult:
    error_code = code_of(result.error)
    if error_code == TopicDeletionDisabledError.code and request.version < _WITH_DELETION_ERROR:
        error_code = InvalidRequestError.code
    if error_code == TopicAuthorizationError.code and result.name in ids:
        access = access_for(request.broker, request.context)
        need = Need(AclOperation.DESCRIBE, ResourceType.TOPIC, result.name)
        if access is not None and not access.allows(need, is_logged=False):  # the name of an id is not disclosed
            return DeletableTopicResult(name=None, topic_id=ids[result.name], error_code=error_code)
    return DeletableTopicResult(
        name=result.name,
        topic_id=UUID(bytes=result.topic_id) if result.topic_id else ids.get(result.name, NIL_UUID),
        error_code=error_code,
        error_message=text_of(result.error),
    )


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
