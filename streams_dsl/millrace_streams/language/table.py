"""``KTable``, its groups, and the global table that every task holds completely."""

from __future__ import annotations

from typing import Any

from millrace_streams.aggregates import Aggregate, Count
from millrace_streams.errors import TopologyError
from millrace_streams.expressions import Alias, Expression
from millrace_streams.functions import exact_function, is_function
from millrace_streams.graph import (
    AnswerNode,
    DeltaSinkNode,
    Emit,
    GroupTableNode,
    JoinKind,
    RepartitionNode,
    ResponseJoinNode,
    SelectKeyFunctionNode,
    SubscribeNode,
    SuppressNode,
    TableFilterNode,
    TableFoldNode,
    TableMapNode,
    TableSelectNode,
    TableTableJoinNode,
    ToStreamNode,
)
from millrace_streams.language.folds import check_aggregates, check_emit
from millrace_streams.language.handle import Function, Handle, JoinedBy, KeyOf, Predicate
from millrace_streams.language.stream import KStream
from millrace_streams.layout import VALUE
from millrace_streams.suppressed import Suppressed


class KTable(Handle):
    """Table with the newest row of each key (Kafka's ``KTable``).

    A row of a windowed table is identified by its key and window.
    """

    _instead = "its changes are a stream: to_stream() first, or to_delta(name)"

    def filter(
        self, predicate: Predicate, *, store: str | None = None, name: str | None = None, negate: bool = False
    ) -> KTable:
        """Keep the rows for which ``predicate`` is true; a row that no longer passes is deleted."""
        checked = self._predicate("filter", predicate, name)
        fields = {"predicate": checked, "negate": negate, "store": store}
        return KTable(self._builder, self._then(TableFilterNode, name, **fields))

    def filter_not(self, predicate: Predicate, *, store: str | None = None, name: str | None = None) -> KTable:
        """Keep the rows for which ``predicate`` is not true."""
        return self.filter(predicate, store=store, name=name, negate=True)

    def map_values(
        self,
        function: Function | None = None,
        *,
        value: Any = None,
        store: str | None = None,
        name: str | None = None,
        **expressions: Any,
    ) -> KTable:
        """Compute new values from expressions (as ``select``), or by a Python function of the value, or of key and
        value.
        """
        where = self._where("map_values", name)
        if function is None:
            if value is not None:
                expressions["value"] = value
            pairs = self._pairs("map_values", (), expressions)
            return KTable(self._builder, self._then(TableSelectNode, name, columns=pairs, store=store))
        if expressions:
            raise TopologyError(f"{where}: give a function with value=..., or column=expression, not both")
        python = self._function("map_values", function, name)
        serde = self._serde("map_values", value, name)
        return KTable(self._builder, self._then(TableMapNode, name, function=python, serde=serde, store=store))

    def select(self, *columns: str | Alias, name: str | None = None, **expressions: Any) -> KTable:
        """Keep the named columns and compute the given ones; key columns always stay."""
        self._where("select", name)
        pairs = self._pairs("select", columns, expressions)
        return KTable(self._builder, self._then(TableSelectNode, name, columns=pairs))

    def with_columns(self, *columns: Alias, name: str | None = None, **expressions: Any) -> KTable:
        """Keep all columns, and add or replace the given ones."""
        self._where("with_columns", name)
        pairs = self._pairs("with_columns", columns, expressions)
        return KTable(self._builder, self._then(TableSelectNode, name, columns=pairs, keep=True))

    def group_by(
        self,
        *columns: str | Alias | Function,
        key: Any = None,
        value: Any = None,
        name: str | None = None,
        **expressions: Any,
    ) -> KGroupedTable:
        """Group the rows by columns, by expressions, or by a Python function that returns the pair of key and value.

        ``key`` and ``value`` are the types of the function's results; the defaults are the types of the table.
        """
        self._where("group_by", name)
        if columns and is_function(columns[0]):
            fields: dict[str, Any] = {
                "selector": self._function("group_by", columns[0], name),
                "key_serde": self._key_serde("group_by", key, name),
                "serde": self._serde("group_by", value, name),
            }
        else:
            if key is not None:
                expressions["key"] = key
            pairs = self._pairs("group_by", columns, expressions)  # type: ignore[arg-type]
            fields = {"selector": None, "columns": pairs}
        return KGroupedTable(self._builder, self._then(GroupTableNode, name, **fields))

    def join(
        self,
        other: KTable,
        joiner: JoinedBy = None,
        *,
        foreign_key: KeyOf | None = None,
        foreign_key_type: Any = None,
        value: Any = None,
        keep: bool = False,
        store: str | None = None,
        name: str | None = None,
        **columns: Any,
    ) -> KTable:
        """Join the rows of both tables with the same key, by ``joiner(left, right)`` or by expressions.

        ``value``, ``keep`` and columns are as in ``KStream.join``. ``foreign_key`` is a column, an expression or a
        function of the left value, or of key and value. With it each left row is joined with the row of the right table
        under that key. ``foreign_key_type`` is the type of a function's foreign key; the default is the key type of the
        left table.
        """
        made = self._joined("inner join", joiner, value, keep, columns, name)
        return self._join("inner", other, made, foreign_key, foreign_key_type, store, name)

    def left_join(
        self,
        other: KTable,
        joiner: JoinedBy = None,
        *,
        foreign_key: KeyOf | None = None,
        foreign_key_type: Any = None,
        value: Any = None,
        keep: bool = False,
        store: str | None = None,
        name: str | None = None,
        **columns: Any,
    ) -> KTable:
        """Join as ``join`` does; a left row without a match is joined with None, which is null in expressions."""
        made = self._joined("left join", joiner, value, keep, columns, name)
        return self._join("left", other, made, foreign_key, foreign_key_type, store, name)

    def outer_join(
        self,
        other: KTable,
        joiner: JoinedBy = None,
        *,
        value: Any = None,
        keep: bool = False,
        store: str | None = None,
        name: str | None = None,
        **columns: Any,
    ) -> KTable:
        """Join as ``join`` does; rows of either side without a match are joined with None."""
        made = self._joined("outer join", joiner, value, keep, columns, name)
        return self._join("outer", other, made, None, None, store, name)

    def _join(
        self,
        kind: JoinKind,
        other: KTable,
        made: dict[str, Any],
        foreign_key: KeyOf | None,
        foreign_key_type: Any,
        store: str | None,
        name: str | None,
    ) -> KTable:
        where = self._where(f"{kind} join", name)
        if not isinstance(other, KTable):
            raise TopologyError(f"{where}: a table is joined with a table, not with {type(other).__name__}")
        fields: dict[str, Any] = {"kind": kind, "store": store, **made}
        if foreign_key is None:
            return KTable(self._builder, self._then(TableTableJoinNode, name, other, **fields))
        extractor = self._key_of("foreign_key", foreign_key, name)
        if isinstance(extractor, Expression) and foreign_key_type is not None:
            raise TopologyError(
                f"{where}: foreign_key_type= is only for a foreign key that is a function: cast() the expression"
            )
        fields["subscription"] = {
            "kind": kind,
            "extractor": extractor,
            "key_serde": self._key_serde("foreign_key", foreign_key_type, name),
        }
        return self._foreign_key_join(other, name, fields)

    def _foreign_key_join(self, other: KTable, name: str | None, fields: dict[str, Any]) -> KTable:
        """Add the three nodes of a foreign-key join, because the rows of both tables are in different buckets.

        The nodes are the subscription, its response, and the join of the response. Their stores are named after the
        join.
        """
        asked = self._then(SubscribeNode, name and f"{name}-subscribe", **fields.pop("subscription"))
        topic = f"{name}-subscription" if name else self._builder.new_name("KTABLE-FK-JOIN-SUBSCRIPTION")
        there = Handle(self._builder, asked)._then(RepartitionNode, None, topic=f"{topic}-topic", keep_null_keys=True)
        answered = Handle(self._builder, there)._then(
            AnswerNode, name and f"{name}-answer", other, store=f"{topic}-store"
        )
        topic = f"{name}-response" if name else self._builder.new_name("KTABLE-FK-JOIN-RESPONSE")
        back = Handle(self._builder, answered)._then(RepartitionNode, None, topic=f"{topic}-topic")
        return KTable(self._builder, self._then(ResponseJoinNode, name, Handle(self._builder, back), **fields))

    def suppress(self, suppressed: Suppressed, *, name: str | None = None) -> KTable:
        """Suppress changes until their window closes, or for a time."""
        where = self._where("suppress", name)
        if not isinstance(suppressed, Suppressed):
            raise TopologyError(
                f"{where}: {suppressed!r}: give Suppressed.until_window_closes(), or until_time_limit(...)"
            )
        fields = {
            "final": suppressed.final,
            "wait_ms": suppressed.wait_ms,
            "records_max": suppressed.buffer.records_max,
            "strict": suppressed.buffer.strict,
            "buffer": f"{name or self._builder.new_name('KTABLE-SUPPRESS')}-STORE",
        }
        return KTable(self._builder, self._then(SuppressNode, name, **fields))

    def to_stream(self, selector: Function | None = None, *, key: Any = None, name: str | None = None) -> KStream:
        """Return the table's changes as a stream, under another key if ``selector`` (of key and value) returns one."""
        stream = KStream(self._builder, self._then(ToStreamNode, name))
        if selector is None:
            return stream
        function = self._function("to_stream", selector, name)
        serde = self._key_serde("to_stream", key, name)
        return KStream(self._builder, stream._then(SelectKeyFunctionNode, None, function=function, serde=serde))

    def to_delta(self, table: str, *, name: str | None = None) -> None:
        """Keep a Delta table equal to this table: rows are upserted by key and window start.

        ``table`` is a name; the runner's ``tables`` has its path. Windows are in the columns ``window_start`` and
        ``window_end``.
        """
        self._then(DeltaSinkNode, name, table=table)


class GlobalKTable(Handle):
    """Table that every task holds completely (Kafka's ``GlobalKTable``).

    Streams can join it by any key.
    """

    _instead = (
        "a global table can only be joined by streams, with selector=...: read the topic as table() for everything else"
    )


class KGroupedTable(Handle):
    """Rows of a table under new groups (Kafka's ``KGroupedTable``).

    Aggregates subtract the old row from its group and add the new row to its group.
    """

    _instead = "aggregate it first: count(), reduce(...) or aggregate(...)"

    def aggregate(
        self,
        initializer: Function | None = None,
        adder: Function | None = None,
        subtractor: Function | None = None,
        *,
        value: Any = None,
        store: str | None = None,
        emit: Emit | None = None,
        name: str | None = None,
        **aggregates: Aggregate,
    ) -> KTable:
        """Return a table of aggregates per group: named ones such as ``rows=count()``, or Python functions.

        ``adder(key, value, aggregate)`` adds a row, and ``subtractor(key, value, aggregate)`` subtracts one. Raises
        ``TopologyError`` for ``min`` and ``max``, because they cannot be updated when a row is removed.
        """
        where = self._where("aggregate", name)
        if isinstance(value, Aggregate):
            aggregates["value"] = value
            value = None
        functions = (initializer, adder, subtractor)
        if functions == (None, None, None):
            check_aggregates(where, aggregates)
            for column, aggregate in aggregates.items():
                if aggregate.kind in ("min", "max"):
                    raise TopologyError(
                        f"{where}: {column}={aggregate!r}: rows of a table can be deleted, and this aggregate cannot "
                        "subtract a row: give initializer, adder and subtractor"
                    )
            return self._fold(where, store, emit, name, aggregates=tuple(aggregates.items()))
        if initializer is None or adder is None or subtractor is None or aggregates:
            raise TopologyError(
                f"{where}: give initializer, adder and subtractor, or named aggregates such as n=count()"
            )
        return self._fold(
            where,
            store,
            emit,
            name,
            initializer=exact_function(initializer, where),
            adder=exact_function(adder, where, "key", "value", "aggregate"),
            subtractor=exact_function(subtractor, where, "key", "value", "aggregate"),
            serde=self._serde("aggregate", value, name),
        )

    def count(self, *, store: str | None = None, emit: Emit | None = None, name: str | None = None) -> KTable:
        """Return a table of the number of rows per group; a group that falls to 0 stays."""
        where = self._where("count", name)
        return self._fold(where, store, emit, name, aggregates=((VALUE, Count()),), bare=True)

    def reduce(
        self,
        adder: Function,
        subtractor: Function,
        *,
        store: str | None = None,
        emit: Emit | None = None,
        name: str | None = None,
    ) -> KTable:
        """Return a table of ``adder(aggregate, value)`` and ``subtractor(aggregate, value)``, of the values' type."""
        where = self._where("reduce", name)
        add = exact_function(adder, where, "aggregate", "value")
        subtract = exact_function(subtractor, where, "aggregate", "value")
        return self._fold(
            where,
            store,
            emit,
            name,
            adder=lambda key, value, aggregate: add(aggregate, value),
            subtractor=lambda key, value, aggregate: subtract(aggregate, value),
        )

    def _fold(self, where: str, store: str | None, emit: Emit | None, name: str | None, **fields: Any) -> KTable:
        fields |= {
            "emit": check_emit(where, emit),
            "store": store or self._builder.new_name("KTABLE-AGGREGATE-STATE-STORE"),
        }
        return KTable(self._builder, self._then(TableFoldNode, name, **fields))
