"""Cogrouped streams: several grouped streams aggregated into one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace_streams.errors import TopologyError
from millrace_streams.functions import exact_function
from millrace_streams.graph import Emit, Fold, FoldNode
from millrace_streams.language.folds import check_emit
from millrace_streams.language.grouped import KGroupedStream
from millrace_streams.language.handle import Function
from millrace_streams.windows import (
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
    Windows,
    check_windows,
)

if TYPE_CHECKING:
    from millrace_streams.graph.topology_builder import TopologyBuilder
    from millrace_streams.language.table import KTable

Grouped = tuple[KGroupedStream, Function]


class _Cogrouped:
    """Grouped streams, each with its aggregator."""

    _window: Windows | None = None

    def __init__(self, builder: TopologyBuilder, grouped: tuple[Grouped, ...]) -> None:
        """Create a handle that aggregates all of ``grouped`` together."""
        self._builder = builder
        self._grouped = grouped

    def _aggregate(
        self,
        initializer: Function,
        merger: Function | None,
        value: Any,
        store: str | None,
        emit: Emit | None,
        name: str | None,
    ) -> KTable:
        from millrace_streams.language.table import KTable

        first = self._grouped[0][0]
        where = first._where("cogroup", name)
        begin = exact_function(initializer, where)
        merge = None if merger is None else exact_function(merger, where, "key", "one", "other")
        node = first._then(
            FoldNode,
            name,
            *(stream for stream, _ in self._grouped[1:]),
            folds=tuple(Fold(initializer=begin, aggregator=each, merger=merge) for _, each in self._grouped),
            window=self._window,
            serde=first._serde("cogroup", value, name),
            emit=check_emit(where, emit),
            store=store or self._builder.new_name("COGROUPKSTREAM-AGGREGATE-STATE-STORE"),
        )
        return KTable(self._builder, node)


class CogroupedKStream(_Cogrouped):
    """Grouped streams that are aggregated into one table (Kafka's ``CogroupedKStream``).

    Each stream has its own aggregator.
    """

    def cogroup(self, grouped: KGroupedStream, aggregator: Function) -> CogroupedKStream:
        """Add a grouped stream with its aggregator."""
        checked = exact_function(aggregator, grouped._where("cogroup", None), "key", "value", "aggregate")
        return CogroupedKStream(self._builder, (*self._grouped, (grouped, checked)))

    def windowed_by(self, window: Windows) -> TimeWindowedCogroupedKStream | SessionWindowedCogroupedKStream:
        """Aggregate per window."""
        where = self._grouped[0][0]._where("windowed_by", None)
        check_windows(window, Windows, where, "give tumbling(...), sessions(...) or others")
        if isinstance(window, SessionWindows):
            return SessionWindowedCogroupedKStream(self._builder, self._grouped, window)
        return TimeWindowedCogroupedKStream(self._builder, self._grouped, window)

    def aggregate(
        self,
        initializer: Function,
        *,
        value: Any = None,
        store: str | None = None,
        emit: Emit | None = None,
        name: str | None = None,
    ) -> KTable:
        """Return a table of the values of a key, combined by the aggregators; it starts with ``initializer()``."""
        return self._aggregate(initializer, None, value, store, emit, name)


class TimeWindowedCogroupedKStream(_Cogrouped):
    """Cogrouped streams by window (Kafka's ``TimeWindowedCogroupedKStream``)."""

    def __init__(
        self,
        builder: TopologyBuilder,
        grouped: tuple[Grouped, ...],
        window: TimeWindows | SlidingWindows | UnlimitedWindows,
    ) -> None:
        """Create a handle that aggregates by ``window``."""
        super().__init__(builder, grouped)
        self._window = window

    def aggregate(
        self,
        initializer: Function,
        *,
        value: Any = None,
        store: str | None = None,
        emit: Emit | None = None,
        name: str | None = None,
    ) -> KTable:
        """Aggregate per window; each stream has its own stream time, by which its records are late."""
        return self._aggregate(initializer, None, value, store, emit, name)


class SessionWindowedCogroupedKStream(_Cogrouped):
    """Cogrouped streams by session (Kafka's ``SessionWindowedCogroupedKStream``)."""

    def __init__(self, builder: TopologyBuilder, grouped: tuple[Grouped, ...], window: SessionWindows) -> None:
        """Create a handle that aggregates by ``window``."""
        super().__init__(builder, grouped)
        self._window = window

    def aggregate(
        self,
        initializer: Function,
        merger: Function,
        *,
        value: Any = None,
        store: str | None = None,
        emit: Emit | None = None,
        name: str | None = None,
    ) -> KTable:
        """Aggregate per session; ``merger(key, one, other)`` combines the aggregates of two sessions that merge."""
        if merger is None:
            raise TopologyError("sessions of cogrouped streams need a merger of two aggregates")
        return self._aggregate(initializer, merger, value, store, emit, name)
