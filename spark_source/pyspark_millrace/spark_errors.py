"""What went wrong, out of the hundred lines in which Spark reports it.

An error that is raised while Python plans or reads arrives in the driver as text: the traceback of the Python process,
inside the message of a JVM exception. The sentence that says what to do is in there, and this finds it.
"""

from __future__ import annotations

import re
from typing import Final

_OURS: Final = re.compile(r"^\s*(?:[\w.]*: )*millrace(?:_streams)?\.errors\.(\w+): (?P<message>.*)$", re.MULTILINE)
_END: Final = re.compile(r"\n(?:\s*at |\tat |SQLSTATE|\s*Traceback|\s*During handling|JVM stacktrace)")


def explain(error: BaseException) -> str:
    """One sentence for an error that Spark raised: that of millrace's error within it, else Spark's own first line."""
    text = str(error)
    found = list(_OURS.finditer(text))
    if found:
        # The last one is the one that was raised last, of a chain.
        message = text[found[-1].start("message") :]
        return _END.split(message, maxsplit=1)[0].strip().split("\n")[0]
    first_line = text.strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {first_line}"
