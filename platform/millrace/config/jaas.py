"""Kafka's option ``sasl.jaas.config``, one login module with its options.

Kafka's class is ``JaasConfig``. The name of the module is not used, because the mechanism is an option.
"""

from __future__ import annotations

import re
from typing import Final

_ENTRY: Final = re.compile(r"(?is)\s*[\w.$]+\s+(?:required|requisite|sufficient|optional)\b(.*?);\s*")
_OPTION: Final = re.compile(r"""\s+([\w.\-@]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([^\s"';]+))""")
_ESCAPE: Final = re.compile(r"\\(.)")


def parse_jaas(text: str) -> dict[str, str]:
    """Return the options of the login module. Raises ``ValueError``, which quotes nothing of the text."""
    entry = _ENTRY.fullmatch(text)
    rest = "" if entry is None else entry[1].rstrip()
    found: dict[str, str] = {}
    position = 0
    while position < len(rest):
        option = _OPTION.match(rest, position)
        if option is None:
            break
        name, quoted, single, bare = option.groups()
        found[name] = _ESCAPE.sub(r"\1", next(each for each in (quoted, single, bare) if each is not None))
        position = option.end()
    if entry is None or position < len(rest):
        raise ValueError('expected a login module, as in ...ScramLoginModule required username="u" password="p";')
    return found
