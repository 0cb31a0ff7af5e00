"""Conversion of a CSV stream to tables. An error names the line and column."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from typing import BinaryIO, Final

import pyarrow as pa
from pyarrow import csv as arrow_csv

from millrace.errors import SchemaMismatchError
from millrace.schemas import spark_name

_CONVERSION: Final = re.compile(r"In CSV column #(\d+): (?:Row #(\d+): )?(.*)", re.DOTALL)
_PARSING: Final = re.compile(r"CSV parse error: (?:Row #(\d+): )?(.*)", re.DOTALL)
_INVALID: Final = re.compile(r"CSV conversion error to .*: (invalid value .*)", re.DOTALL)
_BLOCK_BYTES: Final = 4 * 2**20


def csv_tables(source: BinaryIO, schema: pa.Schema | None, key: str | None = None) -> Iterator[pa.Table]:
    """Parse CSV with a header line; columns of ``schema`` get its types, others are inferred from their first values.

    Without a schema, and with a column ``value``, the columns ``value`` and ``key`` (or the one that ``key`` names)
    are text. An empty value is null, and a quoted one is empty text.

    Raises ``SchemaMismatchError`` naming line and column. If values contain newlines, line numbers count records.
    """
    # Do not use Arrow's streaming reader, because it reads ahead in a thread. If that thread uses a Python file when
    # the process ends (for example after a wrong value), the process aborts.
    types = {field.name: field.type for field in schema or ()}
    names: list[str] | None = None
    records = 0
    for block in _whole_records(source):
        header = names or next(csv.reader([block.split(b"\n", 1)[0].decode("utf-8-sig", "replace").rstrip("\r")]), [])
        if names is None and schema is None and "value" in header:
            types = dict.fromkeys(("value", key or "key"), pa.string())
        # Arrow reports rows only when it reads in one thread.
        read = arrow_csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names)
        convert = arrow_csv.ConvertOptions(
            column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        )
        try:
            table = arrow_csv.read_csv(pa.BufferReader(block), read_options=read, convert_options=convert)
        except pa.ArrowInvalid as error:
            raise SchemaMismatchError(_explain(str(error), header, types, records)) from error
        if names is None:
            names, records = table.column_names, 1  # the header
        records += table.num_rows
        if table.num_rows:
            types |= {field.name: field.type for field in table.schema if not pa.types.is_null(field.type)}
            yield table


def _whole_records(source: BinaryIO) -> Iterator[bytes]:
    """Yield blocks that end at a record boundary, a newline with an even number of quotes before it.

    The first block is always yielded, so that the parser judges an empty one.
    """
    read = getattr(source, "read1", source.read)
    rest, yielded = b"", False
    while data := read(_BLOCK_BYTES):
        rest += data
        end = _last_record_end(rest)
        if end:
            yield rest[:end]
            rest, yielded = rest[end:], True
    if rest or not yielded:
        yield rest


def _last_record_end(data: bytes) -> int:
    """Return the position behind the last complete record in ``data``; 0 if there is none."""
    quotes, end = data.count(b'"'), len(data)
    while newline := data.rfind(b"\n", 0, end) + 1:
        quotes -= data.count(b'"', newline, end)
        if quotes % 2 == 0:
            return newline
        end = newline - 1
    return 0


def _explain(message: str, names: list[str], types: dict[str, pa.DataType], records_before: int) -> str:
    if conversion := _CONVERSION.fullmatch(message):
        number, reason = int(conversion[1]), conversion[3]
        row = str(int(conversion[2]) + records_before) if conversion[2] else ""
        name = names[number] if number < len(names) else f"number {number + 1}"
        where = f"line {row}: column {name}" if row else f"column {name}"
        if (invalid := _INVALID.fullmatch(reason)) and name in types:
            return f"{where}: {invalid[1]} for {spark_name(types[name])}"
        return f"{where}: {reason}"
    if parsing := _PARSING.fullmatch(message):
        return (
            f"line {int(parsing[1]) + records_before}: {parsing[2]}"
            if parsing[1]
            else f"the CSV cannot be read: {parsing[2]}"
        )
    return f"the CSV cannot be read: {message}"
