"""Conversion of a topic's bytes by serdes, column by column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import polars as pl
import pyarrow as pa

from millrace_streams.errors import UserFunctionError
from millrace_streams.frames.evaluation import polars_schema
from millrace_streams.graph import SourceNode
from millrace_streams.layout import KEY, VALUE, Layout
from millrace_streams.payload_rows import PayloadRows
from millrace_streams.serdes import JSON, STRING, Serde, json_text, parse_json
from millrace_streams.steps.batch import OFFSET, TOMBSTONE

_PLAIN: Final = r'^(?:0|-?[1-9][0-9]{0,17}|true|false|"[^"\\\x00-\x1f]*")$'
"""Texts of JSON that are surely written as ``json_text`` writes them; others are parsed."""
_JSON_NULL: Final = "null"
_JSON_WHITESPACE: Final = " \t\n\r"


@dataclass(frozen=True, slots=True)
class Deserializer:
    """Deserializer of a source's records of one partition; typed columns stay unchanged."""

    source: SourceNode
    layout: Layout
    partition: int

    def columns(self, decoded: pl.DataFrame) -> pl.DataFrame:
        """Return records with the layout's columns and ``__offset``. Raises ``UserFunctionError`` with a record's
        position.
        """
        if self.source.serdes is None:
            return decoded
        key, value = self.source.serdes
        frame = self._column(decoded, KEY, key)
        if isinstance(value, Serde):
            return self._column(frame, VALUE, value)
        if isinstance(value, PayloadRows) and frame.schema.get(VALUE) == pl.Binary:
            return self._rows(frame, value)
        return frame

    def _column(self, frame: pl.DataFrame, name: str, serde: Serde) -> pl.DataFrame:
        wanted = polars_schema(self.layout.schema)[name]
        if frame.schema[name] != pl.Binary or wanted == pl.Binary:
            return frame
        column = _at_once(serde, frame[name], wanted)
        if column is None:
            column = pl.Series(name, self._one_by_one(frame, name, serde), dtype=wanted)
        if serde.name == JSON.name:
            column = _without_json_nulls(column)
            if name == VALUE:  # the reader parses keys
                self._check_json(frame, column)
        return frame.with_columns(column)

    def _check_json(self, frame: pl.DataFrame, texts: pl.Series) -> None:
        try:
            check_json(texts)
        except UnreadableError as error:
            raise self._unreadable(frame, VALUE, JSON, error.row, str(error)) from error.__cause__

    def _one_by_one(self, frame: pl.DataFrame, name: str, serde: Serde) -> list[Any]:
        # Text and JSON (which is text in columns) is decoded only; other serdes return their value.
        read = STRING.deserialize if serde.data_type == pa.string() else serde.deserialize
        cells: list[Any] = []
        for data in frame[name].to_list():
            try:
                cells.append(None if data is None else read(data))
            except Exception as error:
                raise self._unreadable(frame, name, serde, len(cells), str(error)) from error
        return cells

    def _rows(self, frame: pl.DataFrame, serde: PayloadRows) -> pl.DataFrame:
        """Replace the bytes by the columns of payloads; without a payload the row has no value."""
        payloads = frame[VALUE].to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.binary())
        decoded = serde.read(payloads)
        if decoded.faults:
            row = min(decoded.faults)
            raise self._unreadable(frame, VALUE, serde, row, decoded.faults[row])
        gone = frame[VALUE].is_null().alias(TOMBSTONE)
        columns = pl.DataFrame(pa.table(decoded.columns)).drop(KEY, strict=False)
        rows = frame.drop(VALUE).with_columns(columns.get_columns())
        return rows.with_columns(gone) if gone.any() else rows

    def _unreadable(self, frame: pl.DataFrame, name: str, serde: object, row: int, why: str) -> UserFunctionError:
        source, offset = self.source, int(frame[OFFSET][row])
        return UserFunctionError(
            f"{source.name}: the {name} of the record at offset {offset} of {source.topic}-{self.partition} is not "
            f"a valid {serde}: {why}",
            node=source.name,
            topic=source.topic,
            partition=self.partition,
            offset=offset,
        )


def _without_json_nulls(column: pl.Series) -> pl.Series:
    """Replace the text ``null`` by a null cell, so that columns and Python agree on which records have a value."""
    is_null = (column.str.strip_chars(_JSON_WHITESPACE) == _JSON_NULL).fill_null(False)
    return column.set(is_null, None) if is_null.any() else column


class UnreadableError(Exception):
    """A text that is not JSON, with its row."""

    def __init__(self, text: str, row: int) -> None:
        super().__init__(text)
        self.row = row


def plain_json(texts: pl.Series) -> pl.Series | None:
    """Return texts of JSON as ``json_text`` writes them; None if all are. Raises ``UnreadableError``."""
    found = {}
    for text in texts.filter(~texts.str.contains(_PLAIN)).unique().to_list():
        try:
            plain = json_text(parse_json(text))
        except (ValueError, RecursionError) as error:
            raise UnreadableError(str(error), int((texts == text).arg_true()[0])) from error
        # A half of a surrogate pair has no UTF-8, and so stays escaped.
        if plain != text and _is_encodable(plain):
            found[text] = plain
    return texts.replace(list(found), list(found.values())) if found else None


def check_json(texts: pl.Series) -> None:
    """Check that texts are JSON; nulls are skipped. Raises ``UnreadableError`` for the first other text."""
    # The parser of polars is several times as fast as Python's. It refuses some more texts, such as halves of surrogate
    # pairs and more than 128 levels.
    doubtful = texts.is_not_null() & texts.str.json_path_match("$").is_null()
    for row in doubtful.arg_true().to_list():
        try:
            parse_json(texts[row])
        except (ValueError, RecursionError) as error:
            raise UnreadableError(str(error), row) from error


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _at_once(serde: Serde, cells: pl.Series, wanted: pl.DataType) -> pl.Series | None:
    """Convert a column of bytes at once; None if a cell is invalid, or the serde needs a call per cell."""
    if serde.data_type == pa.string():
        try:
            return cells.cast(pl.String)
        except pl.exceptions.ComputeError:
            return None
    if serde.big_endian:
        # A cell of another length gives null.
        column = cells.bin.reinterpret(dtype=wanted, endianness="big")
        return column if column.null_count() == cells.null_count() else None
    return None
