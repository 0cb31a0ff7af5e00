"""Codecs of the records of typed topics, by topic.

Invariants
* A codec fits the topic's metadata for which it was asked. Codecs of earlier metadata are replaced.
* Any thread may ask. The codecs are shared between threads, and the least recently used are dropped.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Final

from millrace.config.topic import KafkaValueFormat, TopicConfig
from millrace.coordination.nodes import PayloadSchemaNode
from millrace.errors import EnvironmentProblemError, SchemaError, UnknownSchemaError, UnsupportedForFormatError
from millrace_broker.metadata.topics import TopicInfo

if TYPE_CHECKING:
    from millrace.payloads import PayloadFormat, PayloadSchema, RecordCodec

_CODECS_MAX: Final = 256


def payload_format_of(config: TopicConfig) -> PayloadFormat:
    """Return the format of a topic's records for Kafka clients."""
    from millrace.payloads import PayloadFormat

    return PayloadFormat(
        value=config.kafka_value_format,
        framing=config.kafka_value_framing,
        schema_id=config.kafka_value_schema_id,
        message=config.kafka_value_message,
        key=config.kafka_key_format,
    )


class RecordCodecs:
    """Codecs of the topics whose records were converted most recently."""

    def __init__(self, payload_schemas: Callable[[], Mapping[int, PayloadSchemaNode]]) -> None:
        """Create codecs. ``payload_schemas`` returns the registered schemas by their ids."""
        self._payload_schemas: Final = payload_schemas
        self._codecs: Final[OrderedDict[uuid.UUID, tuple[TopicInfo, RecordCodec]]] = OrderedDict()
        self._lock: Final = Lock()

    def of(self, topic: TopicInfo) -> RecordCodec:
        """Return the codec of a typed topic. Making one may take long, because it may run a compiler.

        Raises ``UnsupportedForFormatError`` if the topic has no format for Kafka clients, or one that cannot be used.
        """
        with self._lock:
            known = self._codecs.get(topic.topic_id)
            if known is not None and known[0] is topic:
                self._codecs.move_to_end(topic.topic_id)
                return known[1]
        codec = self._made(topic)
        with self._lock:
            self._codecs[topic.topic_id] = topic, codec
            if len(self._codecs) > _CODECS_MAX:
                self._codecs.popitem(last=False)
        return codec

    def _made(self, topic: TopicInfo) -> RecordCodec:
        if topic.config.kafka_value_format is KafkaValueFormat.NONE:
            raise UnsupportedForFormatError(
                f"topic {topic.name} is typed and has no format for records of Kafka clients: set kafka.value.format "
                "to json, avro, protobuf or raw, or use a client of millrace"
            )
        from millrace.payloads import RecordCodec
        from millrace.schemas import deserialize_schema

        try:
            return RecordCodec(
                topic.schemas[-1].schema,
                topic.key_columns,
                payload_format_of(topic.config),
                self._payload_schema,
                deserialize_schema(topic.read_schema) if topic.read_schema else None,
            )
        except (SchemaError, UnknownSchemaError, EnvironmentProblemError) as error:
            raise UnsupportedForFormatError(
                f"records of topic {topic.name} cannot be converted for Kafka clients: {error.message}"
            ) from error

    def _payload_schema(self, schema_id: int) -> PayloadSchema:
        """Return a registered schema. Raises ``UnknownSchemaError``."""
        from millrace.payloads import PayloadKind, PayloadRegistry, RegisteredSchema, SchemaReference

        nodes = self._payload_schemas()
        if schema_id not in nodes:  # a producer may name many, and the registry is not made for each
            nodes = {}
        return PayloadRegistry.of(
            RegisteredSchema(
                id=number,
                kind=PayloadKind(node.kind.lower()),
                text=node.text,
                references=tuple(
                    SchemaReference(name=name, subject=subject, version=version)
                    for name, subject, version in node.references
                ),
                subjects=node.subjects,
            )
            for number, node in nodes.items()
        ).payload_schema(schema_id)
