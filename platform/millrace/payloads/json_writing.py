"""Writer of columns as JSON objects, one object for each row.

Each column becomes a column of JSON texts, and Arrow joins these texts row by row. Every column is in the object, and a
null is written as ``null``. The forms are those that ``json_values`` reads. Numbers that JSON does not have are the
strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, as in Spark's ``to_json``.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from millrace.payloads.arrays import entry_lists, has_other_years, joined_lists
from millrace.schemas.types import DURATION, spark_name

_ESCAPED: Final = r'["\\\x00-\x1f]'
_ESCAPES: Final = [
    ("\\", "\\\\"),
    ('"', '\\"'),
    *((chr(number), f"\\u{number:04x}") for number in range(0x20)),
]
_NULL: Final = "null"
_NO_NUMBERS: Final = {"nan": '"NaN"', "-nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
_MICROSECONDS: Final = 1_000_000


def json_objects(names: Sequence[str], columns: Sequence[pa.Array]) -> pa.StringArray:
    """Return an object for each row. Maps have keys of type STRING.

    Raises ``TypeError`` for a type that has no form in JSON, and ``ValueError`` for a value as ``json_texts`` does.
    """
    return _object(names, columns)


def _object(names: Sequence[str], columns: Sequence[pa.Array]) -> pa.StringArray:
    parts: list[pa.Array | str] = []
    for place, (name, column) in enumerate(zip(names, columns, strict=True)):
        quoted = _quoted(pa.array([name], pa.string()))[0].as_py()
        try:
            parts += [f"{',' if place else '{'}{quoted}:", json_texts(column)]
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return _join(*parts, "}")


def _join(*parts: pa.Array | str) -> pa.StringArray:
    """Join the texts of each row; null if one of them is null."""
    return pc.binary_join_element_wise(*parts, "")


def json_texts(array: pa.Array) -> pa.StringArray:
    """Return the JSON text of each value, ``null`` for a null.

    Raises ``ValueError`` for a date or timestamp outside the years 1 to 9999.
    """
    texts = _present(array)
    return texts.fill_null(_NULL) if texts.null_count else texts


def _present(array: pa.Array) -> pa.StringArray:
    """Return the JSON text of each value, null for a null."""
    data_type = array.type
    if pat.is_string(data_type):
        return _quoted(array)
    if pat.is_floating(data_type):
        return _floats(array)
    if pat.is_integer(data_type) or pat.is_boolean(data_type) or pat.is_decimal(data_type):
        return array.cast(pa.string())
    if (pat.is_timestamp(data_type) or pat.is_date(data_type)) and has_other_years(array):
        raise ValueError("a value is outside the years 1 to 9999, which JSON texts of dates and timestamps have")
    if pat.is_timestamp(data_type):
        text = array.cast(pa.string())
        return _join('"', pc.replace_substring(text, " ", "T", max_replacements=1), '"')
    if pat.is_date(data_type) or pat.is_time(data_type):
        return _join('"', array.cast(pa.string()), '"')
    if data_type == DURATION:
        return _durations(array)
    if pat.is_binary(data_type):
        encoded = [None if value is None else b64encode(value).decode() for value in array.to_pylist()]
        return _join('"', pa.array(encoded, pa.string()), '"')
    if pat.is_struct(data_type):
        return _only(array, _object([each.name for each in data_type], array.flatten()))
    if pat.is_map(data_type):
        return _only(array, _members(array))
    if pat.is_list(data_type):
        return _only(array, _join("[", joined_lists(array, json_texts(array.flatten()), ","), "]"))
    raise TypeError(f"{spark_name(data_type)} is not a type of JSON")


def _only(array: pa.Array, texts: pa.StringArray) -> pa.StringArray:
    return pc.if_else(array.is_valid(), texts, None) if array.null_count else texts


def _quoted(array: pa.StringArray) -> pa.StringArray:
    if pc.any(pc.match_substring_regex(array, _ESCAPED)).as_py():
        for plain, escaped in _ESCAPES:
            array = pc.replace_substring(array, plain, escaped)
    return _join('"', array, '"')


def _floats(array: pa.Array) -> pa.StringArray:
    texts = array.cast(pa.string())
    if pc.all(pc.is_finite(array)).as_py() is False:
        for number, text in _NO_NUMBERS.items():
            texts = pc.if_else(pc.equal(texts, number), text, texts)
    return texts


def _durations(array: pa.Array) -> pa.StringArray:
    """Write durations in ISO 8601, in seconds."""
    micros = array.cast(pa.int64()).fill_null(0).to_numpy()
    size = np.abs(micros).view(np.uint64)  # the smallest number has no opposite, but its bits are those of 2^63
    fraction = pc.utf8_lpad(pa.array(size % _MICROSECONDS).cast(pa.string()), 6, "0")
    sign = pc.if_else(pa.array(micros < 0), "-", "")
    texts = _join('"', sign, "PT", pa.array(size // _MICROSECONDS).cast(pa.string()), ".", fraction, 'S"')
    return _only(array, texts)


def _members(array: pa.MapArray) -> pa.StringArray:
    entries = entry_lists(array)
    keys, values = entries.flatten().flatten()
    return _join("{", joined_lists(entries, _join(_quoted(keys), ":", json_texts(values)), ","), "}")
