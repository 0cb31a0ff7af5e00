"""Conversion between keys of Kafka records and a typed topic's key columns.

``binary`` keys are those of ``millrace.schemas.keys``: the bytes of Kafka's serializers, by which both kinds of client
choose the same partition. A ``string`` key is the text of the one key column, in the forms of JSON but without quotes.
A ``json`` key is an object of the key columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from millrace.config.topic import KafkaKeyFormat
from millrace.payloads.json_objects import JsonReader
from millrace.payloads.json_writing import json_objects, json_texts
from millrace.payloads.numbers import decimals
from millrace.payloads.wire import Cursor, Flags, scatter
from millrace.schemas.keys import INTEGER_BYTES, encode_keys
from millrace.schemas.types import TIME, spark_name

Note: TypeAlias = Callable[[int, str], None]
"""Function that notes the fault of a row."""

_NUMBER: Final = r"^[-+.0-9eE]+$|^true$|^false$"
_PLAIN: Final = r'^[^"\\]*$'
_DECIMAL_BYTES: Final = 16
_DAY_NANOSECONDS: Final = 86_400 * 10**9


class KeyCodec:
    """Codec of keys for some key columns."""

    def __init__(self, columns: Sequence[pa.Field], key_format: KafkaKeyFormat) -> None:
        self._columns: Final = [each.with_nullable(True) for each in columns]
        self._format: Final = key_format

    def decode(self, keys: pa.BinaryArray, note: Note) -> list[pa.Array]:
        """Return the key columns; a row without a key, or with a fault, has nulls."""
        rows = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
        if not len(rows):
            return [pa.nulls(len(keys), each.type) for each in self._columns]
        present = keys if len(rows) == len(keys) else keys.take(pa.array(rows))

        def note_row(row: int, text: str) -> None:
            note(int(rows[row]), f"its key: {text}")

        found = self._decoded(present, note_row)
        return found if present is keys else [scatter(each, rows, len(keys)) for each in found]

    def _decoded(self, keys: pa.BinaryArray, note: Note) -> list[pa.Array]:
        if self._format is KafkaKeyFormat.JSON:
            return list(JsonReader(pa.schema(self._columns)).read(keys, note).columns)
        if len(self._columns) > 1:
            return _of_several(keys, self._columns, note)
        [column] = self._columns
        if self._format is KafkaKeyFormat.BINARY or _is_bytes(column.type):
            return [_of_bytes(keys, column, note)]
        return [_of_text(keys, column, note)]

    def encode(self, columns: pa.RecordBatch) -> pa.BinaryArray:
        """Return the key of each row, null if all its key columns are null.

        Raises ``ValueError`` for a value that has no text.
        """
        names = [each.name for each in self._columns]
        arrays = [columns.column(name) for name in names]
        if self._format is KafkaKeyFormat.JSON:
            any_valid = arrays[0].is_valid()
            for each in arrays[1:]:
                any_valid = pc.or_(any_valid, each.is_valid())
            return pc.if_else(any_valid, json_objects(names, arrays), None).cast(pa.binary())
        if self._format is KafkaKeyFormat.BINARY or _is_bytes(arrays[0].type):
            return encode_keys(columns, names).cast(pa.binary())
        texts = pc.utf8_trim(json_texts(arrays[0]), '"')
        return pc.if_else(arrays[0].is_valid(), texts, None).cast(pa.binary())


def _is_bytes(data_type: pa.DataType) -> bool:
    return bool(pat.is_string(data_type) or pat.is_binary(data_type))


def _of_text(keys: pa.BinaryArray, column: pa.Field, note: Note) -> pa.Array:
    """Read texts of numbers, booleans and times as the values of JSON objects with one property."""
    quote = '"' if pat.is_temporal(column.type) else ""
    texts = _of_bytes(keys, column.with_type(pa.string()), note)
    is_plain = pc.match_substring_regex(texts, _PLAIN if quote else _NUMBER)
    for row in np.flatnonzero(~is_plain.fill_null(True).to_numpy(zero_copy_only=False)):
        note(int(row), _misfit(keys[int(row)].as_py(), column))
    rows = np.flatnonzero(is_plain.fill_null(False).to_numpy(zero_copy_only=False))
    if not len(rows):
        return pa.nulls(len(keys), column.type)
    objects = pc.binary_join_element_wise('{"k":' + quote, texts.take(pa.array(rows)), quote + "}", "")

    def note_row(row: int, text: str) -> None:
        note(int(rows[row]), _misfit(keys[int(rows[row])].as_py(), column))

    read = JsonReader(pa.schema([column.with_name("k")])).read(objects.cast(pa.binary()), note_row)
    return scatter(read.column(0), rows, len(keys))


def _misfit(value: bytes, column: pa.Field) -> str:
    shown = repr(value) if len(value) <= 40 else f"{value[:40]!r}..."
    return f"{shown[1:]} is no {spark_name(column.type)}, the type of key column {column.name}"


def _of_several(keys: pa.BinaryArray, columns: Sequence[pa.Field], note: Note) -> list[pa.Array]:
    """Read keys of several columns: the length and the bytes of each value, one after another."""
    cursor = Cursor.over(keys)
    found = []
    for column in columns:
        lengths = cursor.fixed(4, column.name).astype(np.uint32).byteswap().view(np.int32).astype(np.int64)
        is_null = lengths == -1
        starts, sizes = cursor.lengths(np.where(is_null, 0, lengths), column.name)
        values = cursor.binary(starts, sizes)
        found.append((pc.if_else(pa.array(is_null), None, values) if is_null.any() else values, column))
    left = cursor.position < cursor.end
    if left.any():
        cursor.fail(left, "it has more bytes than the key columns")
    faults = cursor.faults.texts()
    for row, text in faults.items():
        note(row, text)

    def note_other(row: int, text: str) -> None:
        if row not in faults:
            note(row, text)

    return [_of_bytes(values, column, note_other) for values, column in found]


def _of_bytes(data: pa.BinaryArray, column: pa.Field, note: Note) -> pa.Array:
    """Read values of one column from the bytes of Kafka's serializers; nulls stay."""
    data_type = column.type
    if pat.is_binary(data_type):
        return data
    if pat.is_string(data_type):
        return _of_utf8(data, column, note)
    width = (
        _DECIMAL_BYTES if pat.is_decimal(data_type) else 1 if pat.is_boolean(data_type) else INTEGER_BYTES[data_type]
    )
    fits = pc.equal(pc.binary_length(data), width).fill_null(False).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(fits)
    present = data if len(rows) == len(data) else data.take(pa.array(rows))
    values, is_wrong = _fixed_width(present, column, width)
    wrong = np.flatnonzero(data.is_valid().to_numpy(zero_copy_only=False) & ~fits).tolist()
    wrong += rows[np.flatnonzero(is_wrong)].tolist()
    for row in wrong:
        note(row, _misfit(data[row].as_py(), column))
    return values if len(rows) == len(data) else scatter(values, rows, len(data))


def _fixed_width(data: pa.BinaryArray, column: pa.Field, width: int) -> tuple[pa.Array, Flags]:
    """Return the values, and which of them the type does not have."""
    data_type = column.type
    if pat.is_decimal(data_type):
        cursor = Cursor.over(data)
        starts, lengths = cursor.lengths(np.full(len(data), width, np.int64), column.name)
        return decimals(cursor, starts, lengths, data_type, column.name), cursor.faults.are_there(cursor.rows)
    whole = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(data)], pa.int32()), data), b"")
    numbers = np.frombuffer(whole[0].as_buffer(), f">i{width}").astype(f"i{width}")
    wrong = np.zeros(len(numbers), bool)
    if pat.is_boolean(data_type):
        return pa.array(numbers == 1), (numbers != 0) & (numbers != 1)
    if data_type == TIME:
        wrong = (numbers < 0) | (numbers >= _DAY_NANOSECONDS)
        numbers = np.where(wrong, 0, numbers)
    array = pa.array(numbers)
    return array if array.type == data_type else array.view(data_type), wrong


def _of_utf8(data: pa.BinaryArray, column: pa.Field, note: Note) -> pa.StringArray:
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        texts = []
        for row, value in enumerate(data.to_pylist()):
            try:
                texts.append(None if value is None else value.decode())
            except UnicodeDecodeError:
                note(row, f"{value[:40]!r} of column {column.name} is not UTF-8"[1:])
                texts.append(None)
        return pa.array(texts, pa.string())
