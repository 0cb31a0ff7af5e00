"""Decoder of an opaque topic's payloads to columns.

Payloads are bare or in Confluent's framing. A framed payload begins with a zero byte and its schema's id in four bytes,
big-endian. In a Protobuf payload the message indexes follow: signed variable-length integers, preceded by their count;
a single 0 means the first message. The payloads of each id are read with that id's schema, and resolved to the wanted
columns by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from millrace.config.topic import Framing
from millrace.errors import MillraceError, SchemaError, UnknownSchemaError
from millrace.payloads.avro import AvroReader
from millrace.payloads.avro_resolution import resolved
from millrace.payloads.json_objects import JsonReader
from millrace.payloads.protobuf import ProtobufReader
from millrace.payloads.wire import Cursor, Faults, Longs
from millrace.schemas.avro import parse_avro
from millrace.schemas.json_schema import parse_json_schema
from millrace.schemas.promotion import common_type, promote
from millrace.schemas.proto_files import ProtoFile, compile_proto
from millrace.schemas.protobuf import parse_protobuf
from millrace.schemas.types import spark_name

_HEADER_BYTES: Final = 5
_MESSAGE_DEPTH_MAX: Final = 32
_READERS_MAX: Final = 1000
"""Number of schemas whose readers a decoder keeps."""


class PayloadKind(StrEnum):
    """Encoding of payloads."""

    AVRO = "avro"
    JSON = "json"
    PROTOBUF = "protobuf"


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadSchema:
    """A payload schema. ``references`` maps the names in ``text`` to texts; ``message`` is for Protobuf.

    ``compiled`` is a serialized descriptor set, so that readers of payloads need no compiler.
    """

    kind: PayloadKind
    text: str = ""
    references: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    compiled: bytes = b""

    def prepared(self) -> PayloadSchema:
        """Return the schema, compiled if it needs a compiler. Raises ``SchemaError``."""
        if self.kind is not PayloadKind.PROTOBUF or self.compiled:
            return self
        compiled = compile_proto(self.text, self.references).data
        return PayloadSchema(kind=self.kind, text=self.text, message=self.message, compiled=compiled)

    def columns(self) -> pa.Schema:
        """Return the schema's columns. Raises ``SchemaError`` with the path of a type without a column type."""
        if self.kind is PayloadKind.AVRO:
            return parse_avro(self.text, self.references)
        if self.kind is PayloadKind.JSON:
            return parse_json_schema(self.text, self.references)
        return parse_protobuf(ProtoFile(self.prepared().compiled), self.message)


@dataclass(frozen=True, slots=True)
class Decoded:
    """Columns of all rows, and the faults of unreadable rows.

    An unreadable row is null in every column.
    """

    columns: pa.RecordBatch
    faults: Mapping[int, str]


class PayloadDecoder:
    """Decoder of payloads to the columns of a reader's schema, ``wanted``.

    All columns of the result are nullable. ``schema_of`` finds the schema of an id (raises ``UnknownSchemaError``). For
    bare payloads ``wanted`` is also the writer's schema. ``columns`` are those of the result if they differ from the
    columns of ``wanted``. Threads may share a decoder, because they only add readers to it, and two readers for one
    schema are equal.
    """

    def __init__(
        self,
        wanted: PayloadSchema,
        framing: Framing,
        schema_of: Callable[[int], PayloadSchema] | None = None,
        *,
        columns: pa.Schema | None = None,
    ) -> None:
        self._wanted: Final = wanted.prepared()
        self._columns: Final = wanted.columns() if columns is None else columns
        self._framing: Final = framing
        self._schema_of: Final = schema_of
        self._writers: Final[dict[int, PayloadSchema]] = {}
        self._readers: Final[dict[tuple[int | None, tuple[int, ...]], AvroReader | ProtobufReader]] = {}
        self.schema: Final = pa.schema([each.with_nullable(True) for each in self._columns])

    def decode(self, payloads: pa.Array) -> Decoded:
        """Decode an array of BINARY. A null becomes a row of nulls."""
        faults: dict[int, str] = {}
        rows = np.flatnonzero(payloads.is_valid().to_numpy(zero_copy_only=False))
        present = payloads if len(rows) == len(payloads) else payloads.take(pa.array(rows))
        pieces, places = [], []
        for part, batch in self._parts(present, rows, faults):
            pieces.append(batch)
            places.append(part)
        return Decoded(self._together(pieces, places, len(payloads), faults), faults)

    def _parts(self, payloads: pa.Array, rows: Longs, faults: dict[int, str]) -> Any:
        """Yield payloads that are read the same way, as (rows, columns)."""
        if self._framing is Framing.NONE:
            if len(payloads):
                yield rows, self._read(payloads, None, rows, None, (), faults)
            return
        ids = _schema_ids(payloads)
        for schema_id in np.unique(ids):
            which = np.flatnonzero(ids == schema_id)
            if schema_id < 0:
                text = (
                    "it does not begin with a zero byte and a schema id, as payloads of Confluent's serializers "
                    "do: check the framing"
                )
                faults.update(dict.fromkeys(rows[which].tolist(), text))
                continue
            part = payloads if len(which) == len(payloads) else payloads.take(pa.array(which))
            if self._wanted.kind is not PayloadKind.PROTOBUF:
                skip = np.full(len(part), _HEADER_BYTES, np.int64)
                yield rows[which], self._read(part, skip, rows[which], int(schema_id), (), faults)
                continue
            for indexes, within, skip in _by_message(part, rows[which], faults):
                some = part if len(within) == len(part) else part.take(pa.array(within))
                chosen = rows[which][within]
                yield chosen, self._read(some, skip, chosen, int(schema_id), indexes, faults)

    def _read(
        self,
        payloads: pa.Array,
        skip: Longs | None,
        rows: Longs,
        schema_id: int | None,
        indexes: tuple[int, ...],
        faults: dict[int, str],
    ) -> pa.RecordBatch:
        """Read payloads of one writer's schema; ``schema_id`` is None for bare payloads."""

        def note(row: int, text: str) -> None:
            faults.setdefault(int(rows[row]), text)

        try:
            if self._wanted.kind is PayloadKind.JSON:
                self._writer(schema_id)
                bare = payloads if skip is None else pa.compute.binary_slice(payloads, _HEADER_BYTES)
                return JsonReader(self._columns).read(bare, note)
            reader = self._reader(schema_id, indexes)
            cursor = Cursor.over(payloads, skip)
            read = self._resolved(reader.read(cursor), cursor.faults)
        except (SchemaError, UnknownSchemaError, _UnreadableError) as error:
            text = error.message if isinstance(error, MillraceError) else str(error)
            is_known = schema_id is not None and not isinstance(error, UnknownSchemaError)
            where = f"schema {schema_id}: " if is_known else ""
            faults.update(dict.fromkeys(rows.tolist(), f"{where}{text}"))
            return pa.RecordBatch.from_arrays(
                [pa.nulls(len(rows), each.type) for each in self.schema], schema=self.schema
            )
        for row, text in cursor.faults.texts().items():
            note(row, text)
        return read

    def _reader(self, schema_id: int | None, indexes: tuple[int, ...]) -> AvroReader | ProtobufReader:
        key = (schema_id, indexes)
        known = self._readers.get(key)
        if known is not None:
            return known
        writer = self._writer(schema_id)
        made: AvroReader | ProtobufReader
        if writer.kind is PayloadKind.AVRO:
            made = AvroReader.of(writer.text, dict(writer.references))
            if writer is not self._wanted:
                made = resolved(made, self._wanted.text, self._wanted.references)
        else:
            file = ProtoFile(writer.compiled)
            message = file.message_at(indexes) if indexes else file.message(writer.message)
            made = ProtobufReader.of(file, message)
        if len(self._readers) >= _READERS_MAX:
            self._readers.clear()
        self._readers[key] = made
        return made

    def _writer(self, schema_id: int | None) -> PayloadSchema:
        """Return the writer's schema. Raises ``UnknownSchemaError``, and ``SchemaError`` for one of another kind."""
        if schema_id is None or self._schema_of is None:
            return self._wanted
        known = self._writers.get(schema_id)
        if known is None:
            known = self._schema_of(schema_id).prepared()
            if known.kind is not self._wanted.kind:
                raise SchemaError(
                    f"it is a schema of {known.kind} payloads, but the payloads are decoded as {self._wanted.kind}"
                )
            if len(self._writers) >= _READERS_MAX:
                self._writers.clear()
            self._writers[schema_id] = known
        return known

    def _resolved(self, batch: pa.RecordBatch, faults: Faults) -> pa.RecordBatch:
        """Return the wanted columns from the writer's columns."""
        arrays = []
        for each in self._columns:
            at = batch.schema.get_field_index(each.name)
            if at >= 0:
                arrays.append(_promoted(batch.column(at), each, faults))
            elif each.nullable:
                arrays.append(pa.nulls(batch.num_rows, each.type))
            else:
                raise _UnreadableError(
                    f"it has no column {each.name}, which is NOT NULL in the reader's schema and has no default"
                )
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _together(
        self, pieces: list[pa.RecordBatch], places: list[Longs], length: int, faults: Mapping[int, str]
    ) -> pa.RecordBatch:
        is_whole = len(pieces) == 1 and len(places[0]) == length
        if is_whole and not faults:
            return pa.RecordBatch.from_arrays(pieces[0].columns, schema=self.schema)
        order = np.full(length, -1, np.int64)
        for offset, part in zip(np.cumsum([0, *map(len, places)]), places, strict=False):
            order[part] = offset + np.arange(len(part))
        order[list(faults)] = -1
        taken = pa.array(np.maximum(order, 0), mask=order < 0)
        columns = []
        for at, each in enumerate(self.schema):
            parts = [piece.column(at) for piece in pieces]
            columns.append(pa.concat_arrays(parts).take(taken) if parts else pa.nulls(length, each.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class _UnreadableError(Exception):
    """The writer's schema cannot be read in the wanted columns."""


def _promoted(array: pa.Array, wanted: pa.Field, faults: Faults) -> pa.Array:
    if common_type(wanted.type, array.type) is None:
        raise _UnreadableError(
            f"column {wanted.name} is {spark_name(array.type)}, but {spark_name(wanted.type)} is expected"
        )
    both_are_integers = pat.is_integer(array.type) and pat.is_integer(wanted.type)
    if both_are_integers and array.type.bit_width > wanted.type.bit_width:
        array = _in_range(array, wanted, faults)
    parts = list(_promoted_parts(array, 0, wanted, faults))
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _in_range(array: pa.Array, wanted: pa.Field, faults: Faults) -> pa.Array:
    """Replace integers that do not fit by nulls, because a search for them by halves takes longer."""
    limit = 1 << (wanted.type.bit_width - 1)
    wrong = pc.or_(pc.less(array, -limit), pc.greater(array, limit - 1)).fill_null(False)
    for row in np.flatnonzero(wrong.to_numpy(zero_copy_only=False)):
        faults.add(np.array([row]), _misfit(array[int(row)], wanted))
    return pc.if_else(wrong, None, array)


def _misfit(value: pa.Scalar, wanted: pa.Field) -> str:
    return f"{wanted.name}: {str(value.as_py())[:60]} does not fit {spark_name(wanted.type)}"


def _promoted_parts(array: pa.Array, first: int, wanted: pa.Field, faults: Faults) -> Iterator[pa.Array]:
    """Promote values, in halves if some do not fit. These become null, with a fault of their payload."""
    try:
        promoted = promote(array, wanted.type)
    except pa.ArrowInvalid:
        if len(array) > 1:
            half = len(array) // 2
            yield from _promoted_parts(array.slice(0, half), first, wanted, faults)
            yield from _promoted_parts(array.slice(half), first + half, wanted, faults)
            return
        faults.add(np.array([first]), _misfit(array[0], wanted))
        promoted = pa.nulls(1, wanted.type)
    yield promoted


def _schema_ids(payloads: pa.Array) -> Longs:
    """Return the schema ids of payloads; -1 without a valid prefix."""
    cursor = Cursor.over(payloads)
    word = cursor.wire.words[cursor.position]
    is_framed = ((word & np.uint64(0xFF)) == 0) & (cursor.end - cursor.position >= _HEADER_BYTES)
    number = ((word >> np.uint64(8)) & np.uint64(0xFFFFFFFF)).astype(np.uint32).byteswap().astype(np.int64)
    return np.where(is_framed, number, -1)


def _by_message(payloads: pa.Array, rows: Longs, faults: dict[int, str]) -> Any:
    """Group payloads by their message indexes, as (indexes, which, bytes before the message)."""
    start = np.full(len(payloads), _HEADER_BYTES, np.int64)
    cursor = Cursor.over(payloads, start)
    begin = cursor.position - start
    count = cursor.zigzag("message indexes")
    if not count.any():
        yield (0,), np.arange(len(payloads)), cursor.position - begin
        return
    paths: list[tuple[int, ...]] = [(0,) if not number else () for number in count]
    wrong = (count < 0) | (count > _MESSAGE_DEPTH_MAX)
    for step in range(int(count[~wrong].max(initial=0))):
        which = np.flatnonzero(~wrong & (count > step))
        part = cursor.take(which)
        for at, index in zip(which, part.zigzag("message indexes"), strict=True):
            paths[at] = (*paths[at], int(index))
        cursor.position[which] = part.position
    bad = wrong | cursor.faults.are_there(cursor.rows) | np.array([min(path, default=0) < 0 for path in paths])
    faults.update(dict.fromkeys(rows[bad].tolist(), "the index of its message is damaged"))
    groups: dict[tuple[int, ...], list[int]] = {}
    for place in np.flatnonzero(~bad).tolist():
        groups.setdefault(paths[place], []).append(place)
    for path in sorted(groups):
        within = np.array(groups[path])
        yield path, within, (cursor.position - begin)[within]
