"""Parser of Java properties files (Kafka: ``java.util.Properties.load``).

The text of a file may hold passwords. Errors therefore name only the file and the number of a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from millrace.errors import InvalidConfigError

_BLANKS: Final = " \t\f"
_OPTION: Final = re.compile(
    r"(?P<name>(?:[^\\=: \t\f]|\\.)+)(?:[ \t\f]*[=:][ \t\f]*|[ \t\f]+(?=[^ \t\f]))(?P<value>.*)", re.DOTALL
)
"""Name, separator and value of a line: the separator is ``=``, ``:``, or only blanks."""
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str, source: str) -> dict[str, str]:
    """Parse a properties file, whose name in errors is ``source``.

    Lines beginning with ``#`` or ``!`` are comments, and ``\\`` at the end continues a line. A backslash in a name or
    value is written twice. Raises ``InvalidConfigError`` for a name without a value, which Java reads as empty.
    """
    values: dict[str, str] = {}
    for number, line in _logical_lines(text):
        found = _OPTION.fullmatch(line)
        if found is None:
            raise InvalidConfigError(
                f"{source}:{number}: expected name=value. The line is not shown, because it may hold a secret"
            )
        try:
            values[_unescaped(found["name"])] = _unescaped(found["value"]).strip()
        except ValueError:
            raise InvalidConfigError(
                rf"{source}:{number}: \u needs four hexadecimal digits. Write a backslash twice"
            ) from None
    return values


def escaped_value(value: str) -> str:
    """Return a value as a properties file has it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their continuations, after the number of their first line. Leave out blanks and comments."""
    lines = enumerate(re.split(r"\r\n|\r|\n", text), start=1)
    for number, line in lines:
        joined = line.lstrip(_BLANKS)
        if not joined or joined[0] in "#!":
            continue
        while _is_continued(joined):
            _, following = next(lines, (0, ""))
            joined = joined[:-1] + following.lstrip(_BLANKS)
        if joined:
            yield number, joined


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    """Replace escapes. Raises ``ValueError`` for a ``\\u`` without four digits."""

    def plain(found: re.Match[str]) -> str:
        digits, character = found.groups()
        if digits is not None:
            return chr(int(digits, 16))
        if character == "u":
            raise ValueError
        return _ESCAPED.get(character, character)

    return _ESCAPE.sub(plain, text)
