"""Preparation of what consumers will probably fetch next.

Kafka's consumers from version 4 on ask a broker again only when they have passed on all its records. Meanwhile the
broker reads and converts what they will fetch then. Nothing is prepared for ``READ_COMMITTED``, because such a fetch
searches the indexes of transactions in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from millrace.errors import StorageError
from millrace.records import read_header
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.fetched_rows import ResponseRows
from millrace_broker.kafka_api.row_batches import WantedOffsets
from millrace_broker.log.read_ahead import NextRead
from millrace_broker.metadata import TopicInfo


class NextFetch(NamedTuple):
    """The records of a partition after those of a response.

    They are read from ``offset`` to ``end_offset`` (exclusive), at most ``max_bytes`` of them.
    """

    topic: TopicInfo
    partition: int
    offset: int
    end_offset: int
    max_bytes: int


def prepare(request: KafkaRequest, rows: ResponseRows, fetches: Sequence[NextFetch]) -> None:
    """Read and convert records in the background, after the response is on its way."""
    if fetches:
        request.broker.executors.begin(_prepare(request, rows, fetches))


async def _prepare(request: KafkaRequest, rows: ResponseRows, fetches: Sequence[NextFetch]) -> None:
    broker, columnar = request.broker, []
    for each in fetches:
        try:
            log = broker.logs.get(each.topic.name, each.partition)
        except StorageError:  # offline; the fetch reports it
            continue
        if log is None:
            continue
        records = await broker.read_ahead.read(NextRead(log, each.offset, each.end_offset, each.max_bytes))
        if records and read_header(records).is_columnar:
            columnar.append(rows.read(each.topic, each.partition, records, WantedOffsets(each.offset)))
        await asyncio.sleep(0)  # others have their turn between two reads
    if columnar:
        await request.state.row_batches.convert_ahead(broker.executors, columnar)
