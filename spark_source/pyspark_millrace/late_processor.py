"""A stateful processor whose code is loaded where it runs, and nowhere before.

Before a query's first batch Spark starts a Python process of its own for each ``transformWithState``, has it call the
processor's ``init`` to learn what state there will be, and ends it. The query's start waits for all that this process
loads: a second for a processor that needs polars and grpc. So Spark is given this one, which loads nothing; it carries
the real processor pickled, with the calls that its ``init`` makes, and repeats these.

Invariant: the real processor's ``init`` makes the same calls each time, of ``get...State`` alone, whatever they give.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyspark.sql.streaming import StatefulProcessor

from pyspark_millrace.state_connections import leave_open


class _Call(NamedTuple):
    """A call of a handle's method."""

    method: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class LateProcessor(StatefulProcessor):  # type: ignore[misc]
    """Stands for ``processor`` until its first rows come. Timers and initial state are not for such."""

    def __init__(self, processor: StatefulProcessor) -> None:
        """Note what ``processor`` asks for, and pickle it: by reference if workers can import it, else by value."""
        from pyspark import cloudpickle

        self._pickled = cloudpickle.dumps(processor)
        self._calls: list[_Call] = []
        processor.init(_Noting(self._calls))
        self._handle: Any = None
        self._states: list[Any] = []
        self._processor: StatefulProcessor | None = None

    def init(self, handle: Any) -> None:
        """Open the state that the processor will ask for."""
        self._handle = handle
        self._states = [getattr(handle, call.method)(*call.arguments, **call.keywords) for call in self._calls]

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """Let the processor handle a key's rows. Argument names are Spark's: it passes them by keyword."""
        if self._processor is None:
            self._processor = pickle.loads(self._pickled)
            self._processor.init(_Giving(self._calls, self._states))
        found: Iterator[Any] = self._processor.handleInputRows(key, rows, timerValues)
        return found

    def close(self) -> None:
        """Close the processor, if there were rows for it, and leave the rest to Spark."""
        if self._processor is not None:
            self._processor.close()
        leave_open(self._handle)


class _Noting:
    """A handle that notes how it is called."""

    def __init__(self, calls: list[_Call]) -> None:
        self._calls = calls

    def __getattr__(self, method: str) -> Any:
        return lambda *arguments, **keywords: self._calls.append(_Call(method, arguments, keywords))


class _Giving:
    """A handle that gives what was opened before, for the same calls in the same order."""

    def __init__(self, calls: list[_Call], states: list[Any]) -> None:
        self._opened = iter(zip(calls, states, strict=True))

    def __getattr__(self, method: str) -> Any:
        def give(*arguments: Any, **keywords: Any) -> Any:
            call, state = next(self._opened)
            assert call == _Call(method, arguments, keywords), f"{call.method} was noted, and {method} is called"
            return state

        return give
