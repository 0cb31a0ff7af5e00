"""Prefetching of data from the leaders of assigned partitions (Kafka's ``Fetcher``).

Invariants:

- A partition is in at most one request at a time. It is requested again if at most one of its responses waits.
- Waiting data and the maximum of requests in flight stay below ``fetch.buffer.bytes``. One request is always
  allowed, so that any limit permits progress.
- A response is used only if the partition is still at the requested offset; ``seek`` invalidates requests in flight.
- Other threads only store responses; everything else happens in the caller's thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from millrace.clients.backoff import backoff_s
from millrace.clients.consuming.connections import ConsumerConnections
from millrace.clients.consuming.direct_reads import DirectReader
from millrace.clients.consuming.epochs import EpochChecks
from millrace.clients.consuming.partition import Fetched, PartitionState
from millrace.clients.metadata import MetadataCache
from millrace.clients.offsets import isolation_number
from millrace.clients.ranges import aborted_transactions
from millrace.clients.signal import Signal
from millrace.clients.transport import FETCH, Received
from millrace.config.client import ConsumerConfig, DirectReads
from millrace.errors import (
    MillraceError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    WakeupError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.fetch_response import FetchedRecords, read_fetch_response
from millrace.protocol.item_errors import error_in
from millrace.records import AbortedTransaction, scan_headers

_LOOKUP_MS_MIN: Final = 100
"""Minimum timeout of a leader lookup, even in a poll that does not wait."""

logger = logging.getLogger(__name__)
_ANSWER_BYTES: Final = 4 * 2**20 - 64 * 2**10
"""Maximum size of one response. C libraries map and unmap blocks of 4 MiB and more, which costs more than it saves.

A partition with more data has its own request, and several requests are in flight at once.
"""
_TIMEOUT_SLACK_S: Final = 5.0
"""Minimum time that a fetch may take beyond ``fetch.max.wait.ms`` before its connection is closed."""

_Asked = list[tuple[PartitionState, int]]


class Fetcher:
    """Sender of fetches, which also processes their responses."""

    def __init__(
        self, config: ConsumerConfig, connections: ConsumerConnections, metadata: MetadataCache, signal: Signal
    ) -> None:
        self._config = config
        self._connections = connections
        self._metadata = metadata
        self._signal = signal
        self._answers: deque[tuple[str, int, _Asked, list[FetchedRecords] | MillraceError]] = deque()
        self._asked_bytes: dict[int, int] = {}
        """Maximum size of the response to each fetch in flight, by the number of the fetch."""
        self._fetches = 0
        self._fetched_bytes = 0
        self._epochs = EpochChecks(config, connections, metadata, signal)
        self._direct = (
            DirectReader(config, connections, signal) if config.direct_reads is not DirectReads.NEVER else None
        )

    # --- asking ---------------------------------------------------------------------------------------------------

    def send(self, states: Iterable[PartitionState], timeout_ms: int) -> None:
        """Fetch partitions that have little data left; leader lookups may take ``timeout_ms``.

        A wake-up ends the lookups, and takes effect at the next wait of the caller.
        """
        now = time.monotonic()
        idle: dict[str, _Asked] = {}
        behind: list[tuple[str, _Asked]] = []
        to_check: list[PartitionState] = []
        known = list(states)
        for state in known:
            if state.located and len(state.waiting) <= 1 and self._direct is not None:
                self._direct.map_next(state)
            if not self._is_due(state, now):
                continue
            try:
                address = self._address(state, max(timeout_ms, _LOOKUP_MS_MIN), now)
                if not self._epochs.is_good(state, max(timeout_ms, _LOOKUP_MS_MIN)):
                    to_check.append(state)
                    continue
            except WakeupError:
                self._signal.wakeup()  # records that a poll has collected must not be lost: the next wait ends
                break
            except MillraceError as error:
                self._retry_later(state, error)
                continue
            if self._direct is not None and self._direct.may_read(state, now):
                self._direct.locate(state, address)
            elif state.is_behind:
                behind.append((address, [(state, state.generation)]))
            else:
                idle.setdefault(address, []).append((state, state.generation))
        if to_check:
            self._epochs.ask(to_check, self._failed)
        for address, asked in [*behind, *idle.items()]:
            self._fetch(address, asked, known)

    def _is_due(self, state: PartitionState, now: float) -> bool:
        return not (
            state.in_flight
            or state.position is None
            or state.is_paused
            or state.error
            or state.located
            or state.retry_at > now
            or len(state.waiting) > 1
        )

    def _address(self, state: PartitionState, timeout_ms: int, now: float) -> str:
        """Return the leader's address, or for a while that of the preferred read replica (KIP-392)."""
        if state.replica is not None:
            address = self._metadata.address_of(state.replica) if now < state.replica_until else None
            if address is not None:
                return address
            state.replica = None
        return self._metadata.leader_address(state.partition, timeout_ms)

    def _room_bytes(self, wanted_bytes: int, known: list[PartitionState]) -> int:
        """Return how many bytes may be requested; 0 means none until responses have come or data was read."""
        held_bytes = sum(state.held_bytes for state in known)
        room_bytes = self._config.fetch_buffer_bytes - held_bytes - self.asked_bytes
        if room_bytes < wanted_bytes:
            # Data of paused partitions must not block the others: it is fetched again after the resume.
            for state in known:
                if state.is_paused and state.waiting and state.position is not None:
                    room_bytes += state.held_bytes
                    state.fetch_again()
        least_bytes = min(wanted_bytes, self._config.max_partition_fetch_bytes)
        if room_bytes < least_bytes and (self._asked_bytes or any(state.held_bytes for state in known)):
            return 0
        return max(min(wanted_bytes, room_bytes), 1)

    def _fetch(self, address: str, asked: _Asked, known: list[PartitionState]) -> None:
        wanted_bytes = len(asked) * self._config.max_partition_fetch_bytes
        wanted_bytes = min(wanted_bytes, self._config.fetch_max_bytes, _ANSWER_BYTES)
        max_bytes = self._room_bytes(wanted_bytes, known)
        if not max_bytes:
            return
        request = pb.FetchRequest(
            replica_id=-1,
            max_wait_ms=self._config.fetch_max_wait_ms,
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation_number(self._config.isolation_level),
            topics=self._topics(asked),
            rack_id=self._config.client_rack,
        )
        wait_s = self._config.fetch_max_wait_ms / 1000
        timeout_s = max(self._config.request_timeout_ms / 1000, wait_s + _TIMEOUT_SLACK_S)
        self._fetches += 1
        number = self._fetches
        self._asked_bytes[number] = max_bytes
        self._connections.begin(
            FETCH,
            request,
            address=address,
            timeout_s=timeout_s,
            on_done=lambda response, error: self._on_done(address, number, asked, response, error),
        )

    def start_anew(self, states: Iterable[PartitionState]) -> None:
        """Drop all fetched data and the fetches in flight, because an interrupt may have left them half processed."""
        self._asked_bytes.clear()
        for state in states:
            state.fetch_again()

    def _topics(self, asked: _Asked) -> list[pb.FetchRequest.TopicFetch]:
        topics: dict[str, pb.FetchRequest.TopicFetch] = {}
        for state, _ in asked:
            name = state.partition.topic
            topic = topics.setdefault(name, pb.FetchRequest.TopicFetch(name=name))
            topic.partitions.add(
                partition=state.partition.partition,
                fetch_offset=state.fetch_offset,
                partition_max_bytes=self._config.max_partition_fetch_bytes,
                current_leader_epoch=state.leader_epoch,
            )
            state.in_flight = True
        return list(topics.values())

    def _on_done(
        self, address: str, number: int, asked: _Asked, response: Received | None, error: MillraceError | None
    ) -> None:
        answer: list[FetchedRecords] | MillraceError
        if response is None:
            assert error is not None
            answer = error
        else:
            try:
                answer = list(read_fetch_response(response))
            except MillraceError as damage:
                answer = damage
        self._answers.append((address, number, asked, answer))
        self._signal.ring()

    # --- taking in ------------------------------------------------------------------------------------------------

    def take_in(self) -> None:
        """Pass the received responses to their partitions."""
        if self._direct is not None:
            self._direct.take_in()
        self._epochs.take_in(self._failed)
        while self._answers:
            address, number, asked, answer = self._answers.popleft()
            self._asked_bytes.pop(number, None)
            if isinstance(answer, MillraceError):
                for state, generation in asked:
                    if state.generation == generation:
                        state.in_flight = False
                        self._failed(state, answer)
                continue
            found = {(each.topic, each.result.partition): each for each in answer}
            for state, generation in asked:
                if state.generation == generation:
                    state.in_flight = False
                    self._take_records(state, found.get((state.partition.topic, state.partition.partition)), address)

    def _take_records(self, state: PartitionState, found: FetchedRecords | None, address: str) -> None:
        if found is None:
            self._retry_later(state, MillraceError(f"the broker at {address} did not answer for {state.partition}"))
            return
        result = found.result
        error = error_in(result.error)
        if error is not None:
            self._failed(state, error)
            return
        self._fetched_bytes += found.records.size
        state.attempts, state.unavailable_since = 0, None
        state.high_watermark = result.high_watermark
        state.last_stable_offset = result.last_stable_offset
        state.log_start_offset = result.log_start_offset
        state.is_behind = False
        if result.HasField("preferred_read_replica"):
            state.replica = result.preferred_read_replica
            state.replica_until = time.monotonic() + self._config.metadata_max_age_ms / 1000
            return
        self._take_batches(state, found.records, aborted_transactions(result.aborted_transactions))

    def _take_batches(self, state: PartitionState, data: pa.Buffer, aborted: tuple[AbortedTransaction, ...]) -> None:
        end, last = 0, None
        for position, header in scan_headers(data):
            end, last = position + header.size_bytes, header
        if last is None:
            return
        state.fetch_offset = last.next_offset
        state.is_behind = state.fetch_offset < state.readable_end(self._config.isolation_level)
        batches = data.slice(0, end)
        state.waiting.append(
            Fetched(
                data=batches,
                next_offset=last.next_offset,
                held_bytes=data.size,
                aborted=aborted,
                leader_epoch=last.partition_leader_epoch,
            )
        )
        if self._direct is not None:
            # A response cannot hold all the remaining data; perhaps the file can be read directly.
            state.may_be_here = state.is_behind

    # --- failures -------------------------------------------------------------------------------------------------

    def _failed(self, state: PartitionState, error: MillraceError) -> None:
        replica, state.replica = state.replica, None
        if isinstance(error, OffsetOutOfRangeError):
            if replica is None:  # a follower may lag behind; the leader knows
                self._out_of_range(state, error)
        elif error.retriable:
            self._metadata.forget(state.partition.topic)
            self._retry_later(state, error)
        else:
            state.error = error

    def _out_of_range(self, state: PartitionState, error: OffsetOutOfRangeError) -> None:
        if state.waiting:  # records that were fetched before are returned first, as in Kafka's consumer
            self._wait_before_retry(state)
            return
        policy = self._config.auto_offset_reset.value
        if policy == "none":
            state.error = OffsetOutOfRangeError(f"{error.message} (auto.offset.reset=none: seek, or choose another)")
            return
        logger.warning(
            "%s: offset %s is out of range, so the consumer continues at the %s offset",
            state.partition,
            state.position,
            policy,
        )
        state.reset(policy)

    def _retry_later(self, state: PartitionState, error: MillraceError) -> None:
        """Retry after a transient error; raise it only if it lasts for ``default.api.timeout.ms``."""
        now = time.monotonic()
        state.unavailable_since = state.unavailable_since or now
        waited_too_long = (now - state.unavailable_since) * 1000 >= self._config.default_api_timeout_ms
        # The metadata was refreshed, and the topic no longer exists.
        if waited_too_long or isinstance(error, UnknownTopicOrPartitionError):
            state.error = error
            return
        self._wait_before_retry(state)

    def _wait_before_retry(self, state: PartitionState) -> None:
        state.retry_at = time.monotonic() + backoff_s(self._config, state.attempts)
        state.attempts += 1

    @property
    def asked_bytes(self) -> int:
        """Maximum size of the responses in flight."""
        return sum(self._asked_bytes.values())

    @property
    def counts(self) -> tuple[int, int, int]:
        """Number of fetches sent, bytes fetched, and bytes mapped instead."""
        return self._fetches, self._fetched_bytes, 0 if self._direct is None else self._direct.mapped_bytes
