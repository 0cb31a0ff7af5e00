"""Writer of columns in Avro's binary encoding, field by field.

Each step writes one field of all rows. The schema is compiled once into writers, one for each field, which mirror the
readers of ``avro``. Source: Avro 1.12's specification, "Binary Encoding".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from millrace.errors import SchemaError
from millrace.payloads.arrays import entry_lists, fixed_width, joined, joined_lists, zigzags
from millrace.payloads.avro import TICKS
from millrace.payloads.avro_resolution import default_bytes
from millrace.payloads.numbers import big_endian
from millrace.payloads.wire import scatter
from millrace.schemas.avro import AvroNames, AvroSchema, avro_type, load_avro
from millrace.schemas.promotion import promote
from millrace.schemas.types import spark_name

Writer: TypeAlias = Callable[[pa.Array], pa.BinaryArray]

_NO_ITEMS: Final = b"\x00"


@dataclass(frozen=True, slots=True)
class AvroWriter:
    """Writer of rows with the columns of ``schema`` as Avro records.

    All records have the same Avro schema.
    """

    schema: pa.Schema
    _write: Writer

    @classmethod
    def of(cls, writer_schema: str, references: dict[str, str], columns: pa.Schema) -> AvroWriter:
        """Create a writer of ``columns``; a field of the record that is no column gets null, or its default.

        Raises ``SchemaError`` if the schema is no record, or if it cannot hold the columns.
        """
        record, names = load_avro(writer_schema, references)
        root = names.resolve(record)
        if not isinstance(root, dict) or root["type"] != "record":
            raise SchemaError("an Avro schema for columns is a record: wrap it into one with a field")
        return cls(columns, _record(root, names, pa.struct(list(columns)), ""))

    def write(self, columns: pa.RecordBatch) -> pa.BinaryArray:
        """Write a record for each row. Raises ``ValueError`` naming a column whose values the schema cannot hold."""
        return self._write(pa.StructArray.from_arrays(columns.columns, fields=list(self.schema)))


def _writer(schema: AvroSchema, names: AvroNames, data_type: pa.DataType, path: str) -> Writer:
    schema = names.resolve(schema)
    if isinstance(schema, list):
        return _union(schema, names, data_type, path)
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(schema, dict):
        nested = {"record": _record, "array": _array, "map": _map}.get(kind)
        if nested is not None:
            return _without_nulls(nested(schema, names, data_type, path), path)
    wanted = avro_type(schema, names, path)
    return _without_nulls(_primitive(kind, schema if isinstance(schema, dict) else {}, wanted, data_type, path), path)


def _without_nulls(write: Writer, path: str) -> Writer:
    def checked(array: pa.Array) -> pa.BinaryArray:
        if array.null_count:
            raise ValueError(f"column {path} has a null, and the Avro schema has it without null")
        return write(array)

    return checked


def _primitive(kind: str, schema: dict[str, Any], wanted: pa.DataType, data_type: pa.DataType, path: str) -> Writer:
    if kind == "enum":
        return _enum(schema["symbols"], data_type, path)
    _check(wanted, data_type, path)

    def cast(array: pa.Array) -> pa.Array:
        try:
            return promote(array, wanted)
        except pa.ArrowInvalid as error:
            raise ValueError(f"column {path} does not fit {spark_name(wanted)} of the Avro schema: {error}") from None

    if kind in ("int", "long"):
        ticks = TICKS.get(str(schema.get("logicalType")), 1)
        return lambda array: zigzags(_integers(cast(array)) // ticks)
    if kind == "boolean":
        return lambda array: fixed_width(cast(array).cast(pa.uint8()))
    if kind in ("float", "double"):
        return lambda array: fixed_width(cast(array))
    size = schema["size"] if kind == "fixed" else None

    def write(array: pa.Array) -> pa.BinaryArray:
        if pat.is_decimal(wanted):
            data = big_endian(cast(array), size)
        elif size is not None and pat.is_string(wanted):
            data = _uuids(array, path)
        else:
            data = cast(array).cast(pa.binary())
        lengths = pc.fill_null(pc.binary_length(data), -1).to_numpy().astype(np.int64)
        if size is None:
            return joined(zigzags(lengths), data)
        if (lengths != size).any():
            raise ValueError(f"column {path} has a value that does not have {size} bytes, the size in the Avro schema")
        return data

    return write


def _check(wanted: pa.DataType, data_type: pa.DataType, path: str) -> None:
    """Raise ``SchemaError`` if a column cannot be written as another type. Values decide about narrower types."""
    kinds = (pat.is_integer, pat.is_floating, pat.is_decimal)
    is_same_kind = any(is_kind(wanted) and is_kind(data_type) for is_kind in kinds)
    if wanted != data_type and not is_same_kind:
        raise SchemaError(f"column {path} is {spark_name(data_type)}, and the Avro schema has {spark_name(wanted)}")


def _integers(array: pa.Array) -> npt.NDArray[np.int64]:
    width = array.type.bit_width // 8
    values = np.frombuffer(array.buffers()[1], f"<i{width}")[array.offset : array.offset + len(array)]
    return values.astype(np.int64)


def _uuids(array: pa.StringArray, path: str) -> pa.BinaryArray:
    from uuid import UUID

    try:
        return pa.array([UUID(value).bytes for value in array.to_pylist()], pa.binary())
    except ValueError as error:
        raise ValueError(f"column {path} has a value that is no UUID: {error}") from None


def _enum(symbols: list[str], data_type: pa.DataType, path: str) -> Writer:
    _check(pa.string(), data_type, path)
    known = pa.array(symbols, pa.string())

    def write(array: pa.Array) -> pa.BinaryArray:
        places = pc.index_in(array, known)
        if places.null_count:
            value = array.filter(places.is_null())[0].as_py()
            raise ValueError(f"column {path} has {value!r}, which is no symbol of the Avro schema's enum")
        return zigzags(places.to_numpy().astype(np.int64))

    return write


def _record(schema: dict[str, Any], names: AvroNames, data_type: pa.DataType, path: str) -> Writer:
    if not pat.is_struct(data_type):
        raise SchemaError(f"column {path} is {spark_name(data_type)}, and the Avro schema has a record")
    prefix = f"{path}." if path else ""
    fields: list[tuple[int, Writer | bytes]] = []
    for each in schema["fields"]:
        at, inner = data_type.get_field_index(each["name"]), prefix + each["name"]
        if at >= 0:
            fields.append((at, _writer(each["type"], names, data_type.field(at).type, inner)))
        else:
            fields.append((at, _default(each, names, inner)))

    def write(array: pa.Array) -> pa.BinaryArray:
        columns = array.flatten()
        return joined(*(part if isinstance(part, bytes) else part(columns[at]) for at, part in fields))

    return write


def _default(field: dict[str, Any], names: AvroNames, path: str) -> bytes:
    """Return the encoded value of a field that is no column."""
    schema = names.resolve(field["type"])
    branches = schema if isinstance(schema, list) else [schema]
    if "null" in branches:
        return _mark(branches.index("null")) if isinstance(schema, list) else b""
    if "default" not in field:
        raise SchemaError(f"the Avro schema has the field {path} without null and default, and no column has this name")
    return default_bytes(field, names, path)


def _union(schemas: list[Any], names: AvroNames, data_type: pa.DataType, path: str) -> Writer:
    others = [number for number, each in enumerate(schemas) if each != "null"]
    if len(others) > 1:
        raise SchemaError(f"column {path}: the Avro schema has a union of several types, which is only read")
    if not others:
        raise SchemaError(f"column {path}: the Avro schema has null only")
    mark, write = _mark(others[0]), _writer(schemas[others[0]], names, data_type, path)
    none = _mark(schemas.index("null")) if "null" in schemas else None

    def written(array: pa.Array) -> pa.BinaryArray:
        if not array.null_count:
            return joined(mark, write(array))
        if none is None:
            raise ValueError(f"column {path} has a null, and the Avro schema has it without null")
        rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
        if not len(rows):
            return pa.repeat(pa.scalar(none, pa.binary()), len(array))
        values = joined(mark, write(array.take(pa.array(rows))))
        return scatter(values, rows, len(array)).fill_null(none)

    return written


def _mark(branch: int) -> bytes:
    mark: bytes = zigzags(np.array([branch]))[0].as_py()
    return mark


def _array(schema: dict[str, Any], names: AvroNames, data_type: pa.DataType, path: str) -> Writer:
    if not pat.is_list(data_type):
        raise SchemaError(f"column {path} is {spark_name(data_type)}, and the Avro schema has an array")
    item = _writer(schema["items"], names, data_type.value_type, f"{path}.element")
    return lambda array: _blocks(array, item(array.flatten()))


def _map(schema: dict[str, Any], names: AvroNames, data_type: pa.DataType, path: str) -> Writer:
    if not pat.is_map(data_type) or data_type.key_type != pa.string():
        raise SchemaError(f"column {path} is {spark_name(data_type)}, and the Avro schema has a map with text as keys")
    key = _writer("string", names, pa.string(), f"{path}.key")
    value = _writer(schema["values"], names, data_type.item_type, f"{path}.value")

    def write(array: pa.Array) -> pa.BinaryArray:
        entries = entry_lists(array)
        keys, values = entries.flatten().flatten()
        return _blocks(entries, joined(key(keys), value(values)))

    return write


def _blocks(array: pa.ListArray, items: pa.BinaryArray) -> pa.BinaryArray:
    """Write each list as one block: the number of its items, the items, and the end."""
    lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
    blocks = joined(zigzags(lengths), joined_lists(array, items), _NO_ITEMS)
    return pc.if_else(pa.array(lengths == 0), _NO_ITEMS, blocks) if (lengths == 0).any() else blocks
