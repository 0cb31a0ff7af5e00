"""Serdes for topics of bytes, with the types of their columns.

A serde converts between the bytes of a topic, a Python value, and the cell of an Arrow column. The bytes have the
format of Kafka's own serializers. ``row(schema)`` describes typed rows, whose columns the topic itself stores.

    >>> LONG.serialize(258).hex()
    '0000000000000102'
    >>> JSON.deserialize(b'{"a": [1]}')
    {'a': [1]}
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from millrace_streams.errors import TopologyError

_METADATA: Final = b"millrace.serde"
# json.dumps would make an encoder at each call.
_JSON_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


_JSON_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serde:
    """Type of keys or values. ``to_column`` and ``from_column`` convert between the Python value and the column's cell.

    ``key_from_column`` replaces ``from_column`` for keys, which must be hashable, if other values are not.

    With ``big_endian`` the bytes are those of the column's cells, most significant byte first. Without ``has_bytes``
    the type exists only in columns, and no topic of bytes can hold it.
    """

    name: str
    data_type: pa.DataType
    serialize: Callable[[Any], bytes] = field(repr=False)
    deserialize: Callable[[bytes], Any] = field(repr=False)
    to_column: Callable[[Any], Any] | None = field(default=None, repr=False)
    from_column: Callable[[Any], Any] | None = field(default=None, repr=False)
    key_from_column: Callable[[Any], Any] | None = field(default=None, repr=False)
    big_endian: bool = field(default=False, repr=False)
    has_bytes: bool = field(default=True, repr=False)

    def field(self, name: str) -> pa.Field:
        """Return a column of this type. Its metadata names the serde if the Arrow type does not identify it."""
        plain = pa.field(name, self.data_type)
        return plain.with_metadata({_METADATA: self.name.encode()}) if self.to_column is not None else plain

    def __str__(self) -> str:
        """Return the name."""
        return self.name


@dataclass(frozen=True, slots=True)
class RowSerde:
    """Serde of rows with the columns of ``schema``.

    A row is a dict in Python and columns inside the engine. In a topic of bytes the rows are payloads, see
    ``millrace_streams.payload_rows``.
    """

    schema: pa.Schema

    def __str__(self) -> str:
        """Return the names of the columns."""
        return f"row of {', '.join(self.schema.names)}"


def _number(name: str, data_type: pa.DataType, form: str) -> Serde:
    # No Struct, because serdes are sent to workers, and Structs cannot be pickled.
    return Serde(
        name=name,
        data_type=data_type,
        serialize=lambda value: struct.pack(form, value),
        deserialize=lambda data: struct.unpack(form, data)[0],
        big_endian=True,
    )


class _ByText:
    """Base of keys that are JSON objects, JSON arrays or nested cells.

    ``text`` identifies a key among the keys of its class, and gives its hash.
    """

    __slots__ = ()

    text: str

    def __eq__(self, other: object) -> bool:
        """Compare keys by their text, and with other values by the content."""
        if isinstance(other, _ByText) and type(other) is type(self):
            return self.text == other.text
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        """Compare as ``__eq__`` does."""
        return not self == other

    def __hash__(self) -> int:
        """Return the hash of the text."""
        return hash(self.text)


class KeyObject(_ByText, dict[str, Any]):  # type: ignore[misc]
    """JSON object as a key: a hashable dict that does not change.

    ``text``, its JSON, identifies the key among others, as its bytes do in Kafka.
    """

    __slots__ = ("text",)

    def __init__(self, fields: dict[str, Any], text: str) -> None:
        """Make the key of an object."""
        dict.__init__(self, fields)
        self.text = text

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle fields and text."""
        return type(self), (dict(self), self.text)


class KeyArray(_ByText, list[Any]):  # type: ignore[misc]
    """JSON array as a key: a hashable list that does not change.

    ``text`` is as in ``KeyObject``.
    """

    __slots__ = ("text",)

    def __init__(self, elements: list[Any], text: str) -> None:
        """Make the key of an array."""
        list.__init__(self, elements)
        self.text = text

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle elements and text."""
        return type(self), (list(self), self.text)


class KeyStruct(KeyObject):
    """Cell of a column of structs as a key.

    ``text`` is the cell's ``repr``, which identifies the key.
    """

    __slots__ = ()


class KeyList(KeyArray):
    """Cell of a column of lists as a key.

    ``text`` is the cell's ``repr``, which identifies the key.
    """

    __slots__ = ()


def _refuse_change(self: Any, *arguments: Any, **fields: Any) -> Any:
    raise TypeError("a key does not change, because its place depends on it: make a new one, as in {**key, ...}")


for _name in ("__setitem__", "__delitem__", "clear", "pop"):
    setattr(KeyObject, _name, _refuse_change)
    setattr(KeyArray, _name, _refuse_change)
for _name in ("popitem", "setdefault", "update", "__ior__"):
    setattr(KeyObject, _name, _refuse_change)
for _name in ("append", "extend", "insert", "remove", "reverse", "sort", "__iadd__", "__imul__"):
    setattr(KeyArray, _name, _refuse_change)


def key_of_json(text: str) -> Any:
    """Return the key with this JSON, which is hashable."""
    value = json.loads(text)
    if isinstance(value, dict):
        return KeyObject(value, text)
    return KeyArray(value, text) if isinstance(value, list) else value


def key_of_cell(cell: Any) -> Any:
    """Return the key of a cell of a column of structs or lists, which is hashable."""
    if isinstance(cell, dict):
        return KeyStruct(cell, repr(cell))
    return KeyList(cell, repr(cell)) if isinstance(cell, list) else cell


def json_text(value: Any) -> str:
    """Return the JSON of a value without spaces, as stored in columns; fields keep their order.

    Raises ``TypeError`` or ``ValueError`` for a value that JSON does not have, such as NaN or an infinity.
    """
    return _JSON_ENCODER.encode(value)


def parse_json(text: str) -> Any:
    """Parse JSON from a topic. Raises ``ValueError`` or ``RecursionError``, also for ``NaN`` and ``Infinity``."""
    return _JSON_DECODER.decode(text)


def _boolean(data: bytes) -> bool:
    if data not in (b"\x00", b"\x01"):
        raise ValueError(f"a boolean is one byte, 0 or 1, and not {data!r}")
    return data == b"\x01"


STRING: Final = Serde(name="string", data_type=pa.string(), serialize=str.encode, deserialize=bytes.decode)
BYTES: Final = Serde(name="bytes", data_type=pa.binary(), serialize=bytes, deserialize=bytes)
INTEGER: Final = _number("integer", pa.int32(), ">i")
LONG: Final = _number("long", pa.int64(), ">q")
DOUBLE: Final = _number("double", pa.float64(), ">d")
BOOLEAN: Final = Serde(
    name="boolean",
    data_type=pa.bool_(),
    serialize=lambda value: b"\x01" if value else b"\x00",
    deserialize=_boolean,
)
JSON: Final = Serde(
    name="json",
    data_type=pa.string(),
    serialize=lambda value: json_text(value).encode(),
    deserialize=lambda data: parse_json(data.decode()),
    to_column=json_text,
    # State of older versions may hold NaN.
    from_column=json.loads,
    key_from_column=key_of_json,
)

SERDES: Final[dict[str, Serde]] = {serde.name: serde for serde in (STRING, BYTES, INTEGER, LONG, DOUBLE, BOOLEAN, JSON)}
_PYTHON_TYPES: Final[dict[type, Serde]] = {str: STRING, int: LONG, float: DOUBLE, bytes: BYTES, bool: BOOLEAN}


def row(schema: Any) -> RowSerde:
    """Describe rows of a schema: an Arrow schema, or any input of ``millrace.schemas.parse_schema``."""
    if not isinstance(schema, pa.Schema):
        from millrace.schemas import parse_schema

        schema = parse_schema(schema)
    return RowSerde(schema)


def serde_of(given: Any, node: str) -> Serde | RowSerde:
    """Convert a user's argument to a serde.

    The argument is a serde, its name (``"long"``), a Python type, an Arrow type, or an Arrow schema. A schema means a
    row; a schema with the single column ``value`` means a bare value. Raises ``TopologyError`` naming ``node``.
    """
    if isinstance(given, Serde | RowSerde):
        return given
    if isinstance(given, str) and given in SERDES:
        return SERDES[given]
    if isinstance(given, type) and given in _PYTHON_TYPES:
        return _PYTHON_TYPES[given]
    if isinstance(given, pa.Schema):
        if given.names == ["value"]:
            return serde_of(given.field(0).type, node)
        return RowSerde(given)
    if isinstance(given, pa.DataType):
        for serde in SERDES.values():
            if serde.data_type == given and serde.to_column is None:
                return serde
        refuse = _no_bytes(given)
        return Serde(name=str(given), data_type=given, serialize=refuse, deserialize=refuse, has_bytes=False)
    raise TopologyError(f"{node}: {given!r} is not a serde: give one of {', '.join(SERDES)}, or row(schema)")


def scalar_serde(given: Any, node: str) -> Serde:
    """Convert an argument to a serde of a single value, such as a key; see ``serde_of``. Raises ``TopologyError``."""
    serde = serde_of(given, node)
    if isinstance(serde, RowSerde):
        raise TopologyError(f"{node}: a single value is needed here, not a row: give one of {', '.join(SERDES)}")
    return serde


def serde_of_field(column: pa.Field) -> Serde:
    """Return the serde of a column."""
    name = (column.metadata or {}).get(_METADATA)
    if name is not None:
        return SERDES[name.decode()]
    serde = serde_of(column.type, column.name)
    assert isinstance(serde, Serde)
    return serde


def sort_key(value: Any) -> Any:
    """Return a sort key with the order of the key's bytes (as in Kafka's stores): by type, then as unsigned bytes.

    In a key of several columns a null comes before all values. Keys of JSON may be of several types. Objects and arrays
    have the order of their JSON; numbers and texts that of other serdes, so that 9 comes before 10.
    """
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return b"\x01" if value else b"\x00"
    if isinstance(value, int):
        return (value & (2**64 - 1)).to_bytes(8, "big")
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, KeyObject | KeyArray):
        return value.text.encode()
    if isinstance(value, tuple):
        return tuple((False,) if part is None else (True, sort_key(part)) for part in value)
    return value


def _no_bytes(data_type: pa.DataType) -> Callable[[Any], Any]:
    def refuse(value: Any) -> Any:
        raise TopologyError(f"{data_type} has no serde: a topic of bytes can hold {', '.join(SERDES)}")

    return refuse
