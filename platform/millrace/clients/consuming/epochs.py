"""Truncation detection after a change of the leader epoch (KIP-320).

A position has two epochs: the leader epoch of the record before it, and the leader epoch in which it was validated.
When the metadata shows a newer epoch, the consumer first asks the leader for the end of the position's epoch in its
log. A position after that end follows records that an unclean election removed. As in Kafka's consumer, a position
without an epoch, for example from ``seek``, counts as valid.

Invariants:

- The epoch in which a partition is read never decreases, whatever metadata an old broker returns, unless the topic
  was created again. It is also not older than the epoch of the record before the position, which a committed offset
  names. A leader of an older epoch has been replaced, and its log may end before the position.
- Records that were prefetched in an older epoch are fetched again before they are returned.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from millrace.clients.connections import Connections
from millrace.clients.consuming.partition import PartitionState
from millrace.clients.metadata import MetadataCache
from millrace.clients.signal import Signal
from millrace.clients.transport import unary
from millrace.config.client import ConsumerConfig
from millrace.errors import (
    LeaderNotAvailableError,
    LogTruncationError,
    MillraceError,
    UnsupportedVersionError,
    WakeupError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import error_in

logger = logging.getLogger(__name__)

_OFFSET_FOR_LEADER_EPOCH = unary(lambda stub: stub.OffsetForLeaderEpoch)
_NOT_KNOWN = -1


class Divergence(NamedTuple):
    """Offset at which the log diverges, and its leader epoch.

    Both are -1 if the leader does not know the divergence.
    """

    offset: int
    leader_epoch: int


class _Asked(NamedTuple):
    state: PartitionState
    generation: int
    leader_epoch: int


_Failed = Callable[[PartitionState, MillraceError], None]


def find_divergence(position: int, end: Divergence) -> Divergence | None:
    """Compare a position with the end of its epoch in the leader's log; returns None if the position is valid."""
    if end.offset < 0 or end.leader_epoch < 0:
        return Divergence(_NOT_KNOWN, _NOT_KNOWN)
    return end if end.offset < position else None


class EpochChecks:
    """Validation of positions in the logs of new leaders (KIP-320).

    It runs in the caller's thread. Other threads only store responses.
    """

    def __init__(
        self, config: ConsumerConfig, connections: Connections, metadata: MetadataCache, signal: Signal
    ) -> None:
        self._config = config
        self._connections = connections
        self._metadata = metadata
        self._signal = signal
        self._answers: deque[tuple[Sequence[_Asked], pb.OffsetForLeaderEpochResponse | None, MillraceError | None]] = (
            deque()
        )

    def is_good(self, state: PartitionState, timeout_ms: int) -> bool:
        """Return whether a position is valid in the known leader epoch; if not, it must be validated.

        Raises ``LeaderNotAvailableError`` if the metadata is older than the position, and drops that metadata.
        """
        topic = self._metadata.topic(state.partition.topic, timeout_ms=timeout_ms)
        if topic.topic_id != state.topic_id:
            if state.topic_id is not None:
                state.offset_epoch = _NOT_KNOWN  # the epoch belonged to a deleted topic
            state.topic_id, state.leader_epoch = topic.topic_id, _NOT_KNOWN
        present = topic.partitions[state.partition.partition].leader_epoch
        if max(present, state.leader_epoch) < state.offset_epoch:
            self._metadata.forget_old(state.partition.topic)
            raise LeaderNotAvailableError(
                f"{state.partition}: the record before offset {state.position} has leader epoch "
                f"{state.offset_epoch}, but the metadata has the older leader epoch {present}: fetch the "
                "metadata again"
            )
        if present <= state.leader_epoch:
            return True
        if state.waiting:
            state.fetch_again()
        if state.offset_epoch < 0:
            state.leader_epoch = present
            return True
        return False

    def ask(self, states: Sequence[PartitionState], failed: _Failed) -> None:
        """Ask the leaders to validate known positions; errors go to ``failed``."""
        by_address: dict[str, list[_Asked]] = {}
        for state in states:
            try:
                address = self._metadata.leader_address(state.partition)
                topic = self._metadata.topic(state.partition.topic)
            except WakeupError:
                self._signal.wakeup()  # it takes effect at the next wait
                break
            except MillraceError as error:
                failed(state, error)
                continue
            epoch = topic.partitions[state.partition.partition].leader_epoch
            by_address.setdefault(address, []).append(_Asked(state, state.generation, epoch))
        for address, asked in by_address.items():
            self._ask(address, asked)

    def _ask(self, address: str, asked: Sequence[_Asked]) -> None:
        request = pb.OffsetForLeaderEpochRequest(replica_id=-1)
        topics: dict[str, pb.OffsetForLeaderEpochRequest.TopicEpochs] = {}
        for state, _, epoch in asked:
            name, number = state.partition
            topic = topics.get(name) or topics.setdefault(name, request.topics.add(name=name))
            topic.partitions.add(partition=number, current_leader_epoch=epoch, leader_epoch=state.offset_epoch)
            state.in_flight = True
        self._connections.begin(
            _OFFSET_FOR_LEADER_EPOCH,
            request,
            address=address,
            timeout_s=self._config.request_timeout_ms / 1000,
            on_done=lambda response, error: self._on_done(asked, response, error),
        )

    def _on_done(
        self,
        asked: Sequence[_Asked],
        response: pb.OffsetForLeaderEpochResponse | None,
        error: MillraceError | None,
    ) -> None:
        self._answers.append((asked, response, error))
        self._signal.ring()

    def take_in(self, failed: _Failed) -> None:
        """Process the answers: accept valid positions, move or stop the others; errors go to ``failed``."""
        while self._answers:
            asked, response, error = self._answers.popleft()
            ends = {
                (topic.name, each.partition): each
                for topic in (response.topics if response is not None else ())
                for each in topic.partitions
            }
            for each in asked:
                if each.state.generation == each.generation:
                    each.state.in_flight = False
                    self._take(each, ends.get(each.state.partition), error, failed)

    def _take(
        self,
        asked: _Asked,
        answer: pb.OffsetForLeaderEpochResponse.PartitionEnd | None,
        error: MillraceError | None,
        failed: _Failed,
    ) -> None:
        state = asked.state
        if isinstance(error, UnsupportedVersionError):  # broker without this call: position counts as valid
            state.leader_epoch = asked.leader_epoch
        elif error is not None:
            failed(state, error)
        elif answer is None:
            failed(state, MillraceError(f"the response of the broker does not contain {state.partition}"))
        elif (error := error_in(answer.error)) is not None:
            failed(state, error)
        else:
            assert state.position is not None
            divergence = find_divergence(state.position, Divergence(answer.end.end_offset, answer.end.leader_epoch))
            if divergence is None:
                state.leader_epoch = asked.leader_epoch
            else:
                self._log_diverged(state, divergence, asked.leader_epoch)

    def _log_diverged(self, state: PartitionState, divergence: Divergence, leader_epoch: int) -> None:
        """Handle a log that was truncated below the position."""
        policy = self._config.auto_offset_reset.value
        where = f"from offset {divergence.offset} on" if divergence.offset >= 0 else "at an unknown offset"
        what = (
            f"{state.partition}: the leader's log in epoch {leader_epoch} differs from the records that were read up "
            f"to offset {state.position} in epoch {state.offset_epoch}, {where}"
        )
        if policy == "none":
            state.error = LogTruncationError(
                f"{what} (auto.offset.reset=none: seek, or choose another)",
                divergent_offset=divergence.offset if divergence.offset >= 0 else None,
            )
        elif divergence.offset >= 0:
            logger.warning("%s: the consumer continues there", what)
            state.move_to(divergence.offset, divergence.leader_epoch)
            state.leader_epoch = leader_epoch
        else:
            logger.warning("%s: the consumer continues at the %s offset", what, policy)
            state.reset(policy)
