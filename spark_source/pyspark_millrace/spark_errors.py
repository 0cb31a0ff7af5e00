"""Cause of a failure, extracted from Spark's long error report.

An error in a Python planner or reader reaches the driver as text. It is the traceback of the Python process, inside the
message of a JVM exception, which is often the cause of others. This module finds the sentence with the cause and the
remedy.
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
    """Return one line for an error of Spark.

    The line is the message of a millrace error within it. Without one, it is the last line of the Python traceback, or
    else the message of the innermost cause.
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
    # Prefer messages with a Spark error class, which are meant for readers; otherwise the innermost cause.
    classified = [line for line in reasons if _ERROR_CLASS.match(line)]
    if classified:
        return classified[0]
    return reasons[-1] if reasons else f"{type(error).__name__}: {_first_line(str(error))}"


def millrace_error_in(error: BaseException) -> MillraceError | None:
    """Return the millrace error that made Spark fail, in its own class; None if there is none.

    In a chain of errors it is the one raised last, because that one is meant for the user.
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
    """Yield the texts of an error and its causes, in Python and in the JVM; the innermost is last."""
    seen: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if seen is None:
            return
        java = getattr(seen, "java_exception", None)
        if java is None:
            yield str(seen)
        else:
            # str() would fetch the whole stack trace from the JVM.
            yield from _java_texts(java)
        seen = seen.__cause__


def _java_texts(java: Any) -> Iterator[str]:
    for _ in range(_CAUSES_MAX):
        if java is None:
            return
        yield str(java.toString())
        java = java.getCause()


def _first_line(text: str) -> str:
    """Return the first line without JVM classes, the query's ids and the SQL state."""
    line = _STREAM_FAILED.sub("", text.strip().split("\n", 1)[0].strip())
    line = _SQL_STATE.sub("", line)
    found = _PREFIX.match(line)
    if found is None:
        return line
    if _ERROR_CLASS.match(found["message"]) or found["name"].endswith(("SparkException", "AnalysisException")):
        return _STREAM_FAILED.sub("", found["message"])
    # The message of a NullPointerException says little without its name.
    return f"{found['name']}: {found['message']}"
