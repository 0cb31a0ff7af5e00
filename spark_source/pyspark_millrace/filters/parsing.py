"""The option ``filter``: a condition as in SQL's WHERE.

    condition  = conjunction {OR conjunction}
    conjunction= negation {AND negation}
    negation   = NOT negation | "(" condition ")" | predicate
    predicate  = column (= == != <> < <= > >= <=>) literal
               | column [NOT] (IN "(" literal {"," literal} ")" | BETWEEN literal AND literal | LIKE 'text')
               | column IS [NOT] NULL
               | column                                     (a BOOLEAN)
    literal    = number | 'text' | X'hex' | TRUE | FALSE | NULL | DATE 'text' | TIMESTAMP 'text'

A literal may also be on the left of a comparison. Words are not case-sensitive; columns with other characters than
letters, digits and ``_`` are quoted by backticks; a quote within a text is doubled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

from millrace.errors import UsageError
from pyspark_millrace.filters.condition import (
    Comparator,
    Condition,
    Conjunction,
    Disjunction,
    Matching,
    Membership,
    NullCheck,
    TextMatch,
    compare,
    negate,
)
from pyspark_millrace.filters.literals import UnfitLiteralError, parse_date, parse_timestamp

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<bytes>[xX]'[^']*')"
    r"|(?P<text>'(?:[^']|'')*')"
    r"|`(?P<quoted>(?:[^`]|``)+)`"
    r"|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<symbol><=>|<=|>=|<>|!=|==|[=<>(),]))"
)
_OPERATORS: Final = {
    "=": Comparator.EQUAL, "==": Comparator.EQUAL, "!=": Comparator.UNEQUAL, "<>": Comparator.UNEQUAL,
    "<": Comparator.LESS, "<=": Comparator.LESS_OR_EQUAL, ">": Comparator.GREATER,
    ">=": Comparator.GREATER_OR_EQUAL, "<=>": Comparator.SAME,
}  # fmt: skip
_MIRRORED: Final = {
    Comparator.LESS: Comparator.GREATER,
    Comparator.GREATER: Comparator.LESS,
    Comparator.LESS_OR_EQUAL: Comparator.GREATER_OR_EQUAL,
    Comparator.GREATER_OR_EQUAL: Comparator.LESS_OR_EQUAL,
}
_RESERVED: Final = frozenset(("AND", "OR", "NOT", "IN", "IS", "LIKE", "BETWEEN", "NULL", "TRUE", "FALSE"))
_CONSTANTS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
_DEPTH_MAX: Final = 100


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


def parse_filter(text: str) -> Condition:
    """Parse a condition. Raises ``UsageError`` with the position of the error and the expected token."""
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*self._scan(), _Token("end", "", len(text))]
        self._next = 0
        self._depth = 0

    def _scan(self) -> Iterator[_Token]:
        position = 0
        while rest := self._text[position:].strip():
            found = _TOKEN.match(self._text, position)
            if found is None or found.lastgroup is None:
                raise self._problem(f"unexpected {rest[0]!r}", len(self._text) - len(self._text[position:].lstrip()))
            yield _Token(found.lastgroup, found[found.lastgroup], found.start(found.lastgroup))
            position = found.end()

    def _problem(self, what: str, position: int | None = None) -> UsageError:
        if position is None:
            position = self._peek().position
        return UsageError(
            f"filter={self._text!r}: {what} at character {position + 1}; expected a condition such as "
            "price > 10 AND (word IN ('a', 'b') OR word IS NULL)"
        )

    # --- tokens ----------------------------------------------------------------------------------------------------

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *words: str) -> str | None:
        """Take the next token if it is one of these words or symbols; otherwise return None."""
        token = self._peek()
        word = token.text.upper()
        if token.kind in ("word", "symbol") and word in words:
            self._next += 1
            return word
        return None

    def _expect(self, *words: str) -> str:
        found = self._take(*words)
        if found is None:
            raise self._problem(f"expected {' or '.join(words)}")
        return found

    # --- grammar ---------------------------------------------------------------------------------------------------

    def whole(self) -> Condition:
        found = self._condition()
        if self._peek().kind != "end":
            raise self._problem(f"unexpected {self._peek().text!r}")
        return found

    def _condition(self) -> Condition:
        return self._list_of(self._conjunction, "OR", Disjunction)

    def _conjunction(self) -> Condition:
        return self._list_of(self._negation, "AND", Conjunction)

    def _list_of(
        self, term: Callable[[], Condition], word: str, join: Callable[[tuple[Condition, ...]], Condition]
    ) -> Condition:
        terms = [term()]
        while self._take(word):
            terms.append(term())
        return terms[0] if len(terms) == 1 else join(tuple(terms))

    def _negation(self) -> Condition:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._problem("too many parentheses")
        try:
            if self._take("NOT"):
                return negate(self._negation())
            if self._take("("):
                found = self._condition()
                self._expect(")")
                return found
            return self._predicate()
        finally:
            self._depth -= 1

    def _predicate(self) -> Condition:
        if not self._is_column():
            value = self._literal()
            operator = _OPERATORS[self._expect(*_OPERATORS)]
            return compare(self._column(), _MIRRORED.get(operator, operator), value)
        column = self._column()
        if (symbol := self._take(*_OPERATORS)) is not None:
            return compare(column, _OPERATORS[symbol], self._literal())
        if self._take("IS"):
            is_null = not self._take("NOT")
            self._expect("NULL")
            return NullCheck(column, is_null)
        is_negated = bool(self._take("NOT"))
        word = self._expect("IN", "BETWEEN", "LIKE") if is_negated else self._take("IN", "BETWEEN", "LIKE")
        if word is None:
            return compare(column, Comparator.EQUAL, True)
        found = {"IN": self._membership, "BETWEEN": self._between, "LIKE": self._like}[word](column)
        return negate(found) if is_negated else found

    def _membership(self, column: str) -> Condition:
        self._expect("(")
        values = [self._literal()]
        while self._expect(",", ")") == ",":
            values.append(self._literal())
        present = tuple(value for value in values if value is not None)
        return Membership(column, present, has_null=len(present) < len(values))

    def _between(self, column: str) -> Condition:
        low = compare(column, Comparator.GREATER_OR_EQUAL, self._literal())
        self._expect("AND")
        return Conjunction((low, compare(column, Comparator.LESS_OR_EQUAL, self._literal())))

    def _like(self, column: str) -> Condition:
        pattern = self._literal()
        if not isinstance(pattern, str):
            raise self._problem("LIKE takes a 'text'")
        return TextMatch(column, Matching.LIKE, pattern)

    def _is_column(self) -> bool:
        token = self._peek()
        if token.kind != "word":
            return token.kind == "quoted"
        word = token.text.upper()
        is_literal = word in ("DATE", "TIMESTAMP") and self._tokens[self._next + 1].kind == "text"
        return word not in _RESERVED and not is_literal

    def _column(self) -> str:
        if not self._is_column():
            raise self._problem("expected a column")
        token = self._peek()
        self._next += 1
        return token.text.replace("``", "`")

    def _literal(self) -> Any:
        token = self._peek()
        self._next += 1
        word = token.text.upper()
        if token.kind == "number":
            try:
                return int(token.text) if re.fullmatch(r"[+-]?\d+", token.text) else Decimal(token.text)
            except (ValueError, InvalidOperation):
                raise self._problem("this number has too many digits", token.position) from None
        if token.kind == "text":
            return _unquoted(token.text)
        if token.kind == "word" and word in _CONSTANTS:
            return _CONSTANTS[word]
        try:
            if token.kind == "bytes":
                return bytes.fromhex(token.text[2:-1])
            if token.kind == "word" and word in ("DATE", "TIMESTAMP") and self._peek().kind == "text":
                text = _unquoted(self._peek().text)
                self._next += 1
                return parse_date(text) if word == "DATE" else parse_timestamp(text)
        except (ValueError, UnfitLiteralError) as error:
            raise self._problem(str(error), token.position) from None
        self._next -= 1
        raise self._problem("expected a number, 'text', X'hex', TRUE, FALSE, NULL, DATE '...' or TIMESTAMP '...'")


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")
