"""Conversion of the brokers' messages about ranges of offsets."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from millrace.clients.model import LocatedExtent, LocatedRange
from millrace.protocol import millrace_pb2 as pb
from millrace.records import AbortedTransaction


def aborted_transactions(messages: Iterable[pb.AbortedTransaction]) -> tuple[AbortedTransaction, ...]:
    """Convert the aborted transactions that overlap a read or located range."""
    return tuple(AbortedTransaction(each.producer_id, each.first_offset, each.last_offset) for each in messages)


def located_range(response: pb.LocateRangeResponse) -> LocatedRange:
    """Convert the response of LocateRange."""
    return LocatedRange(
        topic_id=uuid.UUID(bytes=response.topic_id),
        log_start_offset=response.log_start_offset,
        high_watermark=response.high_watermark,
        last_stable_offset=response.last_stable_offset,
        extents=tuple(
            LocatedExtent(
                segment_base_offset=extent.segment_base_offset,
                start_offset=extent.start_offset,
                end_offset=extent.end_offset,
                start_position=extent.start_position,
                end_position=extent.end_position,
                path=extent.path,
                uri=extent.uri,
            )
            for extent in response.extents
        ),
        aborted_transactions=aborted_transactions(response.aborted_transactions),
    )
