"""Python functions in a topology: how they are called, as data.

A function is called once per record unless it is wrapped in ``batchwise``. Per record it gets the value, or key and
value if it takes two parameters; a value is a dict of the columns (of a typed topic) or the bare value (of a topic of
single values), a key the bare value of its one column or a tuple of several. Batchwise it gets a polars frame of all
columns and gives a frame of as many rows (``map_values``) or a boolean series (``filter``): about a hundred times
faster.

Functions must depend on nothing but their arguments: a batch is run again after a failure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millrace_streams.errors import TopologyError


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFunction:
    """A function with what the runners must know to call it. Made by ``python_function``."""

    call: Callable[..., Any]
    takes_key: bool
    batchwise: bool

    def __str__(self) -> str:
        """Its name, for ``describe``, ``explain`` and error messages."""
        name = getattr(self.call, "__qualname__", type(self.call).__name__)
        return f"{name}{' (batchwise)' if self.batchwise else ''}"


@dataclass(frozen=True, slots=True)
class Batchwise:
    """Marks a function that handles a whole polars frame at once. Made by ``batchwise``."""

    call: Callable[..., Any]


def batchwise(call: Callable[..., Any]) -> Batchwise:
    """Mark a function as one that handles a whole polars frame at once; usable as a decorator."""
    return Batchwise(call)


def python_function(function: Callable[..., Any] | Batchwise, node: str) -> PythonFunction:
    """Look at a function and say how it is to be called. Raises ``TopologyError`` naming ``node``."""
    if isinstance(function, Batchwise):
        return PythonFunction(call=function.call, takes_key=False, batchwise=True)
    if not callable(function):
        raise TopologyError(f"{node}: {function!r} is neither an expression nor a function")
    return PythonFunction(call=function, takes_key=_parameters(function, node) == 2, batchwise=False)


def _parameters(function: Callable[..., Any], node: str) -> int:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        return 1  # a built-in without a signature, such as bool
    required = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    if len(required) not in (1, 2):
        raise TopologyError(f"{node}: the function must take (value) or (key, value), not {len(required)} parameters")
    return len(required)
