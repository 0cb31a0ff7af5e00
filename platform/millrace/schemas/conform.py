"""Lossless conversion of a table to a topic's schema.

Errors name the column and row. Columns are matched by name, in any order; a missing nullable column becomes nulls.
Values are cast if no information is lost: between integers, from integers to decimals and floats, between decimals,
layouts and units. ``DOUBLE`` is rounded to ``FLOAT``. Strings are not parsed, and timestamps without a time zone do
not become timestamps with one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from millrace.errors import SchemaMismatchError
from millrace.schemas.types import spark_name


def to_table(source: Any) -> pa.Table:
    """Convert an object to an Arrow table: Arrow, pandas or polars objects, a dict of columns, a list of row dicts.

    Raises ``SchemaMismatchError`` if Arrow cannot hold the values (for example a column of mixed types).
    """
    if isinstance(source, pa.Table):
        return source
    try:
        if isinstance(source, pa.RecordBatch):
            return pa.Table.from_batches([source])
        if isinstance(source, pa.RecordBatchReader):
            return source.read_all()
        if type(source).__module__.partition(".")[0] == "pandas":
            return pa.Table.from_pandas(source, preserve_index=False)
        if isinstance(source, dict):
            return pa.table(source)
        if isinstance(source, list):
            return pa.Table.from_pylist(source)
        if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
            return pa.table(source)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaMismatchError(f"the data cannot be converted to a table: {error}") from error
    raise SchemaMismatchError(
        f"a {type(source).__name__} is not a table: give an Arrow table or batch, a pandas or polars frame, a dict "
        "of columns or a list of rows"
    )


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert ``table`` to ``schema``: its columns in the schema's order with exactly its types.

    Columns that already fit cost nothing. Raises ``SchemaMismatchError`` with the column and, for a wrong value, the
    first such row (counted from 0).
    """
    extra = [name for name in table.column_names if schema.get_field_index(name) < 0]
    if extra:
        raise SchemaMismatchError(
            f"column {extra[0]} is not in the topic's schema: its columns are {', '.join(schema.names)}"
        )
    columns = []
    for field in schema:
        positions = [at for at, name in enumerate(table.column_names) if name == field.name]
        if len(positions) > 1:
            raise SchemaMismatchError(f"column {field.name} occurs twice in the data: drop one")
        if positions:
            columns.append(_fit(table.column(positions[0]), field))
        elif field.nullable:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
        else:
            raise SchemaMismatchError(f"column {field.name} is missing, and it is NOT NULL: add it to the data")
    return pa.Table.from_arrays(columns, schema=schema)


def _fit(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if not column.type.equals(field.type):
        column = _cast(column, field)
    for path, nullable, parent, values in _levels(field, column):
        if not nullable and values.null_count:
            # A null below a null parent does not count.
            row = _first_row(column, partial(_has_null, field=field, path=path))
            if row is not None:
                raise SchemaMismatchError(f"column {path}, row {row}: null, but the column is NOT NULL{parent}")
    return column


# --- nulls ---------------------------------------------------------------------------------------------------


def _levels(field: pa.Field, column: pa.ChunkedArray) -> Iterator[tuple[str, bool, str, pa.ChunkedArray]]:
    """Yield each level of a column: path, nullability, a remark for messages, values below non-null parents."""
    yield field.name, field.nullable, "", column
    if _has_required(field.type):
        for chunk in column.chunks:
            yield from _nested_levels(field, field.name, chunk)


def _nested_levels(field: pa.Field, path: str, array: pa.Array) -> Iterator[tuple[str, bool, str, pa.Array]]:
    present = array.filter(array.is_valid()) if array.null_count else array
    remark = f" in {path}"
    children: list[tuple[pa.Field, pa.Array]] = []
    if pat.is_struct(field.type):
        children = list(zip(field.type, present.flatten(), strict=True))
    elif pat.is_list(field.type):
        children = [(field.type.value_field, present.flatten())]
    elif pat.is_map(field.type):
        whole = _compact(present)
        children = [(field.type.key_field, whole.keys), (field.type.item_field, whole.items)]
    for child, values in children:
        child_path = f"{path}.{child.name}"
        yield child_path, child.nullable, remark, values
        yield from _nested_levels(child, child_path, values)


def _compact(array: pa.Array) -> pa.Array:
    """Copy a slice into its own buffers, because casts, keys and items of nested arrays ignore the slice."""
    return pa.concat_arrays([array, array.slice(0, 0)])


def _has_required(data_type: pa.DataType) -> bool:
    """Return whether a nested field is NOT NULL."""
    if pat.is_struct(data_type):
        return any(not field.nullable or _has_required(field.type) for field in data_type)
    if pat.is_list(data_type):
        return not data_type.value_field.nullable or _has_required(data_type.value_type)
    return bool(pat.is_map(data_type))


def _has_null(column: pa.ChunkedArray, field: pa.Field, path: str) -> bool:
    return any(values.null_count for at, _, _, values in _levels(field, column) if at == path)


def _first_row(column: pa.ChunkedArray, is_bad: Callable[[pa.ChunkedArray], bool]) -> int | None:
    """Return the first row that makes a head of ``column`` bad, by bisection; a bad head stays bad when it grows."""
    if not len(column) or not is_bad(column):
        return None
    good, bad = 0, len(column)
    while bad - good > 1:
        middle = (good + bad) // 2
        if is_bad(column.slice(good, middle - good)):
            bad = middle
        else:
            good = middle
    return good


# --- types ---------------------------------------------------------------------------------------------------


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    reason = _refusal(column.type, field.type, field.name)
    if reason:
        raise SchemaMismatchError(reason)
    if pat.is_run_end_encoded(column.type):
        column = pa.chunked_array([pc.run_end_decode(chunk) for chunk in column.chunks], type=column.type.value_type)
    # Arrow refuses some possible casts, which need an intermediate type: to a decimal narrower than the integer's
    # range.
    steps = [field.type]
    if pat.is_integer(column.type) and pat.is_decimal(field.type):
        steps.insert(0, pa.decimal256(20 + field.type.scale, field.type.scale))
    cast = _caster(steps)
    try:
        result = cast(column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        row = _first_row(column, lambda head: _fails(cast, head))
        where = f"column {field.name}, row {row}: {_shown(column[row])}" if row is not None else f"column {field.name}"
        raise SchemaMismatchError(f"{where} does not fit {spark_name(field.type)}: {_why(error)}") from error
    if pat.is_float32(field.type):
        _check_float_range(column, result, field)
    return result


def _caster(steps: list[pa.DataType]) -> Callable[[pa.ChunkedArray], pa.ChunkedArray]:
    def cast(column: pa.ChunkedArray) -> pa.ChunkedArray:
        if pat.is_nested(column.type):
            column = pa.chunked_array([_compact(chunk) for chunk in column.chunks], type=column.type)
        for step in steps:
            column = column.cast(step)
        return column

    return cast


def _fails(cast: Callable[[pa.ChunkedArray], pa.ChunkedArray], head: pa.ChunkedArray) -> bool:
    try:
        cast(head)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return True
    return False


def _check_float_range(column: pa.ChunkedArray, result: pa.ChunkedArray, field: pa.Field) -> None:
    # Arrow's safe cast lets a finite double overflow to infinity.
    if not pat.is_floating(column.type):
        return
    overflown = pc.and_(pc.is_finite(column), pc.invert(pc.is_finite(result)))
    if (row := pc.index(overflown, True).as_py()) >= 0:
        raise SchemaMismatchError(
            f"column {field.name}, row {row}: {_shown(column[row])} does not fit FLOAT: out of range"
        )


def _shown(value: pa.Scalar) -> str:
    text = repr(value.as_py()) if not pat.is_timestamp(value.type) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _why(error: Exception) -> str:
    text = str(error).splitlines()[0]
    return "it would lose data" if "would lose data" in text else text[:1].lower() + text[1:]


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pat.is_string(data_type) or pat.is_large_string(data_type) or pat.is_string_view(data_type))


def _is_bytes(data_type: pa.DataType) -> bool:
    return bool(
        pat.is_binary(data_type)
        or pat.is_large_binary(data_type)
        or pat.is_binary_view(data_type)
        or pat.is_fixed_size_binary(data_type)
    )


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pat.is_list(data_type) or pat.is_large_list(data_type) or pat.is_fixed_size_list(data_type))


# Allowed casts by kind; each cast still fails on a value that does not fit.
_CASTS: Final[list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]]]] = [
    (pat.is_null, lambda target: True),
    (pat.is_boolean, pat.is_boolean),
    (pat.is_integer, lambda target: bool(pat.is_integer(target) or pat.is_floating(target) or pat.is_decimal(target))),
    (pat.is_floating, lambda target: bool(pat.is_floating(target) or pat.is_integer(target))),
    (pat.is_decimal, pat.is_decimal),
    (_is_text, lambda target: _is_text(target) or _is_bytes(target)),
    (_is_bytes, _is_bytes),
    (pat.is_date, pat.is_date),
    (pat.is_time, pat.is_time),
    (pat.is_duration, pat.is_duration),
    (pat.is_timestamp, pat.is_timestamp),
]


def _refusal(source: pa.DataType, target: pa.DataType, path: str) -> str | None:
    """Return why data of type ``source`` may not go into ``target``, whatever its values; ``None`` if it may."""
    if pat.is_dictionary(source) or pat.is_run_end_encoded(source):
        source = source.value_type
    if _is_list(source) and pat.is_list(target):
        return _refusal(source.value_type, target.value_type, f"{path}.element")
    if pat.is_map(source) and pat.is_map(target):
        return _refusal(source.key_type, target.key_type, f"{path}.key") or _refusal(
            source.item_type, target.item_type, f"{path}.value"
        )
    if pat.is_struct(source) and pat.is_struct(target):
        return _struct_refusal(source, target, path)
    if pat.is_timestamp(source) and pat.is_timestamp(target) and bool(source.tz) != bool(target.tz):
        if target.tz:
            return (
                f"column {path}: the data has no time zone, but TIMESTAMP needs one: localize it, or declare "
                "TIMESTAMP_NTZ"
            )
        return (
            f"column {path}: the data has time zone {source.tz}, but TIMESTAMP_NTZ has none: drop it, or declare "
            "TIMESTAMP"
        )
    if any(is_kind(source) and accepts(target) for is_kind, accepts in _CASTS):
        return None
    return f"column {path}: the data is {source}, but the schema has {spark_name(target)}: cast it"


def _struct_refusal(source: pa.DataType, target: pa.DataType, path: str) -> str | None:
    for field in source:
        if target.get_field_index(field.name) < 0:
            return f"column {path}.{field.name} is not in the topic's schema"
    for field in target:
        at = source.get_field_index(field.name)
        if at < 0:
            if not field.nullable:
                return f"column {path}.{field.name} is missing, and it is NOT NULL"
        elif (reason := _refusal(source.field(at).type, field.type, f"{path}.{field.name}")) is not None:
            return reason
    return None
