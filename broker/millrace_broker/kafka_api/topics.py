"""Look-up of topics by name or by id.

Newer versions of Kafka's calls name topics by id.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from millrace.errors import TopicAuthorizationError, UnknownTopicIdError
from millrace.kafka_protocol.fields import NIL_UUID
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.metadata import TopicCatalog


def name_of(catalog: TopicCatalog, name: str | None, topic_id: UUID, *, has_id: bool = False) -> str:
    """Return the name of a topic. Raises ``UnknownTopicIdError`` if no topic has the id.

    ``has_id`` tells that the call's version names topics by id only, so that Kafka's nil id is an unknown id.
    """
    if name or (topic_id == NIL_UUID and not has_id):
        return name or ""
    found = catalog.topic_of_id(topic_id)
    if found is None:
        raise UnknownTopicIdError(f"no topic has the id {topic_id}: refresh the metadata")
    return found.name


def id_of(catalog: TopicCatalog, name: str) -> UUID:
    """Return the id of a topic; Kafka's nil id if there is no such topic."""
    topic = catalog.topics.get(name)
    return NIL_UUID if topic is None else topic.topic_id


def visible_id(topic_id: UUID, errors: Iterable[pb.Error]) -> UUID:
    """Return the id of a topic; the nil id if the errors of its answer say that the client may not know it."""
    return NIL_UUID if any(error.code == TopicAuthorizationError.code for error in errors) else topic_id


def read_id(topic_id: bytes) -> UUID:
    """Return a topic's id from a message of a handler, where empty bytes stand for Kafka's nil id."""
    return UUID(bytes=topic_id) if topic_id else NIL_UUID
