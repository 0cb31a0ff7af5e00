"""Python functions in a topology, with their calling convention as data.

A function is called once per record, unless it is wrapped in ``batchwise``. Per record it gets the value, or key and
value if it takes two parameters. A value is a dict of the columns (typed topic) or the bare value (topic of single
values). A key is the bare value of its one column, a tuple of several, or a ``Windowed``. A joiner gets the values of
both sides, optionally preceded by the key. A batchwise function gets a polars frame of all columns. It returns a frame
with as many rows (``map_values`` of streams) or a boolean series (``filter``, ``branch``). It is about a hundred times
faster.

Functions must depend only on their arguments, because a batch is repeated after a failure.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeGuard

from millrace_streams.errors import TopologyError


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFunction:
    """A function with its calling convention. Made by ``python_function``."""

    call: Callable[..., Any]
    takes_key: bool
    batchwise: bool = False

    @property
    def keyed(self) -> Callable[..., Any]:
        """The function in the form that takes the key first."""
        call = self.call
        return call if self.takes_key else lambda key, *values: call(*values)

    def __str__(self) -> str:
        """Return the name for ``describe``, ``explain`` and error messages."""
        name = getattr(self.call, "__qualname__", type(self.call).__name__)
        return f"{name}{' (batchwise)' if self.batchwise else ''}"


@dataclass(frozen=True, slots=True)
class Batchwise:
    """Mark of a function that takes a whole polars frame. Made by ``batchwise``."""

    call: Callable[..., Any]


def batchwise(call: Callable[..., Any]) -> Batchwise:
    """Mark a function as one that takes a whole polars frame; usable as a decorator."""
    return Batchwise(call)


def is_function(given: object) -> TypeGuard[Callable[..., Any] | Batchwise]:
    """Return whether an argument is a function of either kind, rather than a column or expression."""
    return callable(given) or isinstance(given, Batchwise)


def python_function(
    function: Callable[..., Any] | Batchwise,
    node: str,
    *,
    takes: tuple[str, ...] = ("value",),
    whole_frames: bool = False,
) -> PythonFunction:
    """Determine the calling convention of a function: the values of ``takes``, or the key and these values.

    ``whole_frames`` means that the node accepts a ``batchwise`` function. Raises ``TopologyError`` naming ``node``.
    """
    if isinstance(function, Batchwise):
        if not whole_frames:
            raise TopologyError(
                f"{node}: a batchwise function is taken by filters, branches and map_values() of streams: give one "
                "of a single record"
            )
        return PythonFunction(call=function.call, takes_key=False, batchwise=True)
    if not callable(function):
        raise TopologyError(f"{node}: {function!r} is neither an expression nor a function")
    count = _parameters(function)
    if count is None:
        return PythonFunction(call=function, takes_key=False)
    if count not in (len(takes), len(takes) + 1):
        forms = f"({', '.join(takes)}) or ({', '.join(('key', *takes))})"
        raise TopologyError(f"{node}: the function must take {forms}, not {count} parameters")
    return PythonFunction(call=function, takes_key=count == len(takes) + 1)


def extractor_function(function: Callable[..., Any] | Batchwise, node: str) -> PythonFunction:
    """Convert a function of (value), (value, timestamp) or (key, value, timestamp) to one that takes the last two.

    Raises ``TopologyError`` naming ``node``.
    """
    count = None if isinstance(function, Batchwise) else _parameters(function)
    if count not in (1, 2, 3, None):
        raise TopologyError(
            f"{node}: a timestamp extractor must take (value), (value, timestamp) or (key, value, timestamp), not "
            f"{count} parameters"
        )
    if isinstance(function, Batchwise) or count != 1:
        return python_function(function, node, takes=("value", "timestamp"))
    of_value = function

    @functools.wraps(of_value)
    def extract(value: Any, timestamp: int) -> Any:
        return of_value(value)

    return PythonFunction(call=extract, takes_key=False)


def topic_function(function: Callable[..., Any] | Batchwise, node: str) -> PythonFunction:
    """Convert a function of (value), (key, value) or (key, value, context) to one that takes all three.

    Raises ``TopologyError`` naming ``node``.
    """
    count = 0 if isinstance(function, Batchwise) else _parameters(function)
    if isinstance(function, Batchwise) or count not in (1, 2, 3, None):
        raise TopologyError(
            f"{node}: a function that names topics must take (value), (key, value) or (key, value, context) of one "
            "record"
        )
    given = function

    @functools.wraps(given)
    def extract(key: Any, value: Any, context: Any) -> Any:
        return given(value) if count == 1 else given(key, value) if count == 2 else given(key, value, context)

    return PythonFunction(call=extract, takes_key=True)


def exact_function(function: Callable[..., Any], node: str, *takes: str) -> Callable[..., Any]:
    """Check that a function takes exactly these arguments. Raises ``TopologyError`` naming ``node``."""
    if not callable(function):
        raise TopologyError(f"{node}: {function!r} is not a function")
    count = _parameters(function)
    if count not in (None, len(takes)):
        raise TopologyError(f"{node}: the function must take ({', '.join(takes)}), not {count} parameters")
    return function


def _parameters(function: Callable[..., Any]) -> int | None:
    """Return the number of required arguments; None if it is unknown (built-ins) or variable."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        return None
    if any(parameter.kind == parameter.VAR_POSITIONAL for parameter in parameters):
        return None
    return sum(
        parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
        for parameter in parameters
    )
