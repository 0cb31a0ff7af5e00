"""Batches of a topic as rows, for Kafka's consumers and share consumers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from millrace_broker.api.common.record_checks import schema_of_topic
from millrace_broker.api.common.typed_rows import rows_of_columns
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.row_batches import (
    OPAQUE_ROWS,
    ReadBatches,
    ResponseRoom,
    RowConversion,
    WantedOffsets,
)
from millrace_broker.metadata import TopicInfo


class ResponseRows:
    """Rows of a response's partitions, as many as its limit allows."""

    def __init__(self, request: KafkaRequest, max_bytes: int) -> None:
        """``max_bytes`` is the limit of the response."""
        self._request: Final = request
        self._max_bytes: Final = max_bytes
        self._room: Final = ResponseRoom(request.context.response_lease, max_bytes)

    def read(self, topic: TopicInfo, partition: int, records: bytes, wanted: WantedOffsets) -> ReadBatches:
        """Return the batches of a partition with their conversion."""
        conversion = _conversion(topic, self._request)
        return ReadBatches(topic.topic_id.bytes, partition, records, conversion, wanted)

    async def convert(self, reads: Sequence[ReadBatches]) -> None:
        """Convert the columnar batches of several partitions together, as far as they have room.

        ``of`` converts the others one by one.
        """
        if not reads:
            return
        bytes_max = self._room.begin_conversion()
        if bytes_max is not None:
            await self._request.state.row_batches.convert(self._request.broker.executors, reads, bytes_max)
            self._room.end_conversion()

    async def of(
        self,
        topic: TopicInfo,
        partition: int,
        records: bytes,
        *,
        wanted: WantedOffsets,
        partition_max_bytes: int | None = None,
    ) -> bytes | memoryview:
        """Return whole batches as rows, up to the limits. Batches of rows are not copied if there are no others.

        Raises the errors of the conversion, such as ``UnsupportedForFormatError`` for batches of a typed topic that has
        no format for Kafka clients.
        """
        if not records:
            return records
        self._room.begin_partition(self._max_bytes if partition_max_bytes is None else partition_max_bytes)
        pieces = await self._request.state.row_batches.as_rows(
            self._request.broker.executors, self.read(topic, partition, records, wanted), room=self._room
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

    def rows_of(batch: memoryview, first_offset: int) -> Iterator[bytes]:
        schema_of = partial(schema_of_topic, topic)
        return rows_of_columns(codecs.of(topic), schema_of, batch, first_offset)

    return RowConversion(form, rows_of)
