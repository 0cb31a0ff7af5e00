"""Preparation of what consumers will probably fetch next.

Kafka's consumers from version 4 on ask a broker again only when they have passed on all its records. Meanwhile the
broker reads and converts what they will fetch then. Nothing is prepared for ``READ_COMMITTED``, because such a fetch
searches the indexes of transactions in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from millrace.records import end_of_batches, read_header
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.fetched_rows import ResponseRows
from millrace_broker.kafka_api.row_batches import WantedOffsets
from millrace_broker.log.read_ahead import NextRead
from millrace_broker.metadata import TopicInfo


class SentRecords(NamedTuple):
    """Rows of a partition in a response.

    The fetch could read up to ``end_offset`` (exclusive) and at most ``max_bytes``.
    """

    topic: TopicInfo
    partition: int
    records: bytes | memoryview
    end_offset: int
    max_bytes: int


def prepare(request: KafkaRequest, rows: ResponseRows, sent: Sequence[SentRecords]) -> None:
    """Read and convert what follows ``sent``, in the background, after the response is on its way."""
    if sent:
        request.broker.executors.begin(_prepare(request, rows, sent))


async def _prepare(request: KafkaRequest, rows: ResponseRows, sent: Sequence[SentRecords]) -> None:
    broker, columnar = request.broker, []
    for each in sent:
        offset = end_of_batches(each.records, each.end_offset)
        log = broker.logs.get(each.topic.name, each.partition)
        if log is None or offset >= each.end_offset:
            continue
        records = await broker.read_ahead.read(NextRead(log, offset, each.end_offset, each.max_bytes))
        if records and read_header(records).is_columnar:
            columnar.append(rows.read(each.topic, each.partition, records, WantedOffsets(offset)))
        await asyncio.sleep(0)  # others have their turn between two reads
    if columnar:
        await request.state.row_batches.convert_ahead(broker.executors, columnar)
