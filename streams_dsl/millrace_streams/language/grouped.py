"""Records grouped by key and optionally by window, ready for aggregation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from millrace_streams.aggregates import Aggregate, Count
from millrace_streams.errors import TopologyError
from millrace_streams.functions import exact_function
from millrace_streams.graph import AggregateNode, Emit, Fold, FoldNode
from millrace_streams.language.folds import check_aggregates, check_emit, reduction
from millrace_streams.language.handle import Function, Handle
from millrace_streams.windows import (
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
    Windows,
    check_windows,
)

if TYPE_CHECKING:
    from millrace_streams.graph import Node
    from millrace_streams.language.cogrouped import CogroupedKStream
    from millrace_streams.language.table import KTable

EmitStrategy = Literal["on_window_update", "on_window_close"]


class Aggregating(Handle):
    """Common base of groups with any kind of window."""

    _instead = "aggregate it first: count(), reduce(...) or aggregate(...)"
    _window: Windows | None = None
    _on_close = False

    def aggregate(
        self,
        initializer: Function | None = None,
        aggregator: Function | None = None,
        merger: Function | None = None,
        *,
        value: Any = None,
        store: str | None = None,
        emit: Emit | None = None,
        name: str | None = None,
        **aggregates: Aggregate,
    ) -> KTable:
        """Return a table of aggregates per key (and window).

        The aggregates are named ones such as ``departures=count()``, or Python functions. ``initializer()`` returns the
        first aggregate, and ``aggregator(key, value, aggregate)`` the next (None deletes it). ``merger(key, one,
        other)`` combines the aggregates of two sessions that merge. ``value`` is the type of the aggregates.

        ``emit="every"`` emits a result for each record, and is the default where the choice makes a difference.
        ``emit="last"`` emits only the last result of each key per batch, which is cheaper.
        """
        if isinstance(value, Aggregate):
            aggregates["value"] = value
            value = None
        where = self._where("aggregate", name)
        if initializer is None:
            return self._columns(where, aggregates, store, emit, name, bare=False)
        if aggregates or aggregator is None:
            raise TopologyError(f"{where}: give initializer and aggregator, or named aggregates such as n=count()")
        if (merger is not None) != isinstance(self._window, SessionWindows):
            raise TopologyError(f"{where}: merger=... is for session windows, which need it")
        fold = Fold(
            initializer=exact_function(initializer, where),
            aggregator=exact_function(aggregator, where, "key", "value", "aggregate"),
            merger=None if merger is None else exact_function(merger, where, "key", "one", "other"),
        )
        return self._fold((fold,), value, store, emit, name)

    def count(
        self, *, column: str = "count", store: str | None = None, emit: Emit | None = None, name: str | None = None
    ) -> KTable:
        """Return a table of the number of records per key (and window), in ``column``."""
        return self._columns(self._where("count", name), {column: Count()}, store, emit, name, bare=True)

    def reduce(
        self, reducer: Function, *, store: str | None = None, emit: Emit | None = None, name: str | None = None
    ) -> KTable:
        """Return a table of the values of a key (and window), combined by ``reducer(aggregate, value)``; the type is
        theirs.
        """
        where = self._where("reduce", name)
        fold = reduction(exact_function(reducer, where, "aggregate", "value"))
        return self._fold((fold,), None, store, emit, name)

    def _columns(
        self,
        where: str,
        aggregates: dict[str, Aggregate],
        store: str | None,
        emit: Emit | None,
        name: str | None,
        *,
        bare: bool,
    ) -> KTable:
        from millrace_streams.language.table import KTable

        check_aggregates(where, aggregates)
        check_emit(where, emit)
        named = tuple(aggregates.items())
        if self._on_close or not isinstance(self._window, TimeWindows | None):
            return self._fold((), None, store, emit, name, aggregates=named, bare=bare)
        fields = {
            "aggregates": named,
            "window": self._window,
            "store": store or self._builder.new_name(f"{AggregateNode.prefix}-STATE-STORE"),
            "emit": emit,
            "bare": bare,
        }
        return KTable(self._builder, self._then(AggregateNode, name, **fields))

    def _fold(
        self, folds: tuple[Fold, ...], value: Any, store: str | None, emit: Emit | None, name: str | None, **fields: Any
    ) -> KTable:
        from millrace_streams.language.table import KTable

        where = self._where("aggregate", name)
        if self._on_close and emit is not None:
            raise TopologyError(f"{where}: emit={emit!r}: a window gives one result when it closes: leave it out")
        fields |= {
            "emit": check_emit(where, emit),
            "folds": folds,
            "window": self._window,
            "serde": self._serde("aggregate", value, name),
            "store": store or self._builder.new_name(f"{FoldNode.prefix}-STATE-STORE"),
            "on_close": self._on_close,
        }
        return KTable(self._builder, self._then(FoldNode, name, **fields))


class KGroupedStream(Aggregating):
    """Records grouped by key (Kafka's ``KGroupedStream``)."""

    @overload
    def windowed_by(self, window: SessionWindows) -> SessionWindowedKStream: ...
    @overload
    def windowed_by(self, window: TimeWindows | SlidingWindows | UnlimitedWindows) -> TimeWindowedKStream: ...

    def windowed_by(self, window: Windows) -> TimeWindowedKStream | SessionWindowedKStream:
        """Aggregate per window."""
        check_windows(window, Windows, self._where("windowed_by", None), "give tumbling(...), sessions(...) or others")
        if isinstance(window, SessionWindows):
            return SessionWindowedKStream(self._builder, self._node, window)
        return TimeWindowedKStream(self._builder, self._node, window)

    def cogroup(self, aggregator: Function, *, name: str | None = None) -> CogroupedKStream:
        """Start an aggregation over several grouped streams, each with its own aggregator."""
        from millrace_streams.language.cogrouped import CogroupedKStream

        where = self._where("cogroup", name)
        return CogroupedKStream(
            self._builder, ((self, exact_function(aggregator, where, "key", "value", "aggregate")),)
        )


class _Windowed(Aggregating):
    """Records grouped by key and window."""

    def __init__(self, builder: Any, node: Node, window: Windows, *, on_close: bool = False) -> None:
        """Create a handle that groups the output of ``node`` by ``window``."""
        super().__init__(builder, node)
        self._window = window
        self._on_close = on_close


class TimeWindowedKStream(_Windowed):
    """Records grouped by key and window (Kafka's ``TimeWindowedKStream``)."""

    def emit_strategy(self, strategy: EmitStrategy) -> TimeWindowedKStream:
        """Emit a result for each record, or one per window when it closes."""
        assert self._window is not None
        return TimeWindowedKStream(self._builder, self._node, self._window, on_close=_on_close(self, strategy))


class SessionWindowedKStream(_Windowed):
    """Records grouped by key and session (Kafka's ``SessionWindowedKStream``)."""

    def emit_strategy(self, strategy: EmitStrategy) -> SessionWindowedKStream:
        """Emit a result for each record, or one per session when it closes."""
        assert self._window is not None
        return SessionWindowedKStream(self._builder, self._node, self._window, on_close=_on_close(self, strategy))


def _on_close(handle: _Windowed, strategy: EmitStrategy) -> bool:
    if strategy not in ("on_window_update", "on_window_close"):
        raise TopologyError(
            f"emit_strategy after {handle.name}: {strategy!r}: must be 'on_window_update' or 'on_window_close'"
        )
    if strategy == "on_window_close" and isinstance(handle._window, UnlimitedWindows):
        raise TopologyError(
            f"emit_strategy after {handle.name}: an unlimited window never closes: emit on_window_update, and suppress "
            "until_time_limit(...)"
        )
    return strategy == "on_window_close"
