"""Keeping data coming: fetch requests to the leaders of assigned partitions, ahead of what the caller has read.

Invariants:

- A partition is in at most one request at a time, and is asked for again when at most one response of it waits.
- What a response brought is used only while the partition still stands where it was asked for: ``seek`` makes what
  is under way worthless.
- Responses arrive in threads of grpc's, which only put them down; everything else happens in the caller's thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import grpc
import pyarrow as pa

from millrace.clients.connections import Connections, backoff_s
from millrace.clients.metadata import MetadataCache
from millrace.clients.model import TopicPartition
from millrace.clients.offsets import isolation_number
from millrace.config.client import ConsumerConfig
from millrace.errors import (
    BrokerUnavailableError,
    MillraceError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    error_of,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.records import scan_headers

_LOOKUP_MS_MIN: Final = 100
"""What finding a leader may take even in a poll that does not wait."""

logger = logging.getLogger(__name__)
_TIMEOUT_SLACK_S: Final = 5.0
"""What a fetch may take beyond ``fetch.max.wait.ms`` before its connection is given up, at least."""


@dataclass(slots=True)
class Fetched:
    """Whole batches of one partition; the first may begin before what was asked for."""

    data: pa.Buffer
    next_offset: int


@dataclass(slots=True)
class PartitionState:
    """Where a consumer is in one partition. ``position`` is the next offset to hand out, ``None`` until it is known."""

    partition: TopicPartition
    position: int | None = None
    reset_to: str | int | None = None
    generation: int = 0
    fetch_offset: int = 0
    waiting: deque[Fetched] = field(default_factory=deque)
    in_flight: bool = False
    retry_at: float = 0.0
    attempts: int = 0
    unavailable_since: float | None = None
    high_watermark: int = -1
    error: MillraceError | None = None

    def move_to(self, offset: int) -> None:
        """Go on from ``offset``, forgetting what was fetched."""
        self.position = self.fetch_offset = offset
        self.reset_to = None
        self.generation += 1
        self.in_flight = False
        self.waiting.clear()
        self.error = None


_Asked = list[tuple[PartitionState, int]]


class Fetcher:
    """Sends fetches and takes their responses in."""

    def __init__(self, config: ConsumerConfig, connections: Connections, metadata: MetadataCache) -> None:
        self._config = config
        self._connections = connections
        self._metadata = metadata
        self._condition = threading.Condition()
        self._answers: deque[tuple[str, _Asked, pb.FetchResponse | MillraceError]] = deque()
        self._calls: set[grpc.Future[pb.FetchResponse]] = set()

    def send(self, states: Iterable[PartitionState], timeout_ms: int) -> None:
        """Ask for what follows in every partition that has little left; finding leaders may take ``timeout_ms``."""
        now = time.monotonic()
        by_address: dict[str, _Asked] = {}
        for state in states:
            if (
                state.in_flight
                or state.position is None
                or state.error
                or state.retry_at > now
                or len(state.waiting) > 1
            ):
                continue
            try:
                address = self._metadata.leader_address(state.partition, max(timeout_ms, _LOOKUP_MS_MIN))
            except MillraceError as error:
                self._retry_later(state, error)
                continue
            by_address.setdefault(address, []).append((state, state.generation))
        for address, asked in by_address.items():
            self._fetch(address, asked)

    def _fetch(self, address: str, asked: _Asked) -> None:
        topics: dict[str, pb.FetchRequest.TopicFetch] = {}
        for state, _ in asked:
            name = state.partition.topic
            topic = topics.setdefault(name, pb.FetchRequest.TopicFetch(name=name))
            topic.partitions.add(
                partition=state.partition.partition,
                fetch_offset=state.fetch_offset,
                partition_max_bytes=self._config.max_partition_fetch_bytes,
                current_leader_epoch=-1,
            )
            state.in_flight = True
        request = pb.FetchRequest(
            replica_id=-1,
            max_wait_ms=self._config.fetch_max_wait_ms,
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=self._config.fetch_max_bytes,
            isolation_level=isolation_number(self._config.isolation_level),
            topics=topics.values(),
        )
        wait_s = self._config.fetch_max_wait_ms / 1000
        timeout_s = max(self._config.request_timeout_ms / 1000, wait_s + _TIMEOUT_SLACK_S)
        call = self._connections.stub(address).Fetch.future(request, timeout=timeout_s)
        self._calls.add(call)
        call.add_done_callback(lambda done: self._on_done(address, asked, done))

    def _on_done(self, address: str, asked: _Asked, call: grpc.Future[pb.FetchResponse]) -> None:
        answer: pb.FetchResponse | MillraceError
        try:
            answer = call.result()
        except grpc.RpcError as error:
            answer = self._connections.explain(error, address)
        except (grpc.FutureCancelledError, grpc.FutureTimeoutError):
            answer = BrokerUnavailableError(f"the fetch from {address} was cancelled")
        with self._condition:
            self._calls.discard(call)
            self._answers.append((address, asked, answer))
            self._condition.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Wait until a response is there, or ``timeout_s`` seconds."""
        with self._condition:
            self._condition.wait_for(lambda: bool(self._answers), timeout_s)

    def take_in(self) -> None:
        """Give the responses that have come to their partitions."""
        while self._answers:
            address, asked, answer = self._answers.popleft()
            if isinstance(answer, MillraceError):
                for state, generation in asked:
                    if state.generation == generation:
                        state.in_flight = False
                        self._failed(state, answer)
                continue
            records = {
                TopicPartition(topic.name, partition.partition): partition
                for topic in answer.topics
                for partition in topic.partitions
            }
            for state, generation in asked:
                if state.generation == generation:
                    state.in_flight = False
                    self._take_records(state, records.get(state.partition), address)

    def _take_records(
        self, state: PartitionState, result: pb.FetchResponse.PartitionRecords | None, address: str
    ) -> None:
        if result is None:
            self._retry_later(state, MillraceError(f"the broker at {address} left out {state.partition}"))
            return
        if result.error.code:
            self._failed(state, error_of(result.error.code, result.error.message))
            return
        state.attempts, state.unavailable_since = 0, None
        state.high_watermark = result.high_watermark
        data = pa.py_buffer(result.records)
        if not data.size:
            return
        end, last = 0, None
        for position, header in scan_headers(data):
            end, last = position + header.size_bytes, header
        if last is not None:
            state.fetch_offset = last.next_offset
            state.waiting.append(Fetched(data.slice(0, end), last.next_offset))

    def _failed(self, state: PartitionState, error: MillraceError) -> None:
        if isinstance(error, OffsetOutOfRangeError):
            self._out_of_range(state, error)
        elif error.retriable:
            self._metadata.forget(state.partition.topic)
            self._retry_later(state, error)
        else:
            state.error = error

    def _out_of_range(self, state: PartitionState, error: OffsetOutOfRangeError) -> None:
        policy = self._config.auto_offset_reset.value
        if policy == "none":
            state.error = OffsetOutOfRangeError(f"{error.message} (auto.offset.reset=none: seek, or choose another)")
            return
        logger.warning(
            "%s: offset %s is out of range, going on from the %s one", state.partition, state.position, policy
        )
        state.position, state.reset_to = None, policy
        state.waiting.clear()

    def _retry_later(self, state: PartitionState, error: MillraceError) -> None:
        """Errors that may pass are raised only when they last for ``default.api.timeout.ms``."""
        now = time.monotonic()
        state.unavailable_since = state.unavailable_since or now
        waited_too_long = (now - state.unavailable_since) * 1000 >= self._config.default_api_timeout_ms
        # The metadata has been asked: the topic is gone.
        if waited_too_long or isinstance(error, UnknownTopicOrPartitionError):
            state.error = error
            return
        state.retry_at = now + backoff_s(self._config, state.attempts)
        state.attempts += 1

    def close(self) -> None:
        """Cancel what is under way."""
        with self._condition:
            calls = list(self._calls)
        for call in calls:
            call.cancel()
