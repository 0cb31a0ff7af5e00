"""Spark's DDL text for schemas, read and written without Spark.

The parser reads the output of ``StructType.toDDL()`` and ``simpleString()``, column lists, and ``CREATE TABLE``
statements. Clauses after the column list are ignored, because they describe the storage of a table. Lengths of
``CHAR`` and ``VARCHAR`` are dropped: the column is a ``STRING``. Source: Spark 4's ``SqlBaseParser.g4``, rules
``colTypeList``, ``dataType``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millrace.errors import SchemaError
from millrace.schemas.types import DECIMAL_MAX_PRECISION, DURATION, TIME, TIMESTAMP, TIMESTAMP_NTZ, field_ddl

_TOKENS: Final = re.compile(
    r"""
      (?P<space>   (?: \s | --[^\n]* | /\*.*?\*/ )+ )
    | (?P<quoted>  `(?:[^`]|``)*` )
    | (?P<string>  '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" )
    | (?P<word>    [^\W\d]\w* | \d+\w* )
    | (?P<symbol>  [<>(),:.;=] )
    """,
    re.VERBOSE | re.DOTALL,
)

_SIMPLE: Final[dict[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(), "BYTE": pa.int8(),
    "SMALLINT": pa.int16(), "SHORT": pa.int16(),
    "INT": pa.int32(), "INTEGER": pa.int32(),
    "BIGINT": pa.int64(), "LONG": pa.int64(),
    "FLOAT": pa.float32(), "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIMESTAMP_LTZ": TIMESTAMP,
    "TIMESTAMP_NTZ": TIMESTAMP_NTZ,
    "BINARY": pa.binary(),
}  # fmt: skip

_REFUSED: Final[dict[str, str]] = {
    "VOID": "name the type of the values to come",
    "NULL": "name the type of the values to come",
    "VARIANT": "use STRING and keep JSON in it, or a STRUCT",
    "GEOMETRY": "use BINARY and keep WKB in it",
    "GEOGRAPHY": "use BINARY and keep WKB in it",
    "OBJECT": "use BINARY",
}

# Refused column options of CREATE TABLE, which compute or constrain values; a log stores the sent values.
_REFUSED_OPTIONS: Final = {"DEFAULT", "GENERATED", "PRIMARY", "CHECK", "REFERENCES", "UNIQUE", "CONSTRAINT"}
# Any other word after CREATE is the type of a column with the name CREATE.
_AFTER_CREATE: Final = ("OR", "EXTERNAL", "TEMPORARY", "TABLE")
_INTERVAL_UNITS: Final = {"DAY": 0, "HOUR": 1, "MINUTE": 2, "SECOND": 3}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a"}


def parse_ddl(text: str) -> pa.Schema:
    """Read a schema from DDL text: ``id BIGINT NOT NULL, tags ARRAY<STRING> COMMENT 'any'``.

    Raises ``SchemaError`` with the text at the error.
    """
    parser = _Parser(text)
    if any(parser.at("CREATE", word) for word in _AFTER_CREATE):
        fields = parser.create_table()
    elif parser.at("STRUCT", "<"):
        fields = list(parser.data_type())
        parser.expect_end()
    else:
        fields = parser.columns(end=None)
        parser.expect_end()
    return pa.schema(fields)


def parse_ddl_type(text: str) -> pa.DataType:
    """Read one type: ``MAP<STRING, DECIMAL(10,2)>``; raises ``SchemaError``."""
    parser = _Parser(text)
    data_type = parser.data_type()
    parser.expect_end()
    return data_type


def to_ddl(schema: pa.Schema) -> str:
    """Write a schema as ``StructType.toDDL()`` does; ``parse_ddl`` reads it back."""
    return ", ".join(field_ddl(field) for field in schema)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


class _Parser:
    """Recursive descent parser over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._tokenize(text)
        self._next = 0

    def _tokenize(self, text: str) -> list[_Token]:
        tokens, position = [], 0
        while position < len(text):
            found = _TOKENS.match(text, position)
            if found is None:
                raise self._error("unexpected character", position)
            if found.lastgroup != "space":
                tokens.append(_Token(found.lastgroup or "", found.group(), position))
            position = found.end()
        tokens.append(_Token("end", "", len(text)))
        return tokens

    def _error(self, what: str, position: int) -> SchemaError:
        rest = self._text[position : position + 30].split("\n")[0]
        where = f"at {rest!r}" if rest.strip() else "at its end"
        return SchemaError(f"schema text, character {position + 1}, {where}: {what}")

    def _fail(self, what: str) -> SchemaError:
        return self._error(what, self._tokens[self._next].position)

    def at(self, *words: str) -> bool:
        """Return whether the next tokens are these words or symbols."""
        following = self._tokens[self._next : self._next + len(words)]
        return [token.text.upper() if token.kind in ("word", "symbol") else "" for token in following] == list(words)

    def accept(self, *words: str) -> bool:
        """Consume these words if they come next."""
        if self.at(*words):
            self._next += len(words)
            return True
        return False

    def expect(self, *words: str) -> None:
        """Consume these words or fail."""
        if not self.accept(*words):
            raise self._fail(f"expected {' '.join(words)}")

    def expect_end(self) -> None:
        """Fail unless everything is consumed; a closing semicolon is accepted."""
        self.accept(";")
        if self._tokens[self._next].kind != "end":
            raise self._fail("expected a comma or the end")

    def create_table(self) -> list[pa.Field]:
        """Parse ``CREATE [OR REPLACE] [TEMPORARY|EXTERNAL] TABLE [IF NOT EXISTS] a.b.c (columns) ...``."""
        self.expect("CREATE")
        self.accept("OR", "REPLACE")
        _ = self.accept("EXTERNAL") or self.accept("TEMPORARY")
        self.expect("TABLE")
        self.accept("IF", "NOT", "EXISTS")
        self.name()
        while self.accept("."):
            self.name()
        self.expect("(")
        fields = self.columns(end=")")
        self.expect(")")
        return fields

    def columns(self, *, end: str | None, separator: str | None = None) -> list[pa.Field]:
        """Parse columns between commas, up to ``end`` (not consumed) or the end of the text."""
        if end is None and self._tokens[self._next].kind == "end":
            raise self._fail("expected a column: name and type")
        fields = [self.column(separator)]
        while self.accept(","):
            fields.append(self.column(separator))
        if end is not None and not self.at(end):
            raise self._fail(f"expected a comma or {end}")
        return fields

    def column(self, separator: str | None) -> pa.Field:
        """Parse name, type, and options in any order."""
        name = self.name()
        if separator:
            self.accept(separator)
        data_type = self.data_type()
        nullable, comment = True, None
        while True:
            if self.accept("NOT", "NULL"):
                nullable = False
            elif self.accept("COMMENT"):
                comment = self.string()
            elif self._tokens[self._next].text.upper() in _REFUSED_OPTIONS:
                option = self._tokens[self._next].text.upper()
                raise self._fail(f"column {name}: {option} is not kept by a topic: leave it out")
            else:
                break
        return pa.field(name, data_type, nullable=nullable, metadata={"comment": comment} if comment else None)

    def name(self) -> str:
        """Parse a column or table name; in backticks it may contain any character."""
        token = self._tokens[self._next]
        if token.kind == "quoted":
            self._next += 1
            return token.text[1:-1].replace("``", "`")
        if token.kind == "word":
            self._next += 1
            return token.text
        raise self._fail("expected a name")

    def string(self) -> str:
        """Parse a quoted string."""
        token = self._tokens[self._next]
        if token.kind != "string":
            raise self._fail("expected a quoted string")
        self._next += 1
        quote = token.text[0]
        body = token.text[1:-1].replace(quote * 2, quote)
        return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), body, flags=re.DOTALL)

    def integer(self) -> int:
        """Parse a whole number."""
        token = self._tokens[self._next]
        if token.kind != "word" or not token.text.isdigit():
            raise self._fail("expected a number")
        self._next += 1
        return int(token.text)

    def data_type(self) -> pa.DataType:
        """Parse a type with its parameters."""
        token = self._tokens[self._next]
        if token.kind != "word":
            raise self._fail("expected a type")
        word = token.text.upper()
        if (remedy := _REFUSED.get(word)) is not None:
            raise self._fail(f"{word} has no Arrow type that a topic stores: {remedy}")
        if (simple := _SIMPLE.get(word)) is not None:
            self._next += 1
            return simple
        method = getattr(self, f"_type_{word.lower()}", None)
        if method is None:
            raise self._fail(f"{token.text} is not a Spark type")
        self._next += 1
        data_type: pa.DataType = method()
        return data_type

    def _type_timestamp(self) -> pa.DataType:
        if self.accept("WITHOUT", "TIME", "ZONE"):
            return TIMESTAMP_NTZ
        self.accept("WITH", "LOCAL", "TIME", "ZONE")
        return TIMESTAMP

    def _type_time(self) -> pa.DataType:
        if self.accept("("):
            if self.integer() > 9:
                raise self._fail("TIME has a precision of 0 to 9")
            self.expect(")")
        self.accept("WITHOUT", "TIME", "ZONE")
        return TIME

    def _type_string(self) -> pa.DataType:
        if self.accept("COLLATE") and (collation := self.name()).upper() != "UTF8_BINARY":
            raise self._fail(f"collation {collation} is not kept by a topic: use STRING")
        return pa.string()

    def _type_char(self) -> pa.DataType:
        self.expect("(")
        self.integer()
        self.expect(")")
        return self._type_string()

    _type_character = _type_char
    _type_varchar = _type_char

    def _type_decimal(self) -> pa.DataType:
        precision, scale = 10, 0  # Spark's default
        if self.accept("("):
            precision = self.integer()
            if self.accept(","):
                scale = self.integer()
            self.expect(")")
        if not (1 <= precision <= DECIMAL_MAX_PRECISION and scale <= precision):
            raise self._fail(f"DECIMAL({precision},{scale}): precision is 1 to 38 and scale at most the precision")
        return pa.decimal128(precision, scale)

    _type_dec = _type_decimal
    _type_numeric = _type_decimal

    def _type_interval(self) -> pa.DataType:
        first = self._tokens[self._next].text.upper()
        if first in ("YEAR", "MONTH"):
            raise self._fail("intervals of years and months have no Arrow type: store months as INT")
        if first not in _INTERVAL_UNITS:
            raise self._fail("expected DAY, HOUR, MINUTE or SECOND: calendar intervals have no Arrow type")
        self._next += 1
        if self.accept("TO"):
            last = self._tokens[self._next].text.upper()
            if _INTERVAL_UNITS.get(last, -1) <= _INTERVAL_UNITS[first]:
                raise self._fail(f"expected a unit smaller than {first}")
            self._next += 1
        return DURATION

    def _type_array(self) -> pa.DataType:
        self.expect("<")
        element = self.data_type()
        self.expect(">")
        return pa.list_(pa.field("element", element))

    def _type_map(self) -> pa.DataType:
        self.expect("<")
        key = self.data_type()
        self.expect(",")
        value = self.data_type()
        self.expect(">")
        return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value))

    def _type_struct(self) -> pa.DataType:
        self.expect("<")
        fields = self.columns(end=">", separator=":")
        self.expect(">")
        return pa.struct(fields)
