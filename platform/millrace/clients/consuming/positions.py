"""Initial positions of partitions, from committed offsets or resets."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from millrace.clients.connections import Connections, backoff_s
from millrace.clients.consuming.partition import PartitionState
from millrace.clients.leaders import may_pass
from millrace.clients.metadata import MetadataCache
from millrace.clients.model import OffsetAndMetadata, TopicPartition
from millrace.clients.offsets import ask_offsets
from millrace.config.client import ConsumerConfig, OffsetReset
from millrace.errors import MillraceError, OffsetOutOfRangeError

logger = logging.getLogger(__name__)

FindCommitted = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, OffsetAndMetadata]]


def find_positions(
    config: ConsumerConfig,
    connections: Connections,
    metadata: MetadataCache,
    states: Iterable[PartitionState],
    committed: FindCommitted,
    once_ms: int | None = None,
) -> None:
    """Set the position of every partition without one.

    Transient errors of leaders are retried up to ``default.api.timeout.ms``. With ``once_ms`` they are not: the
    partitions keep no position, and a call after their ``retry_at`` asks again. Each call to a leader may take that
    time.

    Raises ``OffsetOutOfRangeError`` with ``auto.offset.reset=none``, and the errors of the lookups.
    """
    now = time.monotonic()
    missing = [each for each in states if each.position is None and (once_ms is None or each.retry_at <= now)]
    wants_committed = [state for state in missing if state.wants_committed]
    if wants_committed:
        found = committed([state.partition for state in wants_committed])
        for state in wants_committed:
            state.wants_committed = False
            if (place := found.get(state.partition)) is not None:
                state.move_to(place.offset, place.leader_epoch)
    to_reset = [state for state in missing if state.position is None]
    for state in to_reset:
        if state.reset_to == OffsetReset.NONE:
            raise OffsetOutOfRangeError(
                f"{state.partition} has no position, and auto.offset.reset is none: seek to one first"
            )
    if not to_reset:
        return
    answers = ask_offsets(
        connections,
        metadata,
        {state.partition: state.reset_to or "latest" for state in to_reset},
        isolation_level=config.isolation_level,
        once_ms=once_ms,
    )
    failures = []
    for state in to_reset:
        answer = answers[state.partition]
        if not isinstance(answer, MillraceError):
            state.move_to(answer.offset)
        elif once_ms is not None and may_pass(answer):
            logger.debug("%s: no position yet: %s", state.partition, answer.message)
            state.retry_at = time.monotonic() + backoff_s(config, state.attempts)
            state.attempts += 1
        else:
            failures.append(answer)
    if failures:
        raise failures[0]
