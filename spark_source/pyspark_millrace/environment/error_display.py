"""Uncaught errors of ours as a program ends with them: where it was, and one sentence.

Spark hands an error on as a text of a hundred lines: the stack of the JVM, the plan, the traceback of the process that
raised it. Exceptions stay what they are, so that programs catch what they always did; only what the interpreter
prints of one that nobody caught is put short.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

from millrace import errors
from pyspark_millrace.spark_errors import millrace_error_in

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

_SPARKS: Final = frozenset(("pyspark", "py4j"))
_OURS: Final = (Path(__file__).parents[1], Path(errors.__file__).parent.parent)


def show_errors_briefly() -> None:
    """Print uncaught errors of ours briefly from now on, all others as before. May be called twice."""
    if not isinstance(sys.excepthook, BriefHook):
        sys.excepthook = BriefHook(sys.excepthook)


class BriefHook:
    """An ``excepthook`` that prints errors of ours itself and leaves the others to the one before."""

    def __init__(self, before: Hook) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Print an error that nobody caught."""
        text = brief_text(error, trace)
        if text is None:
            self._before(kind, error, trace)
        else:
            sys.stderr.write(text)


def brief_text(error: BaseException, trace: TracebackType | None) -> str | None:
    """The program's own part of the traceback and our sentence; None when the error is not ours."""
    ours = millrace_error_in(error)
    if ours is None:
        return None
    # PySpark puts the frames of the process in which it was raised behind the program's own.
    frames = [frame for frame in traceback.extract_tb(trace) if _is_of_the_program(Path(frame.filename))]
    kind = type(ours)
    return "".join(
        [
            "Traceback (most recent call last):\n",
            *traceback.format_list(frames),
            f"{kind.__module__}.{kind.__qualname__}: {ours.message}\n",
        ]
    )


def _is_of_the_program(file: Path) -> bool:
    return not _SPARKS & set(file.parts) and not any(file.is_relative_to(package) for package in _OURS)
