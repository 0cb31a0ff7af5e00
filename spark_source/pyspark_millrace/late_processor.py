"""Stateful processor whose code is loaded only where it runs.

Before the first batch Spark starts a Python process for each ``transformWithState``. This process calls the processor's
``init`` to learn the state variables, and ends. The query's start waits for everything that this process loads, about a
second for a processor that needs polars and grpc. So Spark gets this processor, which loads nothing. It carries the
real processor pickled, with the calls that its ``init`` makes, and repeats them.

Invariant: the real processor's ``init`` makes the same ``get...State`` calls each time, whatever they return.
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
    """Placeholder of ``processor`` until its first rows. It does not support timers and initial state."""

    def __init__(self, processor: StatefulProcessor) -> None:
        """Record the calls of the processor's ``init``, and pickle it: by reference if workers can import it, else by
        value.
        """
        from pyspark import cloudpickle

        self._pickled = cloudpickle.dumps(processor)
        self._calls: list[_Call] = []
        processor.init(_Noting(self._calls))
        self._handle: Any = None
        self._states: list[Any] = []
        self._processor: StatefulProcessor | None = None

    def init(self, handle: Any) -> None:
        """Open the state variables of the processor."""
        self._handle = handle
        self._states = [getattr(handle, call.method)(*call.arguments, **call.keywords) for call in self._calls]

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """Pass a key's rows to the processor. Argument names are Spark's, which passes them by keyword."""
        if self._processor is None:
            self._processor = pickle.loads(self._pickled)
            self._processor.init(_Giving(self._calls, self._states))
        found: Iterator[Any] = self._processor.handleInputRows(key, rows, timerValues)
        return found

    def close(self) -> None:
        """Close the processor if it had rows, and leave the connection to Spark."""
        if self._processor is not None:
            self._processor.close()
        leave_open(self._handle)


class _Noting:
    """Handle that records its calls."""

    def __init__(self, calls: list[_Call]) -> None:
        self._calls = calls

    def __getattr__(self, method: str) -> Any:
        return lambda *arguments, **keywords: self._calls.append(_Call(method, arguments, keywords))


class _Giving:
    """Handle that returns the state variables that were opened before.

    The calls must be the recorded ones, in the same order.
    """

    def __init__(self, calls: list[_Call], states: list[Any]) -> None:
        self._opened = iter(zip(calls, states, strict=True))

    def __getattr__(self, method: str) -> Any:
        def give(*arguments: Any, **keywords: Any) -> Any:
            call, state = next(self._opened)
            assert call == _Call(method, arguments, keywords), f"{call.method} was recorded, but {method} is called"
            return state

        return give
