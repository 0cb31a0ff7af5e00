"""Codec between Kafka clients' records and a typed topic's columns.

A record has a key and a value of bytes; a row has columns, some of which are its key. The rules:

* A value is a payload of the topic's format, with all columns.
* A key gives the key columns. If the value has them too, both are equal; a row without a key takes them from the value.
* A record without a value is a tombstone. It deletes the rows of its key and has only key columns.
* A record that does not fit is a fault of its row.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from millrace.config.topic import Framing, KafkaKeyFormat, KafkaValueFormat
from millrace.errors import SchemaError
from millrace.payloads.arrays import pieces, retyped
from millrace.payloads.decoder import PayloadDecoder, PayloadKind, PayloadSchema
from millrace.payloads.encoder import PayloadEncoder
from millrace.payloads.keys import KeyCodec, Note
from millrace.payloads.nested_nulls import note_nulls_within
from millrace.schemas.avro import to_avro
from millrace.schemas.protobuf import to_protobuf
from millrace.schemas.types import spark_name


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadFormat:
    """Formats of keys and values. ``schema_id`` 0 stands for the schema that the columns give."""

    value: KafkaValueFormat
    framing: Framing = Framing.NONE
    schema_id: int = 0
    message: str = ""
    key: KafkaKeyFormat = KafkaKeyFormat.BINARY


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """Rows of records. ``tombstones`` is None without deletions; with ``faults`` the rows have no meaning."""

    columns: pa.RecordBatch
    tombstones: pa.BooleanArray | None
    faults: Mapping[int, str]
    is_complete: bool = True
    """Whether all records were read, so that ``faults`` has the faults of all."""


def check_format(schema: pa.Schema, key_columns: Sequence[str], payload_format: PayloadFormat) -> None:
    """Check that a topic with these columns can have this format. Raises ``SchemaError`` with the column.

    A registered payload schema is not looked up.
    """
    if payload_format.key is KafkaKeyFormat.STRING and len(key_columns) != 1:
        raise SchemaError(
            f"a key as a string is the text of one key column, and the topic has {len(key_columns)}: use json or ignore"
        )
    if payload_format.value is KafkaValueFormat.RAW:
        _raw_column(schema, key_columns)
    elif not payload_format.schema_id:
        _own_schema(schema, PayloadKind(payload_format.value))


class RecordCodec:
    """Codec of the records of one topic.

    ``schema`` has the columns of new rows, and ``read_schema`` those in which all rows are read. ``schema_of`` finds
    payload schemas by their ids. Threads may share a codec.

    Raises ``SchemaError`` as ``check_format`` does, and ``UnknownSchemaError``.
    """

    def __init__(
        self,
        schema: pa.Schema,
        key_columns: Sequence[str],
        payload_format: PayloadFormat,
        schema_of: Callable[[int], PayloadSchema],
        read_schema: pa.Schema | None = None,
    ) -> None:
        check_format(schema, key_columns, payload_format)
        self._schema: Final = schema
        self._key_columns: Final = tuple(key_columns)
        self._has_keys: Final = payload_format.key is not KafkaKeyFormat.IGNORE
        self._keys: Final = KeyCodec([schema.field(name) for name in key_columns], payload_format.key)
        self._required: Final = [each.name for each in schema if not each.nullable]
        self.read_schema: Final = schema if read_schema is None else read_schema
        """Columns of the rows that ``encode`` takes."""
        self._raw: Final = _raw_column(schema, key_columns) if payload_format.value is KafkaValueFormat.RAW else None
        if self._raw is not None:
            return
        kind = PayloadKind(payload_format.value)
        is_framed = payload_format.framing is Framing.CONFLUENT
        if payload_format.schema_id:
            known = schema_of(payload_format.schema_id)
            wanted = written = PayloadSchema(
                kind=known.kind,
                text=known.text,
                references=known.references,
                message=payload_format.message,
            ).prepared()
            if known.kind is not kind:
                raise SchemaError(
                    f"payload schema {payload_format.schema_id} is of {known.kind} payloads, and kafka.value.format is "
                    f"{kind}: name another schema, or change the format"
                )
        else:
            wanted, written = _own_schema(schema, kind), _own_schema(self.read_schema, kind)
        read = [each.with_nullable(True) if each.name in key_columns else each for each in schema]
        if kind is not PayloadKind.JSON:  # nulls within columns are allowed by writers' schemas, and are found later
            read = [_relaxed(each) for each in read]
        self._decoder: Final = PayloadDecoder(wanted, payload_format.framing, schema_of, columns=pa.schema(read))
        schema_id = payload_format.schema_id if is_framed else None
        self._encoder: Final = PayloadEncoder(written, self.read_schema, schema_id=schema_id)

    # --- from records to rows --------------------------------------------------------------------------------

    def decode(self, keys: pa.BinaryArray, values: pa.BinaryArray, *, faults_max: int | None = None) -> DecodedRecords:
        """Decode records to rows, a piece at a time. After ``faults_max`` faults or some more, no piece is decoded."""
        faults: dict[int, str] = {}
        found: list[pa.RecordBatch] = []
        deletes: list[pa.BooleanArray | None] = []
        read = 0
        for first, length in pieces(values):
            if faults_max is not None and len(faults) >= faults_max:
                break
            of_piece: dict[int, str] = {}
            batch, tombstones = self._decoded(keys.slice(first, length), values.slice(first, length), of_piece)
            faults.update((first + row, of_piece[row]) for row in sorted(of_piece))
            found.append(batch)
            deletes.append(tombstones)
            read = first + length
            time.sleep(0)  # other threads get the interpreter
        if faults or not found:
            arrays = [pa.nulls(len(keys), each.type) for each in self._schema]
            return DecodedRecords(
                pa.RecordBatch.from_arrays(arrays, schema=self._schema), None, faults, read == len(keys)
            )
        if len(found) == 1:
            return DecodedRecords(found[0], deletes[0], faults)
        return DecodedRecords(pa.concat_batches(found), _all_tombstones(deletes, found), faults)

    def _decoded(
        self, keys: pa.BinaryArray, values: pa.BinaryArray, faults: dict[int, str]
    ) -> tuple[pa.RecordBatch, pa.BooleanArray | None]:
        """Decode a piece, and note the faults of its rows. With faults the rows have no meaning."""

        def note(row: int, text: str) -> None:
            faults.setdefault(row, text)

        columns = self._decoded_values(values, note)
        columns = self._with_keys(columns, keys, note)
        tombstones = self._tombstones(columns, keys, values, note)
        self._check_nulls(columns, tombstones, note)
        arrays = [columns[each.name] for each in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema), tombstones

    def _decoded_values(self, values: pa.BinaryArray, note: Note) -> dict[str, pa.Array]:
        if self._raw is None:
            decoded = self._decoder.decode(values)
            for row, text in decoded.faults.items():
                note(row, text)
            return {
                each.name: retyped(array, each.type)
                for each, array in zip(self._schema, decoded.columns.columns, strict=True)
            }
        columns = {name: pa.nulls(len(values), self._schema.field(name).type) for name in self._key_columns}
        columns[self._raw.name] = _raw_values(values, self._raw, note)
        return columns

    def _with_keys(self, columns: dict[str, pa.Array], keys: pa.BinaryArray, note: Note) -> dict[str, pa.Array]:
        if not self._has_keys or keys.null_count == len(keys):
            return columns
        if not self._key_columns:
            text = (
                "it has a key, and the topic has no key columns: send it without a key, or set kafka.key.format=ignore"
            )
            for row in _rows(keys.is_valid()):
                note(row, text)
            return columns
        merged = dict(columns)
        for name, found in zip(self._key_columns, self._keys.decode(keys, note), strict=True):
            there = columns[name]
            for row in _rows(pc.not_equal(there, found)):
                note(
                    row,
                    f"key column {name} is {_shown(found[row])} in the key and {_shown(there[row])} in the value: send "
                    "the same in both, or set kafka.key.format=ignore",
                )
            merged[name] = pc.coalesce(there, found)
        return merged

    def _tombstones(
        self, columns: dict[str, pa.Array], keys: pa.BinaryArray, values: pa.BinaryArray, note: Note
    ) -> pa.BooleanArray | None:
        if not values.null_count:
            return None
        if not self._key_columns and self._raw is not None and self._raw.nullable:
            return None  # a null value is a row like any other
        deletes = values.is_null()
        text = ""
        if not self._key_columns:
            text = "it has no value, which deletes the rows of a key, and the topic has no key columns: send a value"
        elif not self._has_keys:
            text = (
                "it has no value, which deletes the rows of its key, and kafka.key.format=ignore leaves it without key"
            )
        if text:
            for row in _rows(deletes):
                note(row, text)
            return deletes
        for row in _rows(pc.and_(deletes, keys.is_null())):
            note(row, "it has neither value nor key: send the key whose rows it deletes")
        return deletes

    def _check_nulls(self, columns: dict[str, pa.Array], tombstones: pa.BooleanArray | None, note: Note) -> None:
        for name in self._required:
            if not columns[name].null_count:
                continue
            missing = columns[name].is_null()
            if tombstones is not None and name not in self._key_columns:
                missing = pc.and_not(missing, tombstones)
            for row in _rows(missing):
                note(row, f"{name}: it is missing, or null, and the column is NOT NULL")
        for each in self._schema:
            note_nulls_within(columns[each.name], each, note)

    # --- from rows to records --------------------------------------------------------------------------------

    def encode(
        self, columns: pa.RecordBatch, tombstones: pa.BooleanArray | None
    ) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        """Encode rows, which have the columns of ``read_schema``, to the keys and values of records.

        Raises ``SchemaError`` naming a column with a value that the payload schema cannot hold.
        """
        has_keys = self._has_keys and self._key_columns
        try:
            keys = self._keys.encode(columns) if has_keys else pa.nulls(columns.num_rows, pa.binary())
        except ValueError as error:
            raise SchemaError(f"the key: {error}") from None
        if tombstones is None:
            return keys, self._encoded_values(columns)
        present = np.flatnonzero(~tombstones.to_numpy(zero_copy_only=False))
        values = self._encoded_values(columns.take(pa.array(present)))
        place = np.zeros(columns.num_rows, np.int64)
        place[present] = np.arange(len(present))
        return keys, values.take(pa.array(place, mask=tombstones.to_numpy(zero_copy_only=False)))

    def _encoded_values(self, columns: pa.RecordBatch) -> pa.BinaryArray:
        if self._raw is not None:
            return columns.column(self._raw.name).cast(pa.binary())
        return self._encoder.encode(columns)


def _all_tombstones(
    parts: Sequence[pa.BooleanArray | None], batches: Sequence[pa.RecordBatch]
) -> pa.BooleanArray | None:
    """Return the tombstones of all pieces; None if no piece has any."""
    if all(part is None for part in parts):
        return None
    return pa.concat_arrays(
        [
            pa.array(np.zeros(batch.num_rows, bool)) if part is None else part
            for part, batch in zip(parts, batches, strict=True)
        ]
    )


def _own_schema(schema: pa.Schema, kind: PayloadKind) -> PayloadSchema:
    """Return the payload schema that columns give. Raises ``SchemaError`` for a type without a counterpart."""
    if kind is PayloadKind.AVRO:
        return PayloadSchema(kind=kind, text=json.dumps(to_avro(schema)))
    if kind is PayloadKind.JSON:
        from millrace.schemas.json_schema import to_json_schema

        return PayloadSchema(kind=kind, text=json.dumps(to_json_schema(schema)))
    return PayloadSchema(kind=kind, text=to_protobuf(schema))


def _raw_column(schema: pa.Schema, key_columns: Sequence[str]) -> pa.Field:
    """Return the column of raw values. Raises ``SchemaError`` unless it is the only one beside the key columns."""
    others = [each for each in schema if each.name not in key_columns]
    if len(others) == 1 and (pat.is_binary(others[0].type) or pat.is_string(others[0].type)):
        return others[0]
    named = ", ".join(f"{each.name} {spark_name(each.type)}" for each in others) or "none"
    raise SchemaError(
        f"raw values need one column of type BINARY or STRING beside the key columns, and the topic has {named}: use "
        "json, avro or protobuf"
    )


def _raw_values(values: pa.BinaryArray, column: pa.Field, note: Note) -> pa.Array:
    if pat.is_binary(column.type):
        return values
    codec = KeyCodec([column], KafkaKeyFormat.BINARY)
    return codec.decode(values, lambda row, text: note(row, text.removeprefix("its key: ")))[0]


def _rows(condition: pa.BooleanArray) -> list[int]:
    """Return the rows for which a condition holds."""
    found: npt.NDArray[np.int64] = np.flatnonzero(condition.fill_null(False).to_numpy(zero_copy_only=False))
    rows: list[int] = found.tolist()
    return rows


def _shown(value: pa.Scalar) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _relaxed(field: pa.Field) -> pa.Field:
    """Return a field that allows nulls everywhere, except as keys of maps."""
    data_type = field.type
    if pat.is_struct(data_type):
        data_type = pa.struct([_relaxed(each) for each in data_type])
    elif pat.is_list(data_type):
        data_type = pa.list_(_relaxed(data_type.value_field))
    elif pat.is_map(data_type):
        data_type = pa.map_(data_type.key_field, _relaxed(data_type.item_field))
    return pa.field(field.name, data_type, nullable=True, metadata=field.metadata)
