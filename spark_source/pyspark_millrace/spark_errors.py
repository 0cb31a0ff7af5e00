"""What went wrong, out of the hundred lines in which Spark reports it.

An error that is raised while Python plans or reads arrives in the driver as text: the traceback of the Python process,
inside the message of a JVM exception, often as the cause of others. The sentence that says what to do is in there, and
this finds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from millrace import errors
from millrace.errors import MillraceError

_CAUSES_MAX: Final = 30

_OURS: Final = re.compile(
    r"^\s*(?:[\w.]*: )*millrace(?:_\w+)?\.errors\.(?:\w+\.)*(?P<name>\w+): (?P<message>.*)$", re.MULTILINE
)
_PYTHON: Final = re.compile(
    r"^(?:[\w.]*: )*(?P<error>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b.*)$", re.MULTILINE
)
_NOT_A_REASON: Final = ("An error occurred while calling ", "[INTERNAL_ERROR", "Job aborted", "[STREAM_FAILED")
_PREFIX: Final = re.compile(r"^(?:[\w$]+\.)+(?P<name>[\w$]+): (?P<message>.+)$")

_ERROR_CLASS: Final = re.compile(r"^\[[A-Z][A-Z0-9_.]+\] ")
_STREAM_FAILED: Final = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")
_SQL_STATE: Final = re.compile(r"( SQLSTATE: \w{5}(; line \d+ pos \d+;?)?)+$")


def explain(error: BaseException) -> str:
    """One line for an error that Spark raised.

    That is the message of millrace's error within it; else the last line of the traceback of Spark's Python process;
    else what the innermost cause says.
    """
    if (ours := millrace_error_in(error)) is not None:
        return ours.message
    texts = list(_texts(error))
    for text in texts:
        if "Traceback (most recent call last)" in text and (
            lines := list(_PYTHON.finditer(text.split("JVM stack")[0]))
        ):
            return lines[-1]["error"].strip()
    reasons = [line for text in texts if (line := _first_line(text)) and not line.startswith(_NOT_A_REASON)]
    # What Spark has an error class for is meant to be read; of other chains the innermost says what happened.
    classified = [line for line in reasons if _ERROR_CLASS.match(line)]
    if classified:
        return classified[0]
    return reasons[-1] if reasons else f"{type(error).__name__}: {_first_line(str(error))}"


def millrace_error_in(error: BaseException) -> MillraceError | None:
    """The error of ours that made Spark fail, in its own class; None when there is none.

    Of a chain of errors it is the one that was raised last, which is the one that was meant to be seen.
    """
    if isinstance(error, MillraceError):
        return error
    for text in _texts(error):
        found = list(_OURS.finditer(text))
        if found:
            kind = getattr(errors, found[-1]["name"], MillraceError)
            known = isinstance(kind, type) and issubclass(kind, MillraceError)
            return (kind if known else MillraceError)(found[-1]["message"].strip())
    return None


def _texts(error: BaseException) -> Iterator[str]:
    """What an error says, and each of its causes, on this side and on the JVM's; the innermost last."""
    seen: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if seen is None:
            return
        java = getattr(seen, "java_exception", None)
        if java is None:
            yield str(seen)
        else:
            # The whole of str() is the JVM's stack trace, fetched from it.
            yield from _java_texts(java)
        seen = seen.__cause__


def _java_texts(java: Any) -> Iterator[str]:
    for _ in range(_CAUSES_MAX):
        if java is None:
            return
        yield str(java.toString())
        java = java.getCause()


def _first_line(text: str) -> str:
    """The first line, without what is before and after the sentence: JVM classes, the query's ids, the SQL state."""
    line = _STREAM_FAILED.sub("", text.strip().split("\n", 1)[0].strip())
    line = _SQL_STATE.sub("", line)
    found = _PREFIX.match(line)
    if found is None:
        return line
    if _ERROR_CLASS.match(found["message"]) or found["name"].endswith(("SparkException", "AnalysisException")):
        return _STREAM_FAILED.sub("", found["message"])
    # A NullPointerException says little without its name.
    return f"{found['name']}: {found['message']}"
