"""Folds of Python functions, and checks of aggregation arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace_streams.aggregates import Aggregate
from millrace_streams.errors import TopologyError
from millrace_streams.graph import Emit, Fold


def check_emit(where: str, emit: Emit | None) -> Emit:
    """Return the emit mode of a fold, by default every update. Raises ``TopologyError`` naming ``where``."""
    if emit not in ("every", "last", None):
        raise TopologyError(f"{where}: emit={emit!r}: must be 'every' or 'last'")
    return emit or "every"


def reduction(reducer: Callable[[Any, Any], Any]) -> Fold:
    """Make a fold of ``reducer(aggregate, value)``; the first value is the first aggregate."""
    return Fold(
        initializer=None,
        aggregator=lambda key, value, aggregate: reducer(aggregate, value),
        merger=lambda key, one, other: reducer(one, other),
        reducer=reducer,
    )


def check_aggregates(where: str, aggregates: dict[str, Aggregate]) -> None:
    """Refuse arguments that are no aggregates. Raises ``TopologyError`` naming ``where``."""
    if not aggregates:
        raise TopologyError(f"{where}: give at least one aggregate, such as departures=count()")
    for column, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise TopologyError(
                f"{where}: {column}={aggregate!r} is not an aggregate, such as count() or mean('delay')"
            )
