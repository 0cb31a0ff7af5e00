"""``KStream``: each record stands for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from millrace_streams.errors import TopologyError
from millrace_streams.expressions import Alias, Expression
from millrace_streams.functions import Batchwise, PythonFunction, is_function, topic_function
from millrace_streams.graph import (
    BranchNode,
    DeltaSinkNode,
    FilterNode,
    ForEachNode,
    JoinKind,
    MapFunctionNode,
    MapNode,
    MapValuesNode,
    MergeNode,
    Node,
    PeekNode,
    ProcessNode,
    Produced,
    RepartitionNode,
    SelectKeyFunctionNode,
    SelectKeyNode,
    StreamStreamJoinNode,
    StreamTableJoinNode,
    TopicSinkNode,
    ToTableNode,
)
from millrace_streams.language.handle import Function, Handle, JoinedBy, KeyOf, Predicate
from millrace_streams.processors import StoreBuilder
from millrace_streams.windows import Duration, JoinWindows, check_windows, milliseconds

if TYPE_CHECKING:
    from millrace_streams.language.grouped import KGroupedStream
    from millrace_streams.language.table import GlobalKTable, KTable

Joined: TypeAlias = "KStream | KTable | GlobalKTable"


class KStream(Handle):
    """A stream: each record stands for itself."""

    _instead = "group_by_key() groups it, to_table() makes a table of it"

    def filter(self, predicate: Predicate, *, name: str | None = None, negate: bool = False) -> KStream:
        """Keep the records for which ``predicate`` is true."""
        checked = self._predicate("filter", predicate, name)
        return KStream(self._builder, self._then(FilterNode, name, predicate=checked, negate=negate))

    def filter_not(self, predicate: Predicate, *, name: str | None = None) -> KStream:
        """Keep the records for which ``predicate`` is not true."""
        return self.filter(predicate, name=name, negate=True)

    def select(self, *columns: str | Alias, name: str | None = None, **expressions: Any) -> KStream:
        """Keep these columns and compute those; the key's columns stay in any case."""
        self._where("select", name)
        pairs = self._pairs("select", columns, expressions)
        return KStream(self._builder, self._then(MapValuesNode, name, columns=pairs))

    def with_columns(self, *columns: Alias, name: str | None = None, **expressions: Any) -> KStream:
        """Keep all columns and add or replace those."""
        self._where("with_columns", name)
        pairs = self._pairs("with_columns", columns, expressions)
        return KStream(self._builder, self._then(MapValuesNode, name, columns=pairs, keep=True))

    def map_values(
        self,
        function: Function | Batchwise | None = None,
        *,
        value: Any = None,
        schema: Any = None,
        name: str | None = None,
        **expressions: Any,
    ) -> KStream:
        """New values: from expressions (as ``select``), or from a Python function.

        A function's results are of the type that ``value`` says (a serde, its name, or an Arrow schema; ``schema`` is
        another word for the last), by default of the type that the values had. Of a row it gives a dict of these
        columns; the key's columns stay as they are and need not be given.
        """
        if function is None:
            if value is not None:
                expressions["value"] = value
            return self.select(name=name, **expressions)
        if expressions:
            raise TopologyError(
                f"map_values after {self._node.name}: give a function with value=..., or column=expression, not both"
            )
        python = self._function("map_values", function, name, whole_frames=True)
        serde = self._serde("map_values", value if value is not None else schema, name)
        return KStream(self._builder, self._then(MapFunctionNode, name, function=python, serde=serde))

    def flat_map_values(self, function: Function, *, value: Any = None, name: str | None = None) -> KStream:
        """Any number of new values for each record: a Python function gives a sequence of them."""
        python = self._function("flat_map_values", function, name)
        serde = self._serde("flat_map_values", value, name)
        return KStream(self._builder, self._then(MapFunctionNode, name, function=python, serde=serde, flat=True))

    def map(self, function: Function, *, key: Any = None, value: Any = None, name: str | None = None) -> KStream:
        """Another key and value for each record: a Python function of key and value gives the pair."""
        return self._map("map", function, key, value, name, flat=False)

    def flat_map(self, function: Function, *, key: Any = None, value: Any = None, name: str | None = None) -> KStream:
        """Any number of records for each record: a Python function of key and value gives a sequence of pairs."""
        return self._map("flat_map", function, key, value, name, flat=True)

    def _map(self, what: str, function: Function, key: Any, value: Any, name: str | None, *, flat: bool) -> KStream:
        fields = {
            "function": self._function(what, function, name),
            "key_serde": self._key_serde(what, key, name),
            "serde": self._serde(what, value, name),
            "flat": flat,
        }
        return KStream(self._builder, self._then(MapNode, name, **fields))

    def select_key(self, *columns: str | Alias | Function, name: str | None = None, **expressions: Any) -> KStream:
        """Give the records another key: existing columns, expressions that become columns, or a Python function.

        With a function ``key`` is the key's serde, by default that of the key before.
        """
        self._where("select_key", name)
        if columns and is_function(columns[0]):
            function = self._function("select_key", columns[0], name)
            serde = self._key_serde("select_key", expressions.pop("key", None), name)
            if len(columns) > 1 or expressions:
                raise TopologyError(f"select_key after {self._node.name}: give one function, or columns, not both")
            return KStream(self._builder, self._then(SelectKeyFunctionNode, name, function=function, serde=serde))
        pairs = self._pairs("select_key", columns, expressions)  # type: ignore[arg-type]
        return KStream(self._builder, self._then(SelectKeyNode, name, columns=pairs))

    def group_by(self, *columns: str | Alias | Function, name: str | None = None, **expressions: Any) -> KGroupedStream:
        """Group by columns, expressions or a Python function, as ``select_key`` takes them.

        Records move only where these columns do not decide the bucket.
        """
        return self.select_key(*columns, name=name, **expressions).group_by_key()

    def group_by_key(self) -> KGroupedStream:
        """Group by the key that the records have."""
        from millrace_streams.language.grouped import KGroupedStream

        return KGroupedStream(self._builder, self._node)

    def split(self, *, name: str | None = None) -> BranchedKStream:
        """Send each record down the first branch that takes it."""
        return BranchedKStream(self._builder, self._node, name)

    def merge(self, other: KStream, *, name: str | None = None) -> KStream:
        """The records of both streams, in the order in which they come."""
        return KStream(self._builder, self._then(MergeNode, name, other))

    def peek(self, function: Function, *, name: str | None = None) -> KStream:
        """Show each record to a Python function and pass it on."""
        return KStream(self._builder, self._then(PeekNode, name, function=self._function("peek", function, name)))

    def for_each(self, function: Function, *, name: str | None = None) -> None:
        """Show each record to a Python function; the stream ends here."""
        self._then(ForEachNode, name, function=self._function("for_each", function, name))

    def repartition(self, topic: str | None = None, *, name: str | None = None) -> KStream:
        """Let the records go through a topic of the topology's own, to the bucket of their key.

        Records without a key are dropped.
        """
        topic = topic or self._builder.new_name("KSTREAM-REPARTITION-TOPIC")
        return KStream(self._builder, self._then(RepartitionNode, name, topic=f"{topic}-repartition"))

    def through(self, topic: str, *, key: Any = None, value: Any = None, name: str | None = None) -> KStream:
        """Write the records to a topic that others may read, as ``to`` does, and go on with what it holds."""
        produced = self._produced("through", key, value, name)
        fields = {"topic": topic, "visible": True, "keep_null_keys": True, "produced": produced}
        return KStream(self._builder, self._then(RepartitionNode, name, **fields))

    def to_table(
        self, *, store: str | None = None, versioned: Duration | None = None, name: str | None = None
    ) -> KTable:
        """Read the records as changes of a table: the last one of each key counts, one without a value deletes.

        ``versioned``: keep the versions of each row for so long, by the records' time.
        """
        from millrace_streams.language.table import KTable

        history_ms = None if versioned is None else milliseconds(versioned)
        store = store or (self._builder.new_name("KSTREAM-TOTABLE-STATE-STORE") if history_ms is not None else None)
        return KTable(self._builder, self._then(ToTableNode, name, store=store, history_ms=history_ms))

    def join(
        self,
        other: Joined,
        joiner: JoinedBy = None,
        *,
        window: JoinWindows | None = None,
        selector: KeyOf | None = None,
        grace: Duration | None = None,
        value: Any = None,
        keep: bool = False,
        name: str | None = None,
        **columns: Any,
    ) -> KStream:
        """Join with a stream (within ``window``), a table, or a global table (by the key that ``selector`` gives).

        ``joiner(left, right)`` or ``joiner(key, left, right)`` gives the value, of the type that ``value`` says, by
        default the left one's. Without a function it is made of expressions, ``region=right("region")`` or the one
        ``left() + right()``: of these columns and the key's, with ``keep`` of all the left ones as well. ``selector``
        is a column, an expression, or a function of value, or key and value. With ``grace`` records wait so long for
        older changes of a versioned table. What a join with a ``name`` keeps is named after it, as state must be that
        another topology goes on from.
        """
        made = self._joined("inner join", joiner, value, keep, columns, name)
        return self._join("inner", other, made, window, selector, grace, name)

    def left_join(
        self,
        other: Joined,
        joiner: JoinedBy = None,
        *,
        window: JoinWindows | None = None,
        selector: KeyOf | None = None,
        grace: Duration | None = None,
        value: Any = None,
        keep: bool = False,
        name: str | None = None,
        **columns: Any,
    ) -> KStream:
        """As ``join``; a record without a partner is joined with None, in expressions with nulls."""
        made = self._joined("left join", joiner, value, keep, columns, name)
        return self._join("left", other, made, window, selector, grace, name)

    def outer_join(
        self,
        other: KStream,
        joiner: JoinedBy = None,
        *,
        window: JoinWindows,
        value: Any = None,
        keep: bool = False,
        name: str | None = None,
        **columns: Any,
    ) -> KStream:
        """As ``join`` of two streams; records of either side without a partner are joined with None."""
        made = self._joined("outer join", joiner, value, keep, columns, name)
        return self._join("outer", other, made, window, None, None, name)

    def _join(
        self,
        kind: JoinKind,
        other: Joined,
        made: dict[str, Any],
        window: JoinWindows | None,
        selector: KeyOf | None,
        grace: Duration | None,
        name: str | None,
    ) -> KStream:
        from millrace_streams.language.table import GlobalKTable, KTable

        where = self._where(f"{kind} join", name)
        fields: dict[str, Any] = {"kind": kind, **made}
        if isinstance(other, KStream):
            return self._join_stream(where, other, window, fields, name)
        if kind == "outer" or not isinstance(other, KTable | GlobalKTable):
            raise TopologyError(f"{where}: there is no such join with {type(other).__name__}")
        if window is not None:
            raise TopologyError(f"{where}: a table has no window of time to be joined within: leave window out")
        if (selector is not None) != isinstance(other, GlobalKTable):
            raise TopologyError(f"{where}: selector=... goes with a global table, and there it is needed")
        if selector is not None:
            fields["selector"] = self._key_of("selector", selector, name)
        if grace is not None:
            buffer = f"{name or self._builder.new_name('KSTREAM-JOIN')}-BUFFER-STORE"
            fields |= {"grace_ms": milliseconds(grace), "buffer": buffer}
        return KStream(self._builder, self._then(StreamTableJoinNode, name, other, **fields))

    def _join_stream(
        self, where: str, other: KStream, window: JoinWindows | None, fields: dict[str, Any], name: str | None
    ) -> KStream:
        if window is None:
            raise TopologyError(f"{where}: two streams are joined within a window: give window=within(...)")
        check_windows(window, JoinWindows, where, "give window=within(...)")
        of = name or self._builder.new_name("KSTREAM-JOIN")
        stores = {f"{side}_store": f"{of}-{side}-store" for side in ("left", "right", "waiting")}
        return KStream(self._builder, self._then(StreamStreamJoinNode, name, other, window=window, **stores, **fields))

    def process(
        self,
        supplier: Function,
        *,
        stores: Sequence[StoreBuilder | str] = (),
        key: Any = None,
        value: Any = None,
        name: str | None = None,
    ) -> KStream:
        """Let a processor of one's own handle the records: ``supplier()`` makes one for each task.

        ``stores`` are those that it may use (or the names of those added to the builder); ``key`` and ``value`` the
        types of what it forwards, by default those of what it gets.
        """
        return self._process("process", supplier, stores, key, value, name, fixed_key=False)

    def process_values(
        self,
        supplier: Function,
        *,
        stores: Sequence[StoreBuilder | str] = (),
        value: Any = None,
        name: str | None = None,
    ) -> KStream:
        """As ``process``, but what it forwards keeps the key."""
        return self._process("process_values", supplier, stores, None, value, name, fixed_key=True)

    def _process(
        self,
        what: str,
        supplier: Function,
        stores: Sequence[StoreBuilder | str],
        key: Any,
        value: Any,
        name: str | None,
        *,
        fixed_key: bool,
    ) -> KStream:
        where = self._where(what, name)
        if not callable(supplier):
            raise TopologyError(f"{where}: give a class, or a function that makes processors, not {supplier!r}")
        if isinstance(stores, str | StoreBuilder):
            raise TopologyError(f"{where}: stores={stores!r}: give a list of stores")
        fields = {
            "supplier": supplier,
            "connected": tuple(self._builder.store(store, where) for store in stores),
            "key_serde": self._key_serde(what, key, name),
            "serde": self._serde(what, value, name),
            "fixed_key": fixed_key,
        }
        return KStream(self._builder, self._then(ProcessNode, name, **fields))

    def to(self, topic: str | Function, *, key: Any = None, value: Any = None, name: str | None = None) -> None:
        """Write the records to a topic; or each to the one that a function names, as Kafka's ``TopicNameExtractor``.

        The function takes the value, key and value, or key, value and ``RecordContext``. The topics that it names must
        be there and hold bytes, else the query stops.

        Of a topic of bytes ``key`` and ``value`` say how they are written: serdes or their names, for single ones by
        default those of their columns, for rows ``json_rows(...)``, ``avro(...)`` or ``protobuf(...)``, which take
        their columns by name, the key's among them. A typed topic takes columns by name and neither of them.
        """
        produced = self._produced("to", key, value, name)
        if is_function(topic):
            extractor = topic_function(topic, self._where("to", name))
            self._then(TopicSinkNode, name, topic="", produced=produced, extractor=extractor)
        else:
            self._then(TopicSinkNode, name, topic=topic, produced=produced)

    def _produced(self, what: str, key: Any, value: Any, name: str | None) -> Produced:
        return Produced(key=self._serde(what, key, name), value=self._serde(what, value, name))

    def to_delta(self, table: str, *, name: str | None = None) -> None:
        """Append the records to a Delta table. ``table`` is a name; the runner is told where it lies."""
        self._then(DeltaSinkNode, name, table=table)


class BranchedKStream(Handle):
    """A stream being split: each record goes to the first branch whose predicate lets it through."""

    _instead = "name a branch first: branch(predicate), or default_branch()"

    def __init__(self, stream_builder: Any, node: Node, name: str | None) -> None:
        """Split what ``node`` gives."""
        super().__init__(stream_builder, node)
        self._split_name = name
        self._earlier: tuple[Expression | PythonFunction, ...] = ()

    def branch(self, predicate: Predicate, *, name: str | None = None) -> KStream:
        """The next branch."""
        checked = self._predicate("branch", predicate, name)
        node = self._then(BranchNode, self._branch_name(name), predicate=checked, earlier=self._earlier)
        self._earlier = (*self._earlier, checked)
        return KStream(self._builder, node)

    def default_branch(self, *, name: str | None = None) -> KStream:
        """The branch of all that no other takes."""
        node = self._then(BranchNode, self._branch_name(name), predicate=None, earlier=self._earlier)
        return KStream(self._builder, node)

    def _branch_name(self, name: str | None) -> str | None:
        return f"{self._split_name}{name}" if self._split_name and name else name
