"""State as bytes: what a batch changed in a store of objects, and whole stores, as chunks of Arrow with a version.

A chunk is a 16-byte header, the operator's numbers, and an Arrow IPC stream of rows (``stores.forms``)::

    0  u8   version = 1
    1  u8   kind: 2 base (all entries), 3 delta (entries that replace or delete older ones)
    2  2 bytes reserved, zero
    4  u32  length of the numbers (big-endian)
    8  8 bytes reserved, zero
    16      numbers: a JSON object of whole numbers
    ..      Arrow IPC stream

Order matters: an entry in a later chunk replaces the one of the same identity in an earlier chunk. The kinds are not
those of stores in columns (``millrace_streams.steps.chunks``), so that neither takes the other's chunks for its own.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from typing import Final

import polars as pl

from millrace_streams.errors import IncompatibleStateError
from millrace_streams.steps.chunks import DELTA_RATIO_MAX, ChunkWrite
from millrace_streams.stores.base import Change, ObjectStore, StoreSpec
from millrace_streams.stores.forms import form_of

VERSION: Final = 1
BASE: Final = 2
DELTA: Final = 3
_HEADER: Final = struct.Struct(">BB2xI8x")
_CHUNK_ENTRIES_MAX: Final = 131_072


def pack_change(spec: StoreSpec, change: Change) -> bytes:
    """What a batch changed, as a delta."""
    return _chunk(DELTA, change.numbers, form_of(spec).frame(change.entries.items()))


def pack_store(store: ObjectStore) -> list[bytes]:
    """A whole store, as bases; entries past their retention are left out."""
    entries = list(store.packed_entries())
    form, parts = form_of(store.spec), range(0, max(len(entries), 1), _CHUNK_ENTRIES_MAX)
    return [_chunk(BASE, store.numbers, form.frame(entries[start : start + _CHUNK_ENTRIES_MAX])) for start in parts]


def save_change(store: ObjectStore, chunks: Sequence[bytes], change: Change) -> ChunkWrite:
    """Say how the chunks of ``store`` must change after ``change``: a delta more, or new bases if deltas grow large."""
    packed = pack_change(store.spec, change)
    base_bytes = sum(len(chunk) for chunk in chunks if chunk[1] == BASE)
    delta_bytes = sum(len(chunk) for chunk in chunks if chunk[1] == DELTA) + len(packed)
    if base_bytes and delta_bytes <= base_bytes * DELTA_RATIO_MAX:
        return ChunkWrite(chunks=(packed,), replace=False)
    return ChunkWrite(chunks=tuple(pack_store(store)), replace=True)


def restore(store: ObjectStore, chunks: Sequence[bytes]) -> None:
    """Fill an empty store from its chunks, in order.

    Raises ``IncompatibleStateError`` when a chunk is of another version, or holds other columns than the topology's.
    """
    form = form_of(store.spec)
    expected = form.frame([]).schema
    for chunk in chunks:
        version, kind, length = _HEADER.unpack_from(chunk)
        if version != VERSION or kind not in (BASE, DELTA):
            raise IncompatibleStateError(
                f"store {store.name}: its state has version {version} and kind {kind}, this millrace reads version "
                f"{VERSION}, kinds {BASE} and {DELTA}: use the millrace that wrote it, or begin with a new checkpoint"
            )
        start = _HEADER.size + length
        store.numbers.update(json.loads(chunk[_HEADER.size : start]))
        frame = pl.read_ipc_stream(io.BytesIO(chunk[start:]))
        if frame.schema != expected:
            raise IncompatibleStateError(
                f"store {store.name}: the state's columns are {dict(frame.schema)}, those of the topology are "
                f"{dict(expected)}: keys, values or operators changed; begin with a new checkpoint"
            )
        for identity, entry in form.entries(frame):
            store.restore(identity, entry)
    store.commit()


def _chunk(kind: int, numbers: dict[str, int], frame: pl.DataFrame) -> bytes:
    packed = json.dumps(numbers).encode()
    buffer = io.BytesIO()
    frame.write_ipc_stream(buffer, compat_level=pl.CompatLevel.oldest())
    return _HEADER.pack(VERSION, kind, len(packed)) + packed + buffer.getvalue()
