"""CSV to tables, as it arrives; what does not fit is named by line and column."""

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
_HEADER_BYTES_MAX: Final = 64 * 1024


def csv_tables(source: BinaryIO, schema: pa.Schema | None) -> Iterator[pa.Table]:
    """Parse CSV with a header line; columns of ``schema`` get its types, others those that their values suggest.

    Raises ``SchemaMismatchError`` naming line and column. Line numbers count records where values contain newlines.
    """
    names = _header(source)
    types = {field.name: field.type for field in schema or ()}
    convert = arrow_csv.ConvertOptions(column_types=types, strings_can_be_null=True)
    # Arrow tells rows only when it reads in one thread, and the streaming reader gains nothing from more.
    read = arrow_csv.ReadOptions(use_threads=False)
    try:
        for batch in arrow_csv.open_csv(source, read_options=read, convert_options=convert):
            yield pa.Table.from_batches([batch])
    except pa.ArrowInvalid as error:
        raise SchemaMismatchError(_explain(str(error), names, types)) from error


def _header(source: BinaryIO) -> list[str]:
    """The column names, without consuming them; empty where the source cannot look ahead."""
    peek = getattr(source, "peek", None)
    if peek is None:
        return []
    line = peek(_HEADER_BYTES_MAX)[:_HEADER_BYTES_MAX].split(b"\n", 1)[0]
    return next(csv.reader([line.decode("utf-8-sig", "replace").rstrip("\r")]), [])


def _explain(message: str, names: list[str], types: dict[str, pa.DataType]) -> str:
    if conversion := _CONVERSION.fullmatch(message):
        number, row, reason = int(conversion[1]), conversion[2], conversion[3]
        name = names[number] if number < len(names) else f"number {number + 1}"
        where = f"line {row}: column {name}" if row else f"column {name}"
        if (invalid := _INVALID.fullmatch(reason)) and name in types:
            return f"{where}: {invalid[1]} for {spark_name(types[name])}"
        return f"{where}: {reason}"
    if parsing := _PARSING.fullmatch(message):
        return f"line {parsing[1]}: {parsing[2]}" if parsing[1] else f"the CSV cannot be read: {parsing[2]}"
    return f"the CSV cannot be read: {message}"
