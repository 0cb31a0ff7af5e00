"""Serdes of rows as Avro, JSON or Protobuf, for topics of bytes.

    >>> orders = json_rows("id BIGINT, amount DOUBLE")
    >>> orders.serialize({"id": 7, "amount": 1.5})
    b'{"id":7,"amount":1.5}'
    >>> orders.schema.names
    ['id', 'amount']

The codecs of ``millrace.payloads`` read payloads in bulk; payloads are written one by one.
"""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import struct
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa

from millrace.payloads import Decoded, Framing, PayloadDecoder, PayloadKind, PayloadSchema
from millrace.schemas import parse_schema
from millrace.schemas.avro import load_avro, to_avro
from millrace.schemas.json_schema import to_json_schema
from millrace.schemas.proto_files import ProtoFile
from millrace.schemas.protobuf import to_protobuf
from millrace_streams.errors import TopologyError
from millrace_streams.serdes import RowSerde

FramingName: TypeAlias = Literal["none", "confluent"]
SchemaLookup: TypeAlias = Callable[[int], PayloadSchema]

_CONFLUENT_HEADER: Final = struct.Struct(">bi")
_FIRST_MESSAGE: Final = b"\x00"


@dataclass(frozen=True, eq=False)
class PayloadRows(RowSerde):
    """Serde of rows of ``schema`` as payloads. Made by ``avro``, ``json_rows`` and ``protobuf``.

    A framed payload starts with the id of its schema. ``schema_of`` finds the schemas of payloads with other ids;
    ``schema_id`` is the id that is written.
    """

    payload: PayloadSchema = field(repr=False, kw_only=True)
    framing: Framing = field(default=Framing.NONE, kw_only=True)
    schema_of: SchemaLookup | None = field(default=None, repr=False, kw_only=True)
    schema_id: int | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        """Return the kind and the names of the columns."""
        return f"{self.payload.kind} of {', '.join(self.schema.names)}"

    def read(self, payloads: pa.Array) -> Decoded:
        """Decode many payloads (BINARY; null gives a row of nulls) into columns, with the faults of invalid ones."""
        return self._decoder.decode(payloads)

    def serialize(self, value: Mapping[str, Any]) -> bytes:
        """Encode a row. Raises ``TopologyError`` if the payload is framed and there is no id to write."""
        return self._header + self._write(value)

    def deserialize(self, data: bytes) -> dict[str, Any]:
        """Decode a payload to a row. Raises ``ValueError`` with the fault of an invalid one."""
        decoded = self.read(pa.array([data], pa.binary()))
        if decoded.faults:
            raise ValueError(decoded.faults[0])
        [row] = decoded.columns.to_pylist()
        found: dict[str, Any] = row
        return found

    @cached_property
    def _decoder(self) -> PayloadDecoder:
        return PayloadDecoder(self.payload, self.framing, self.schema_of)

    @cached_property
    def _header(self) -> bytes:
        if self.framing is Framing.NONE:
            return b""
        if self.schema_id is None:
            raise TopologyError(f"{self}: payloads are written with a schema id, which is missing: give schema_id=...")
        header = _CONFLUENT_HEADER.pack(0, self.schema_id)
        return header + _FIRST_MESSAGE if self.payload.kind is PayloadKind.PROTOBUF else header

    @cached_property
    def _write(self) -> Callable[[Mapping[str, Any]], bytes]:
        match self.payload.kind:
            case PayloadKind.AVRO:
                return _avro_writer(self.payload)
            case PayloadKind.PROTOBUF:
                return _protobuf_writer(self.payload)
            case PayloadKind.JSON:
                return _json_writer(self.schema.names)


def avro(
    schema: Any, *, framing: FramingName = "none", schema_of: SchemaLookup | None = None, schema_id: int | None = None
) -> PayloadRows:
    """Make a serde of Avro records, from an Avro schema's text, or from columns as DDL or any input of
    ``parse_schema``.

    With ``framing="confluent"`` payloads start with the id of their schema, see ``PayloadRows``. Raises
    ``SchemaError``.
    """
    text = schema if _is_text(schema, "{") else json.dumps(to_avro(_columns(schema)))
    return _rows(PayloadSchema(kind=PayloadKind.AVRO, text=text), framing, schema_of, schema_id)


def json_rows(
    schema: Any, *, framing: FramingName = "none", schema_of: SchemaLookup | None = None, schema_id: int | None = None
) -> PayloadRows:
    """Make a serde of JSON objects, from a JSON Schema's text or from columns, as in ``avro``. Raises
    ``SchemaError``.
    """
    text = schema if _is_text(schema, "{") else json.dumps(to_json_schema(_columns(schema)))
    return _rows(PayloadSchema(kind=PayloadKind.JSON, text=text), framing, schema_of, schema_id)


def protobuf(
    schema: Any,
    *,
    message: str = "",
    framing: FramingName = "none",
    schema_of: SchemaLookup | None = None,
    schema_id: int | None = None,
) -> PayloadRows:
    """Make a serde of Protobuf messages, from a ``.proto`` file's text or from columns; arguments as in ``avro``.

    ``message`` selects one of several messages in the file. Raises ``SchemaError``.
    """
    text = schema if _is_text(schema, "message ", within=True) else to_protobuf(_columns(schema))
    payload = PayloadSchema(kind=PayloadKind.PROTOBUF, text=text, message=message)
    return _rows(payload.prepared(), framing, schema_of, schema_id)


def _rows(
    payload: PayloadSchema, framing: FramingName, schema_of: SchemaLookup | None, schema_id: int | None
) -> PayloadRows:
    columns = pa.schema([each.with_nullable(True) for each in payload.columns()])
    known = Framing(framing)
    return PayloadRows(columns, payload=payload, framing=known, schema_of=schema_of, schema_id=schema_id)


def _columns(schema: Any) -> pa.Schema:
    return schema if isinstance(schema, pa.Schema) else parse_schema(schema)


def _is_text(schema: Any, mark: str, *, within: bool = False) -> bool:
    if not isinstance(schema, str):
        return False
    return mark in schema if within else schema.lstrip().startswith(mark)


def _avro_writer(payload: PayloadSchema) -> Callable[[Mapping[str, Any]], bytes]:
    from fastavro import schemaless_writer

    schema, _ = load_avro(payload.text, payload.references)

    def write(value: Mapping[str, Any]) -> bytes:
        buffer = io.BytesIO()
        schemaless_writer(buffer, schema, value)
        return buffer.getvalue()

    return write


def _protobuf_writer(payload: PayloadSchema) -> Callable[[Mapping[str, Any]], bytes]:
    file = ProtoFile(payload.compiled)
    message_class = file.message_class(file.message(payload.message))

    def write(value: Mapping[str, Any]) -> bytes:
        there = {name: cell for name, cell in value.items() if cell is not None}
        data: bytes = message_class(**there).SerializeToString()
        return data

    return write


def _json_writer(names: list[str]) -> Callable[[Mapping[str, Any]], bytes]:
    def write(value: Mapping[str, Any]) -> bytes:
        row = {name: value.get(name) for name in names}
        text = json.dumps(row, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_json_cell)
        return text.encode()

    return write


def _json_cell(cell: Any) -> Any:
    """Convert a cell without a JSON type to text."""
    if isinstance(cell, dt.datetime | dt.date | dt.time):
        return cell.isoformat()
    if isinstance(cell, bytes):
        return b64encode(cell).decode()
    if isinstance(cell, decimal.Decimal):
        return str(cell)
    raise TypeError(f"{type(cell).__name__} is not a JSON value")
