"""Secret option values, and their display in messages."""

from __future__ import annotations

import re
from typing import Final

from millrace.config.jaas import parse_jaas

SECRET_PATTERN: Final = "(?i)secret|password|token|access[.]?key|credential|jaas|keystore[.]key|private[.]?key"
"""Patterns of names and values that mark a secret: those of Spark's ``spark.redaction.regex``, and Kafka's."""

REFERENCE: Final = re.compile(r"\$\{(?P<provider>env|file|directory):(?P<rest>[^}]+)\}")
"""Reference to a value stored elsewhere (``references``). The reference itself is no secret."""

_SECRET: Final = re.compile(SECRET_PATTERN)
_JAAS_SECRET: Final = re.compile(f"{SECRET_PATTERN}|^user_")
"""Names of secret options of login modules. ``user_alice`` is the password of a user of PLAIN."""


def is_secret(name: str) -> bool:
    """Return whether an option's name marks its value as a secret."""
    return _SECRET.search(name) is not None


def shown(name: str, value: object) -> str:
    """Format an option's value for messages. Hide it if its name or value marks a secret."""
    if REFERENCE.fullmatch(str(value)):
        return repr(value)
    return "(hidden)" if _SECRET.search(name) or _SECRET.search(str(value)) else repr(value)


def holds_secret(name: str, value: str) -> bool:
    """Return whether the value of a secret option is the secret itself, and no reference to it.

    A login module holds a secret if one of its options does.
    """
    if not REFERENCE.sub("", value).strip():
        return False
    if not name.endswith("jaas.config"):
        return True
    try:
        found = parse_jaas(value)
    except ValueError:
        return True
    return any(
        REFERENCE.sub("", text) not in ("", "true", "false")
        for option, text in found.items()
        if _JAAS_SECRET.search(option)
    )
