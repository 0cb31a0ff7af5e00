"""Fast checks of single records when they are sent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from millrace.errors import SchemaMismatchError
from millrace.schemas import spark_name


def as_bytes(what: str, value: Any) -> bytes | None:
    """Return a key or value of an opaque topic as stored; raises ``SchemaMismatchError``."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise SchemaMismatchError(
        f"the {what} of a record in an opaque topic is bytes, text or None, not {type(value).__name__}: serialize it"
    )


def as_headers(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    """Return headers, a mapping or pairs of name and value, as stored; raises ``SchemaMismatchError``."""
    if not headers:
        return ()
    try:
        pairs = [(name, value) for name, value in (headers.items() if isinstance(headers, Mapping) else headers)]
    except (TypeError, ValueError):
        raise SchemaMismatchError(f"headers are a mapping or pairs of name and value, not {headers!r}") from None
    for name, _ in pairs:
        if not isinstance(name, str):
            raise SchemaMismatchError(f"the name of a header is text, not {name!r}")
    return tuple((name, as_bytes(f"header {name}", value)) for name, value in pairs)


def check_timestamp(timestamp_ms: Any) -> None:
    """Raise ``SchemaMismatchError`` unless the timestamp is valid for a record."""
    if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, (int, np.integer)):
        raise SchemaMismatchError(f"timestamp_ms is milliseconds since 1970, a whole number, not {timestamp_ms!r}")
    if not 0 <= timestamp_ms < 2**63:
        raise SchemaMismatchError(
            f"timestamp_ms={timestamp_ms} is out of range: a log has timestamps from 1970 to the largest signed "
            "64-bit number of ms"
        )


class RecordChecker:
    """Checker of dicts against a typed topic's schema when they are sent.

    It checks names, nulls, kinds of values and ranges of integers. Errors that only the cast detects (digits of a
    decimal, elements of an array) fail the record's future instead.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._fields = {field.name: field for field in schema}
        self._kinds = {field.name: _accepted(field.type) for field in schema}
        self._ranges = {field.name: 2 ** (field.type.bit_width - 1) for field in schema if pat.is_integer(field.type)}

    def check(self, value: Any, key: Any) -> int:
        """Return the estimated size of a record in bytes; raises ``SchemaMismatchError`` naming the column."""
        if key is not None:
            raise SchemaMismatchError("a typed topic's key is in its key columns: leave key out")
        if not isinstance(value, Mapping):
            raise SchemaMismatchError(f"a record of a typed topic is a dict of its columns, not {type(value).__name__}")
        size_bytes = 0
        for name, item in value.items():
            kinds = self._kinds.get(name)
            if kinds is None:
                raise SchemaMismatchError(
                    f"column {name} is not in the topic's schema: its columns are {', '.join(self._fields)}"
                )
            if item is not None:
                self._check_item(name, item, kinds)
                size_bytes += len(item) if isinstance(item, (str, bytes, list, tuple, dict)) else 8
        for name, field_ in self._fields.items():
            if not field_.nullable and value.get(name) is None:
                raise SchemaMismatchError(f"column {name} is NOT NULL and has no value in the record")
        return size_bytes

    def _check_item(self, name: str, item: Any, kinds: tuple[type, ...]) -> None:
        is_misplaced_bool = isinstance(item, bool) and bool not in kinds
        if kinds and (is_misplaced_bool or not isinstance(item, kinds)):
            wanted = spark_name(self._fields[name].type)
            raise SchemaMismatchError(f"column {name}: {item!r} is not a valid {wanted}")
        if isinstance(item, datetime) and pat.is_date(self._fields[name].type):
            raise SchemaMismatchError(f"column {name}: {item} has a time of day, but a DATE has none: use its date()")
        limit = self._ranges.get(name)
        if limit is not None and not -limit <= item < limit:
            raise SchemaMismatchError(f"column {name}: {item} does not fit {spark_name(self._fields[name].type)}")
        if isinstance(item, datetime) and pat.is_timestamp(self._fields[name].type):
            has_zone, needs_zone = item.tzinfo is not None, self._fields[name].type.tz is not None
            if has_zone != needs_zone:
                remedy = "give it a time zone" if needs_zone else "drop its time zone"
                raise SchemaMismatchError(f"column {name}: {item} for {spark_name(self._fields[name].type)}: {remedy}")


def _accepted(data_type: pa.DataType) -> tuple[type, ...]:
    """Return the Python types that convert to this Arrow type; empty if Arrow decides."""
    for matches, kinds in _PYTHON_TYPES:
        if matches(data_type):
            return kinds
    return ()


_PYTHON_TYPES: Final[list[tuple[Any, tuple[type, ...]]]] = [
    (pat.is_boolean, (bool,)),
    (pat.is_integer, (int,)),
    (pat.is_floating, (float, int)),
    (pat.is_decimal, (Decimal, int)),
    (pat.is_string, (str,)),
    (pat.is_binary, (bytes, bytearray, memoryview)),
    (pat.is_timestamp, (datetime,)),
    (pat.is_date, (date,)),
    (pat.is_time, (time_of_day,)),
    (pat.is_duration, (timedelta,)),
    (pat.is_list, (list, tuple)),
    (pat.is_struct, (Mapping,)),
]
