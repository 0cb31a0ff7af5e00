"""Direct reads of the broker's segment files on the same machine.

The files are mapped into memory. The leader names the files of the readable records (``LocateRange``: up to the high
watermark or last stable offset, with the aborted transactions). If a file cannot be opened here, or is not the right
one, fetches continue over the network, and the consumer tries again after ``metadata.max.age.ms``. Only a partition
with much to read is read directly, because a fetch can wait for the newest records.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Final

from millrace.clients.consuming.connections import ConsumerConnections
from millrace.clients.consuming.partition import Fetched, PartitionState
from millrace.clients.offsets import isolation_number
from millrace.clients.ranges import located_range
from millrace.clients.signal import Signal
from millrace.clients.transport import unary
from millrace.config.client import ConsumerConfig
from millrace.protocol import millrace_pb2 as pb
from millrace.segments.direct import map_located

logger = logging.getLogger(__name__)

_LOCATE_RANGE: Final = unary(lambda stub: stub.LocateRange)
_EXTENT_BYTES: Final = 32 * 2**20
"""Bytes of one mapping."""
_WORTH_BYTES: Final = 256 * 2**10
"""Below this size a fetch reads the data, and waits for more."""


class DirectReader:
    """Locator and mapper of segment files for one consumer.

    It runs in the caller's thread. Other threads only store responses.
    """

    def __init__(self, config: ConsumerConfig, connections: ConsumerConnections, signal: Signal) -> None:
        self._config = config
        self._connections = connections
        self._signal = signal
        self._answers: deque[tuple[PartitionState, int, pb.LocateRangeResponse | None]] = deque()
        self.mapped_bytes = 0

    def may_read(self, state: PartitionState, now: float) -> bool:
        """Return whether to look for the partition's files before fetching."""
        return state.may_be_here and now >= state.not_here_until

    def locate(self, state: PartitionState, address: str) -> None:
        """Ask the leader for the location of the records from the fetch offset on."""
        request = pb.LocateRangeRequest(
            topic=state.partition.topic,
            partition=state.partition.partition,
            start_offset=state.fetch_offset,
            end_offset=-1,
            split_bytes=_EXTENT_BYTES,
            isolation_level=isolation_number(self._config.isolation_level),
        )
        state.in_flight = True
        generation = state.generation
        self._connections.begin(
            _LOCATE_RANGE,
            request,
            address=address,
            timeout_s=self._config.request_timeout_ms / 1000,
            on_done=lambda response, error: self._on_done(state, generation, response),
        )

    def _on_done(self, state: PartitionState, generation: int, response: pb.LocateRangeResponse | None) -> None:
        self._answers.append((state, generation, response))
        self._signal.ring()

    def take_in(self) -> None:
        """Process the location responses. After an error the next fetch reports the cause."""
        while self._answers:
            state, generation, response = self._answers.popleft()
            if state.generation != generation:
                continue
            state.in_flight = state.may_be_here = False
            if response is None:
                continue
            located = located_range(response)
            state.high_watermark = located.high_watermark
            state.last_stable_offset = located.last_stable_offset
            state.log_start_offset = located.log_start_offset
            size_bytes = sum(extent.end_position - extent.start_position for extent in located.extents)
            if size_bytes < _WORTH_BYTES:
                continue
            state.located_topic_id = located.topic_id
            state.located_aborted = located.aborted_transactions
            state.located.extend(located.extents)
            self.map_next(state)

    def map_next(self, state: PartitionState) -> None:
        """Map the next extent of a partition, or fall back to fetches."""
        extent = state.located.popleft()
        mapped = map_located(
            extent.path,
            extent.start_position,
            extent.end_position,
            start_offset=extent.start_offset,
            topic_id=state.located_topic_id,
        )
        if isinstance(mapped, str):
            logger.debug(
                "%s: no direct read from offset %d on, so the consumer reads over the network: %s",
                state.partition,
                state.fetch_offset,
                mapped,
            )
            state.located.clear()
            state.not_here_until = time.monotonic() + self._config.metadata_max_age_ms / 1000
            return
        self.mapped_bytes += mapped.size
        state.fetch_offset = extent.end_offset
        state.waiting.append(
            Fetched(
                data=mapped,
                next_offset=extent.end_offset,
                end_offset=extent.end_offset,
                held_bytes=0,
                aborted=state.located_aborted,
            )
        )
