"""Assignment of offsets and leader epoch to batches (Kafka's ``LogValidator``), without copies.

Both fields are in the first 16 bytes of a batch, outside its checksum, so only those bytes are rewritten. The result is
a list of parts to write. The rest of each batch is a view of the bytes from the network.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from millrace.records import BatchHeader, read_header, stamp_append_time
from millrace_broker.log.files import Part

_PREFIX: Final = struct.Struct(">qii")


class AssignedBatches(NamedTuple):
    """Batches with assigned offsets.

    ``headers`` have the assigned offsets and leader epoch. ``positions`` are the positions of the batches in the input.
    """

    headers: tuple[BatchHeader, ...]
    positions: tuple[int, ...]
    leader_epoch: int

    def parts(self, records: Part) -> list[Part]:
        """Return the parts to write, in order; ``records`` are the bytes that contain the batches."""
        view = memoryview(records)
        parts: list[Part] = []
        for position, header in zip(self.positions, self.headers, strict=True):
            parts.append(_PREFIX.pack(header.base_offset, header.batch_length, header.partition_leader_epoch))
            parts.append(view[position + _PREFIX.size : position + header.size_bytes])
        return parts


def assign_offsets(batches: Sequence[tuple[int, BatchHeader]], base_offset: int, leader_epoch: int) -> AssignedBatches:
    """Assign offsets to batches, each given as (position, header), from ``base_offset`` on."""
    headers = []
    for _, header in batches:
        headers.append(header._replace(base_offset=base_offset, partition_leader_epoch=leader_epoch))
        base_offset = headers[-1].next_offset
    return AssignedBatches(
        headers=tuple(headers), positions=tuple(position for position, _ in batches), leader_epoch=leader_epoch
    )


def set_append_time(records: Part, assigned: AssignedBatches, now_ms: int) -> tuple[bytearray, AssignedBatches]:
    """Set the broker's time in all records of the batches; the checksum covers it, so this copies."""
    stamped = bytearray(records)
    for position in assigned.positions:
        stamp_append_time(stamped, position, now_ms)
    batches = [(position, read_header(stamped, position)) for position in assigned.positions]
    return stamped, assign_offsets(batches, assigned.headers[0].base_offset, assigned.leader_epoch)
