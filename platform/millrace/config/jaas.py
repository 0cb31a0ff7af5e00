"""Kafka's option ``sasl.jaas.config``: login modules with their options.

Kafka's class is ``JaasConfig``. The names of the modules are not used, because the mechanism is an option. Several
modules, one for each mechanism of a listener, have their options together.
"""

from __future__ import annotations

import re
from typing import Final

_MODULE: Final = re.compile(r"(?i)\s*[\w.$]+\s+(?:required|requisite|sufficient|optional)\b")
_OPTION: Final = re.compile(r"""\s+([\w.\-@]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([^\s"';]+))""", re.S)
_END: Final = re.compile(r"\s*;\s*")
_ESCAPE: Final = re.compile(r"(?s)\\(.)")


def parse_jaas(text: str) -> dict[str, str]:
    """Return the options of the login modules. Raises ``ValueError``, which quotes no value of the text."""
    found: dict[str, str] = {}
    position = 0
    while position < len(text) or not text:
        position = _end_of(_MODULE, text, position)
        while option := _OPTION.match(text, position):
            name, quoted, single, bare = option.groups()
            value = _ESCAPE.sub(r"\1", next(each for each in (quoted, single, bare) if each is not None))
            if found.setdefault(name, value) != value:
                raise ValueError(f"the login modules have two values of {name}: give one of them")
            position = option.end()
        position = _end_of(_END, text, position)
    return found


def _end_of(part: re.Pattern[str], text: str, position: int) -> int:
    found = part.match(text, position)
    if found is None:
        raise ValueError('expected a login module, as in ...ScramLoginModule required username="u" password="p";')
    return found.end()
