"""Encoder of columns to payloads, the counterpart of ``decoder``.

Payloads are bare or in Confluent's framing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import SchemaError
from millrace.payloads.avro_writing import AvroWriter
from millrace.payloads.decoder import PayloadKind, PayloadSchema
from millrace.payloads.json_writing import json_objects
from millrace.payloads.protobuf_writing import ProtobufWriter
from millrace.schemas.json_schema import to_json_schema
from millrace.schemas.proto_files import ProtoFile

_CONFLUENT_HEADER: Final = struct.Struct(">bI")


class PayloadEncoder:
    """Encoder of rows as payloads of one schema.

    The rows have the columns of ``columns``. A framed payload begins with ``schema_id``; without an id, payloads are
    bare. Threads may share an encoder.

    Raises ``SchemaError`` if the schema cannot hold the columns.
    """

    def __init__(self, wanted: PayloadSchema, columns: pa.Schema, *, schema_id: int | None = None) -> None:
        prefix = b"" if schema_id is None else _CONFLUENT_HEADER.pack(0, schema_id)
        if prefix and wanted.kind is PayloadKind.PROTOBUF:
            file = ProtoFile(wanted.prepared().compiled)
            prefix += file.message_indexes(file.message(wanted.message))
        self._write: Final = _writer(wanted, columns)
        self._prefix: Final = pa.scalar(prefix, pa.binary()) if prefix else None

    def encode(self, columns: pa.RecordBatch) -> pa.BinaryArray:
        """Encode each row. Raises ``SchemaError`` naming a column with a value that the payload schema cannot hold."""
        try:
            payloads = self._write(columns)
        except ValueError as error:
            raise SchemaError(str(error)) from None
        return payloads if self._prefix is None else pc.binary_join_element_wise(self._prefix, payloads, b"")


def _writer(wanted: PayloadSchema, columns: pa.Schema) -> Callable[[pa.RecordBatch], pa.Array]:
    if wanted.kind is PayloadKind.JSON:
        to_json_schema(columns)  # raises for columns without a form in JSON
        return lambda batch: json_objects(batch.schema.names, batch.columns).cast(pa.binary())
    if wanted.kind is PayloadKind.AVRO:
        return AvroWriter.of(wanted.text, dict(wanted.references), columns).write
    file = ProtoFile(wanted.prepared().compiled)
    return ProtobufWriter.of(file, file.message(wanted.message), columns).write
