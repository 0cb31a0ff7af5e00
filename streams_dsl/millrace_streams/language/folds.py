"""Folds made of other things: a reduction, a count, named aggregates where no vectorised step can take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from millrace_streams.aggregates import Aggregate
from millrace_streams.errors import TopologyError
from millrace_streams.expressions import Column
from millrace_streams.graph import Emit, Fold


def check_emit(where: str, emit: Emit | None) -> Emit:
    """What a fold gives, by default every update. Raises ``TopologyError`` naming ``where``."""
    if emit not in ("every", "last", None):
        raise TopologyError(f"{where}: emit={emit!r}: must be 'every' or 'last'")
    return emit or "every"


def reduction(reducer: Callable[[Any, Any], Any]) -> Fold:
    """Fold values with ``reducer(aggregate, value)``; the first value is the first aggregate."""
    return Fold(
        initializer=None,
        aggregator=lambda key, value, aggregate: reducer(aggregate, value),
        merger=lambda key, one, other: reducer(one, other),
        reducer=reducer,
    )


def count_fold() -> Fold:
    """Count records."""
    return Fold(
        initializer=lambda: 0,
        aggregator=lambda key, value, aggregate: aggregate + 1,
        merger=lambda key, one, other: one + other,
    )


def fold_of(where: str, aggregates: Sequence[tuple[str, Aggregate]]) -> Fold:
    """Fold named aggregates, of columns, as a dict of them. Raises ``TopologyError`` for what cannot be one."""
    arguments = {name: _argument(where, name, aggregate) for name, aggregate in aggregates}
    kinds = {name: _KINDS[aggregate.kind] for name, aggregate in aggregates}
    counts = {name for name, aggregate in aggregates if aggregate.kind == "count"}

    def aggregator(key: Any, value: Any, aggregate: dict[str, Any]) -> dict[str, Any]:
        result = {}
        for name, column in arguments.items():
            argument = value if column is None or not isinstance(value, dict) else value[column]
            if name in counts:
                result[name] = aggregate[name] + (column is None or argument is not None)
            else:
                result[name] = _fold_values(kinds[name], aggregate[name], argument)
        return result

    def merger(key: Any, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        return {name: _fold_values(kinds[name], one[name], other[name]) for name in arguments}

    return Fold(
        initializer=lambda: {name: 0 if name in counts else None for name in arguments},
        aggregator=aggregator,
        merger=merger,
    )


_KINDS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "count": lambda one, other: one + other,
    "sum": lambda one, other: one + other,
    "min": min,
    "max": max,
}


def _fold_values(kind: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return kind(one, other)


def _argument(where: str, name: str, aggregate: Aggregate) -> str | None:
    if aggregate.kind not in _KINDS:
        raise TopologyError(
            f"{where}: {name}={aggregate!r} is not to be had in these windows: aggregate sum and count, and divide"
        )
    if aggregate.argument is None:
        return None
    if not isinstance(aggregate.argument, Column):
        raise TopologyError(f"{where}: {name}={aggregate!r}: aggregate a column here: make it one by with_columns()")
    return aggregate.argument.name
