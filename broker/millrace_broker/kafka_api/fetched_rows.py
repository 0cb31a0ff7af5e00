"""Batches of a topic as rows, for Kafka's consumers and share consumers."""

from __future__ import annotations

from millrace_broker.api.common.record_checks import schema_of_topic
from millrace_broker.api.common.typed_rows import rows_of_columns
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.row_batches import OPAQUE_ROWS, RowConversion
from millrace_broker.metadata import TopicInfo


async def fetched_rows(request: KafkaRequest, topic: TopicInfo, partition: int, records: bytes) -> bytes | memoryview:
    """Return whole batches as rows. Batches of rows are not copied if there are no others.

    Raises the errors of the conversion, such as ``UnsupportedForFormatError`` for batches of a typed topic that has no
    format for Kafka clients.
    """
    if not records:
        return records
    pieces = await request.state.row_batches.as_rows(
        request.broker.executors, topic.topic_id.bytes, partition, records, _conversion(topic, request)
    )
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _conversion(topic: TopicInfo, request: KafkaRequest) -> RowConversion:
    """Return the conversion of the topic's columnar batches."""
    if not topic.is_typed:
        return OPAQUE_ROWS
    codecs, config = request.broker.record_codecs, topic.config
    form = (
        topic.schema_id,
        config.kafka_value_format,
        config.kafka_value_framing,
        config.kafka_value_schema_id,
        config.kafka_value_message,
        config.kafka_key_format,
    )

    def rows_of(batch: memoryview) -> bytes:
        return rows_of_columns(codecs.of(topic), lambda schema_id: schema_of_topic(topic, schema_id), batch)

    return RowConversion(form, rows_of)
