"""State as bytes: versioned Arrow chunks in Spark's state store.

A chunk is a 16-byte header, facts, and an Arrow IPC stream of rows::

     0  u8   version = 2
     1  u8   kind: 0 base (each entry at most once), 1 delta (entries that replace older ones), 2 page
     2  2 bytes reserved, zero
     4  u32  length of the facts (big-endian)
     8  8 bytes reserved, zero
    16      facts: a JSON object (``Facts``); a page has none, ``{}``
    ..      Arrow IPC stream

Bases and deltas form the log of a store. An entry of a later chunk replaces that of an earlier one, and that of a page.
The facts of the last chunk are current.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import polars as pl

from millrace_streams.errors import IncompatibleStateError
from millrace_streams.frames.packed import pack_frame, unpack_frame
from millrace_streams.state.pages import Slot

VERSION: Final = 2
Kind: TypeAlias = Literal["base", "delta", "page"]
_KINDS: Final[tuple[Kind, ...]] = ("base", "delta", "page")
_HEADER: Final = struct.Struct(">BB2xI8x")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts of a store beside its rows.

    ``numbers`` are the operator's (stream times and similar). Slots are ``slot_ms`` long; ``slots`` has those with
    pages. Rows older than ``kept_from_ms`` have expired. Keys are distributed over ``buckets`` buckets.
    """

    buckets: int = 1
    numbers: Mapping[str, int] = field(default_factory=dict)
    slot_ms: int = 1
    slots: Mapping[int, Slot] = field(default_factory=dict)
    kept_from_ms: int = -(2**63)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "buckets": self.buckets,
            "numbers": dict(self.numbers),
            "slot_ms": self.slot_ms,
            "slots": [[number, *slot] for number, slot in sorted(self.slots.items())],
            "kept_from_ms": self.kept_from_ms,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Facts:
        """Parse the output of ``to_json``."""
        return cls(
            buckets=found["buckets"],
            numbers=found["numbers"],
            slot_ms=found["slot_ms"],
            slots={number: Slot(parts, size_bytes) for number, parts, size_bytes in found["slots"]},
            kept_from_ms=found["kept_from_ms"],
        )


class Chunk(NamedTuple):
    """A decoded chunk. ``facts`` is None for a page."""

    kind: Kind
    facts: Facts | None
    rows: pl.DataFrame


def pack_chunk(kind: Kind, rows: pl.DataFrame, facts: Facts | None = None) -> bytes:
    """Encode rows as a chunk."""
    packed = json.dumps({} if facts is None else facts.to_json()).encode()
    return _HEADER.pack(VERSION, _KINDS.index(kind), len(packed)) + packed + pack_frame(rows)


def unpack_chunk(store: str, schema: pl.Schema, chunk: bytes) -> Chunk:
    """Decode a chunk of ``pack_chunk`` for a store with these columns.

    Raises ``IncompatibleStateError`` for another version, or other columns than the topology's.
    """
    version, kind, length = _HEADER.unpack_from(chunk)
    if version != VERSION or kind >= len(_KINDS):
        raise IncompatibleStateError(
            f"store {store}: its state has version {version}, but this millrace reads version {VERSION}: use the "
            "millrace that wrote it, or start with a new checkpoint"
        )
    start = _HEADER.size + length
    rows = unpack_frame(chunk[start:])
    if rows.schema != schema:
        raise IncompatibleStateError(
            f"store {store}: the state's columns are {dict(rows.schema)}, but those of the topology are "
            f"{dict(schema)}: keys, values, aggregates or operators changed; start with a new checkpoint"
        )
    facts = json.loads(chunk[_HEADER.size : start])
    return Chunk(_KINDS[kind], Facts.from_json(facts) if facts else None, rows)
