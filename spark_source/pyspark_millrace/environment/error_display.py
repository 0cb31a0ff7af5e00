"""Short display of uncaught millrace errors: the location and one sentence.

Spark reports an error as a text of a hundred lines: the JVM's stack, the plan, the traceback of the process that raised
it. The exceptions themselves do not change, so programs catch the same types as before. Only the interpreter's output
for an uncaught exception becomes short.
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
    """Print uncaught millrace errors briefly from now on, all others as before. Idempotent."""
    if not isinstance(sys.excepthook, BriefHook):
        sys.excepthook = BriefHook(sys.excepthook)


class BriefHook:
    """``excepthook`` that prints millrace errors briefly.

    All other errors go to the previous hook.
    """

    def __init__(self, before: Hook) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Print an uncaught error."""
        text = brief_text(error, trace)
        if text is None:
            self._before(kind, error, trace)
        else:
            sys.stderr.write(text)


def brief_text(error: BaseException, trace: TracebackType | None) -> str | None:
    """Return the program's part of the traceback and the error's sentence; None for other errors."""
    ours = millrace_error_in(error)
    if ours is None:
        return None
    # PySpark appends the frames of the raising process to those of the program.
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
