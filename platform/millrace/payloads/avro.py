"""Decoding of Avro's binary encoding to columns, field by field.

Each step reads one field of all payloads. The writer's schema is compiled once into readers, one for each field. The
results have the types of ``millrace.schemas.avro``. Source: Avro 1.12's specification, "Binary Encoding".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from millrace.payloads.arrays import retyped
from millrace.payloads.numbers import decimals, from_words, uuid_text
from millrace.payloads.wire import TRUNCATED, Cursor, Longs, lists, scatter
from millrace.schemas.avro import AvroNames, AvroSchema, avro_type, load_avro

Reader: TypeAlias = Callable[[Cursor], pa.Array]

TICKS: Final = {
    "time-millis": 1_000_000,
    "time-micros": 1_000,
    "timestamp-millis": 1_000,
    "local-timestamp-millis": 1_000,
}
"""Units of a column in one unit of Avro's logical type. Times of day are in ns, timestamps in µs. Others have 1."""


@dataclass(frozen=True, slots=True)
class AvroReader:
    """Reader of payloads that were written with one schema. ``schema`` is that of the result."""

    schema: pa.Schema
    read_struct: Reader
    """Function that reads a record of each payload, and leaves surplus bytes."""

    @classmethod
    def of(cls, writer_schema: str, references: dict[str, str] | None = None) -> AvroReader:
        """Create a reader; raises ``SchemaError`` if the schema is invalid or not a record."""
        from millrace.schemas.avro import parse_avro

        schema, names = load_avro(writer_schema, references)
        columns = parse_avro(writer_schema, references)
        return cls(columns, reader_of(schema, names, ""))

    def read(self, cursor: Cursor) -> pa.RecordBatch:
        """Read a record of each payload; surplus bytes are a fault."""
        struct = self.read_struct(cursor)
        left = cursor.position < cursor.end
        if left.any():
            cursor.fail(left, "the record ends before the payload: it was written with another schema")
        return pa.RecordBatch.from_arrays(struct.flatten(), names=self.schema.names)


def reader_of(schema: AvroSchema, names: AvroNames, path: str) -> Reader:
    """Create a reader of one value of each payload; ``path`` is for messages. Raises ``SchemaError``."""
    schema = names.resolve(schema)
    if isinstance(schema, list):
        return _union(schema, names, path)
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(schema, dict):
        if kind == "record":
            return _record(schema, names, path)
        if kind == "array":
            return _array(schema, names, path)
        if kind == "map":
            return _map(schema, names, path)
        if kind == "enum":
            return _enum(schema["symbols"], path)
    return _primitive(kind, schema if isinstance(schema, dict) else {}, avro_type(schema, names, path), path)


def _primitive(kind: str, schema: dict[str, Any], data_type: pa.DataType, path: str) -> Reader:
    logical = str(schema.get("logicalType"))
    if kind in ("int", "long"):
        ticks = TICKS.get(logical, 1)
        return lambda cursor: from_words(cursor.zigzag(path), data_type, cursor, path, ticks=ticks)
    if kind == "boolean":
        return lambda cursor: pa.array(cursor.fixed(1, path) != 0)
    if kind == "float":
        return lambda cursor: pa.array(cursor.fixed(4, path).astype(np.uint32).view(np.float32))
    if kind == "double":
        return lambda cursor: pa.array(cursor.fixed(8, path).view(np.float64))
    size = schema["size"] if kind == "fixed" else None

    def read(cursor: Cursor) -> pa.Array:
        lengths = cursor.zigzag(path) if size is None else np.full(len(cursor), size, np.int64)
        starts, lengths = cursor.lengths(lengths, path)
        if pat.is_decimal(data_type):
            return decimals(cursor, starts, lengths, data_type, path)
        if logical == "uuid" and kind == "fixed":
            return uuid_text(cursor.binary(starts, lengths))
        return cursor.text(starts, lengths, path) if pat.is_string(data_type) else cursor.binary(starts, lengths)

    return read


def _enum(symbols: list[str], path: str) -> Reader:
    dictionary = pa.array(symbols, pa.string())

    def read(cursor: Cursor) -> pa.Array:
        index = cursor.zigzag(path)
        wrong = (index < 0) | (index >= len(symbols))
        if wrong.any():
            cursor.fail(wrong, f"{path}: the enum has no symbol of that number")
            index = np.where(wrong, 0, index)
        return dictionary.take(pa.array(index))

    return read


def _record(schema: dict[str, Any], names: AvroNames, path: str) -> Reader:
    prefix = f"{path}." if path else ""
    readers = [reader_of(each["type"], names, prefix + each["name"]) for each in schema["fields"]]
    fields = list(avro_type(schema, names, path))

    def read(cursor: Cursor) -> pa.Array:
        return pa.StructArray.from_arrays([reader(cursor) for reader in readers], fields=fields)

    return read


def _union(schemas: list[Any], names: AvroNames, path: str) -> Reader:
    data_type = avro_type(schemas, names, path)
    readers = {number: reader_of(each, names, path) for number, each in enumerate(schemas) if each != "null"}
    is_struct = len(readers) > 1 and data_type not in (pa.int64(), pa.float64())

    def read(cursor: Cursor) -> pa.Array:
        branch = cursor.zigzag(path)
        wrong = (branch < 0) | (branch >= len(schemas))
        if wrong.any():
            cursor.fail(wrong, f"{path}: the union has no alternative of that number")
        members = []
        for number, reader in readers.items():
            rows = np.flatnonzero(branch == number)
            part = cursor if len(rows) == len(cursor) else cursor.take(rows)
            values = reader(part)
            if part is not cursor:
                cursor.position[rows] = part.position
                values = scatter(values, rows, len(cursor))
            members.append(values if is_struct else values.cast(data_type) if len(readers) > 1 else values)
        if is_struct:
            present = np.isin(branch, list(readers))
            return pa.StructArray.from_arrays(members, names=[each.name for each in data_type], mask=pa.array(~present))
        return members[0] if len(members) == 1 else pc.coalesce(*members)

    return read


def _array(schema: dict[str, Any], names: AvroNames, path: str) -> Reader:
    data_type = avro_type(schema, names, path)
    item = reader_of(schema["items"], names, f"{path}.element")

    def read(cursor: Cursor) -> pa.Array:
        values, offsets = _items(cursor, item, data_type.value_type, path)
        return pa.ListArray.from_arrays(offsets, retyped(values, data_type.value_type), type=data_type)

    return read


def _map(schema: dict[str, Any], names: AvroNames, path: str) -> Reader:
    data_type = avro_type(schema, names, path)
    entry = pa.struct([("key", pa.string()), ("value", data_type.item_type)])
    value = reader_of(schema["values"], names, f"{path}.value")
    key = _primitive("string", {}, pa.string(), f"{path}.key")

    def pair(cursor: Cursor) -> pa.Array:
        return pa.StructArray.from_arrays(
            [key(cursor), retyped(value(cursor), data_type.item_type)], fields=list(entry)
        )

    def read(cursor: Cursor) -> pa.Array:
        entries, offsets = _items(cursor, pair, entry, path)
        keys, values = entries.flatten()
        return pa.MapArray.from_arrays(offsets, keys, values, type=data_type)

    return read


def _items(cursor: Cursor, item: Reader, data_type: pa.DataType, path: str) -> tuple[pa.Array, Any]:
    """Read the blocks of arrays or maps: first items of all payloads, then second items, and so on."""
    elements, owners = [], []
    remaining = np.zeros(len(cursor), np.int64)
    active = np.arange(len(cursor))
    at_count = active
    while len(active):
        if len(at_count):
            part = cursor.take(at_count)
            remaining[at_count] = _block_counts(part, path)
            cursor.position[at_count] = part.position
        active = active[remaining[active] > 0]
        part = cursor.take(active)
        if len(active):
            elements.append(item(part))
            owners.append(active)
            cursor.position[active] = part.position
            remaining[active] -= 1
            remaining[active[cursor.faults.are_there(part.rows)]] = 0
            active = active[~cursor.faults.are_there(part.rows)]
        at_count = active[remaining[active] == 0]
    return lists(elements, owners, len(cursor), data_type)


def _block_counts(cursor: Cursor, path: str) -> Longs:
    count = cursor.zigzag(path)
    sized = np.flatnonzero(count < 0)
    if len(sized):
        part = cursor.take(sized)
        part.zigzag(path)
        cursor.position[sized] = part.position
        count[sized] = -count[sized]
    # An item has at least one byte, so a count beyond the remaining bytes is damage.
    wrong = (count > cursor.end - cursor.position) | (count < 0)
    if wrong.any():
        cursor.fail(wrong, f"{path}: {TRUNCATED}")
        count = np.where(wrong, 0, count)
    return count
