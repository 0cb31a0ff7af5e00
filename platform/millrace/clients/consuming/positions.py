"""Initial positions of partitions, from committed offsets or resets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from millrace.clients.connections import Connections
from millrace.clients.consuming.partition import PartitionState
from millrace.clients.metadata import MetadataCache
from millrace.clients.model import OffsetAndMetadata, TopicPartition
from millrace.clients.offsets import list_offsets
from millrace.config.client import ConsumerConfig, OffsetReset
from millrace.errors import OffsetOutOfRangeError

FindCommitted = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, OffsetAndMetadata]]


def find_positions(
    config: ConsumerConfig,
    connections: Connections,
    metadata: MetadataCache,
    states: Iterable[PartitionState],
    committed: FindCommitted,
) -> None:
    """Set the position of every partition without one.

    Raises ``OffsetOutOfRangeError`` with ``auto.offset.reset=none``, and the errors of the lookups.
    """
    missing = [state for state in states if state.position is None]
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
    offsets = list_offsets(
        connections,
        metadata,
        {state.partition: state.reset_to or "latest" for state in to_reset},
        isolation_level=config.isolation_level,
    )
    for state in to_reset:
        state.move_to(offsets[state.partition].offset)
