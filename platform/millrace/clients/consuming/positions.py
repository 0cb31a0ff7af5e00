"""Initial positions of partitions, from committed offsets or resets."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from millrace.clients.backoff import backoff_s
from millrace.clients.connections import Connections
from millrace.clients.consuming.partition import PartitionState
from millrace.clients.leaders import group_by_leader, may_pass
from millrace.clients.metadata import MetadataCache
from millrace.clients.model import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from millrace.clients.offsets import offsets_call, offsets_in, wire_time
from millrace.clients.transport import PendingCall, unary
from millrace.config.client import ConsumerConfig, OffsetReset
from millrace.errors import MillraceError, OffsetOutOfRangeError
from millrace.protocol import millrace_pb2 as pb

logger = logging.getLogger(__name__)

FindCommitted = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, OffsetAndMetadata]]


def _without_committed(missing: Sequence[PartitionState], committed: FindCommitted) -> list[PartitionState]:
    """Move the partitions to their committed offsets, and return those without.

    Raises ``OffsetOutOfRangeError`` if such a partition has ``auto.offset.reset=none``. The next call then asks again.
    """
    wants_committed = [state for state in missing if state.wants_committed]
    if wants_committed:
        found = committed([state.partition for state in wants_committed])
        for state in wants_committed:
            if (place := found.get(state.partition)) is not None:
                state.move_to(place.offset, place.leader_epoch)
            elif state.reset_to != OffsetReset.NONE:
                state.wants_committed = False
    to_reset = [state for state in missing if state.position is None]
    for state in to_reset:
        if state.reset_to == OffsetReset.NONE:
            raise OffsetOutOfRangeError(
                f"{state.partition} has no position, and auto.offset.reset is none: seek to one first"
            )
    return to_reset


def _reset_to(state: PartitionState) -> str | int:
    return state.reset_to or "latest"


class _Asked(NamedTuple):
    state: PartitionState
    generation: int


class _Answer(NamedTuple):
    address: str
    asked: Sequence[_Asked]
    response: pb.ListOffsetsResponse | None
    error: MillraceError | None


class PositionLookups:
    """Look-ups of a consumer's polls (Kafka's ``OffsetFetcher``), in the caller's thread.

    Each leader is asked on its own, and other threads only store its answer. A poll waits for the answers, so that the
    positions are those at its time. It does not wait for a leader that did not answer an earlier poll in time, until
    that leader answers.
    """

    def __init__(self, config: ConsumerConfig, connections: Connections, metadata: MetadataCache) -> None:
        self._config = config
        self._connections = connections
        self._metadata = metadata
        self._answers: deque[_Answer] = deque()
        self._slow: set[str] = set()

    @property
    def has_answers(self) -> bool:
        """True if a leader has answered since the last ``find``."""
        return bool(self._answers)

    def find(
        self, states: Iterable[PartitionState], committed: FindCommitted, *, timeout_ms: int, wait_s: float
    ) -> None:
        """Set the positions that can be found now. Calls may take ``timeout_ms``, and the wait for them ``wait_s``.

        After a transient error a partition keeps no position, and a call after its ``retry_at`` asks again. Raises
        ``OffsetOutOfRangeError`` with ``auto.offset.reset=none``, and the errors of the lookups.
        """
        self._take_in()
        now = time.monotonic()
        missing = [each for each in states if each.position is None and not each.in_flight and each.retry_at <= now]
        to_reset = _without_committed(missing, committed)
        if not to_reset:
            return
        notice = self._connections.notice()
        calls = self._ask(to_reset, timeout_ms, notice.give)
        awaited = {address: call for address, call in calls.items() if address not in self._slow}
        notice.wait(lambda: all(call.is_done for call in awaited.values()), wait_s)
        self._slow |= {address for address, call in awaited.items() if not call.is_done}
        self._take_in()

    def _ask(
        self, states: Sequence[PartitionState], timeout_ms: int, give: Callable[[object, MillraceError | None], None]
    ) -> dict[str, PendingCall[pb.ListOffsetsResponse]]:
        """Begin a call to each leader, which may take ``timeout_ms``; returns the calls by address."""
        by_partition = {state.partition: state for state in states}
        by_address, failed = group_by_leader(self._metadata, by_partition, timeout_ms)
        for partition, error in failed.items():
            self._failed(by_partition[partition], error)
        times = {partition: wire_time(_reset_to(state)) for partition, state in by_partition.items()}
        call = offsets_call(times, self._config.isolation_level)
        calls = {}
        for address, partitions in by_address.items():
            asked = [_Asked(state, state.generation) for state in map(by_partition.__getitem__, partitions)]
            calls[address] = self._connections.begin(
                unary(call.method),
                call.request(partitions),
                address=address,
                timeout_s=min(timeout_ms, self._config.request_timeout_ms) / 1000,
                on_done=partial(self._on_done, address, asked, give),
                cancellable=True,
            )
            for each in asked:
                each.state.in_flight = True
        return calls

    def _on_done(
        self,
        address: str,
        asked: Sequence[_Asked],
        give: Callable[[object, MillraceError | None], None],
        response: pb.ListOffsetsResponse | None,
        error: MillraceError | None,
    ) -> None:
        self._answers.append(_Answer(address, asked, response, error))
        give(response, error)

    def _take_in(self) -> None:
        """Process the answers. Raises the first permanent error, after all are processed."""
        failures = []
        while self._answers:
            address, asked, response, error = self._answers.popleft()
            if response is not None:
                self._slow.discard(address)
            found = {} if response is None else offsets_in(response)
            for state, generation in asked:
                if state.generation != generation:
                    continue
                state.in_flight = False
                missing = MillraceError(f"the response of the broker does not contain {state.partition}")
                answer = error or found.get(state.partition, missing)
                if isinstance(answer, OffsetAndTimestamp):
                    state.move_to(answer.offset)
                elif may_pass(answer):
                    self._failed(state, answer)
                else:
                    failures.append(answer)
        if failures:
            raise failures[0]

    def _failed(self, state: PartitionState, error: MillraceError) -> None:
        logger.debug("%s: no position yet: %s", state.partition, error.message)
        self._metadata.forget(state.partition.topic)
        state.retry_at = time.monotonic() + backoff_s(self._config, state.attempts)
        state.attempts += 1
