"""Which option values nobody but their reader is to see, and how messages name them."""

from __future__ import annotations

import re
from typing import Final

SECRET_PATTERN: Final = "(?i)secret|password|token|access[.]?key|credential|jaas|keystore[.]key|private[.]?key"
"""Texts in names and values by which a secret is known: those of Spark's ``spark.redaction.regex``, and Kafka's."""

REFERENCE: Final = re.compile(r"\$\{(?P<provider>env|file|directory):(?P<rest>[^}]+)\}")
"""A reference to a value that is elsewhere (``references``), which is no secret itself."""

_SECRET: Final = re.compile(SECRET_PATTERN)


def shown(name: str, value: object) -> str:
    """An option's value as messages show it: hidden where name or value say that it is a secret."""
    if REFERENCE.fullmatch(str(value)):
        return repr(value)
    return "(hidden)" if _SECRET.search(name) or _SECRET.search(str(value)) else repr(value)
