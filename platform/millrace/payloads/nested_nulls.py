"""Nulls below nested columns, where a field is NOT NULL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat


def has_required(data_type: pa.DataType) -> bool:
    """Return whether a nested field is NOT NULL; keys of maps are always."""
    nested = (
        [data_type.item_field] if pat.is_map(data_type) else [data_type.field(at) for at in range(data_type.num_fields)]
    )
    return any(not each.nullable or has_required(each.type) for each in nested)


def note_nulls_within(array: pa.Array, column: pa.Field, note: Callable[[int, str], None]) -> None:
    """Note the rows of a column in which a nested NOT NULL field is null, by the field's path."""
    if has_required(column.type):
        _note(array, column.type, column.name, np.arange(len(array)), note)


def _note(
    array: pa.Array, data_type: pa.DataType, path: str, rows: npt.NDArray[Any], note: Callable[[int, str], None]
) -> None:
    """Note nulls below the values of ``array``. ``rows`` has the row of each value."""
    if array.null_count:
        present = array.is_valid()
        array, rows = array.filter(present), rows[present.to_numpy(zero_copy_only=False)]
    for field, values, owners in _children(array, data_type, rows):
        below = f"{path}.{field.name}"
        if not field.nullable and values.null_count:
            for row in owners[values.is_null().to_numpy(zero_copy_only=False)].tolist():
                note(row, f"column {below}: null, but the column is NOT NULL in {path}")
        if has_required(field.type):
            _note(values, field.type, below, owners, note)


def _children(
    array: pa.Array, data_type: pa.DataType, rows: npt.NDArray[Any]
) -> Iterator[tuple[pa.Field, pa.Array, npt.NDArray[Any]]]:
    """Yield the fields below values that are not null, with their values and the rows of these."""
    if pat.is_struct(data_type):
        yield from ((field, part, rows) for field, part in zip(data_type, array.flatten(), strict=True))
        return
    whole = pa.concat_arrays([array, array.slice(0, 0)])  # offsets and items of a slice are those of all values
    owners = np.repeat(rows, np.diff(whole.offsets.to_numpy()))
    if pat.is_map(data_type):
        yield data_type.item_field, whole.items, owners
    elif pat.is_list(data_type):
        yield data_type.value_field, whole.values, owners
