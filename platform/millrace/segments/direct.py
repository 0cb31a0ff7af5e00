"""Direct read of a segment file that a broker named.

A file is mapped under three conditions. It exists on this machine, it is at least as long as the extent, and its
directory holds a partition of the same topic id. Therefore direct reads need no configuration: a reader without the
file reads over the network.

A topic that was deleted and created again has directories of the same names. Therefore the id is read after each
mapping and never cached. Topic ids are never reused: if the directory has the id after the mapping, it had the id
when the file was mapped.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pyarrow as pa

from millrace.errors import CorruptBatchError, OffsetsLostError, StorageError
from millrace.ids import parse_id
from millrace.records import HEADER_BYTES, read_header
from millrace.segments.mapping import map_extent


def map_located(
    path: str, start_position: int, end_position: int, *, start_offset: int, topic_id: uuid.UUID
) -> pa.Buffer | str:
    """Map an extent that begins with the batch of ``start_offset``; a returned string gives the reason for a
    refusal.
    """
    obstacle = _obstacle(path, end_position)
    if obstacle is not None:
        return obstacle
    try:
        mapped = map_extent(path, start_position, end_position)
    except (OffsetsLostError, StorageError) as error:
        return error.message
    if _topic_id_of(Path(path).parent) != topic_id:
        return f"{Path(path).parent} holds another topic"
    return _replacement(mapped, path, start_offset) or mapped


def _obstacle(path: str, end_position: int) -> str | None:
    """Return why an extent cannot be mapped, judged by the file's name and length; None if it can."""
    if not path:
        return "the broker does not name its files"
    try:
        size_bytes = os.stat(path).st_size
    except OSError as error:
        return f"{path}: {error.strerror}"
    if size_bytes < end_position:
        return f"{path} has {size_bytes} bytes here, but the extent ends at {end_position}"
    return None


def _replacement(mapped: pa.Buffer, path: str, start_offset: int) -> str | None:
    """Return a message if the file was replaced since it was located; None if not.

    Compaction puts a file with fewer batches under the same name. Then a later batch begins at the position.
    """
    try:
        is_later = mapped.size >= HEADER_BYTES and read_header(mapped).base_offset > start_offset
    except CorruptBatchError:
        return None  # decoding reports the error
    return f"{path} has been replaced since it was located" if is_later else None


def _topic_id_of(directory: Path) -> uuid.UUID | None:
    """Return the id of the topic whose partition a directory holds now, from ``partition.metadata``."""
    try:
        text = (directory / "partition.metadata").read_text()
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        return parse_id(fields["topic_id"].strip())
    except (OSError, KeyError, ValueError):
        return None
