"""``KStream``, a stream of independent records."""

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
    TableNode,
    TopicSinkNode,
    ToTableNode,
)
from millrace_streams.language.handle import Function, Handle, JoinedBy, KeyOf, Predicate
from millrace_streams.processors import StoreBuilder
from millrace_streams.windows import Duration, JoinWindows, check_windows, length_ms

if TYPE_CHECKING:
    from millrace_streams.language.grouped import KGroupedStream
    from millrace_streams.language.table import GlobalKTable, KTable

Joined: TypeAlias = "KStream | KTable | GlobalKTable"


class KStream(Handle):
    """A stream of independent records (Kafka's ``KStream``)."""

    _instead = "group it by group_by_key(), or make it a table by to_table()"

    def filter(self, predicate: Predicate, *, name: str | None = None, negate: bool = False) -> KStream:
        """Keep the records for which ``predicate`` is true."""
        checked = self._predicate("filter", predicate, name)
        return KStream(self._builder, self._then(FilterNode, name, predicate=checked, negate=negate))

    def filter_not(self, predicate: Predicate, *, name: str | None = None) -> KStream:
        """Keep the records for which ``predicate`` is not true."""
        return self.filter(predicate, name=name, negate=True)

    def select(self, *columns: str | Alias, name: str | None = None, **expressions: Any) -> KStream:
        """Keep the named columns and compute the given ones; key columns always stay."""
        self._where("select", name)
        pairs = self._pairs("select", columns, expressions)
        return KStream(self._builder, self._then(MapValuesNode, name, columns=pairs))

    def with_columns(self, *columns: Alias, name: str | None = None, **expressions: Any) -> KStream:
        """Keep all columns, and add or replace the given ones."""
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
        """Compute new values from expressions (as ``select``), or by a Python function.

        ``value`` is the type of a function's results: a serde, its name, or an Arrow schema (``schema`` is a synonym).
        The default is the type of the previous values. For rows the function returns a dict of these columns. Key
        columns stay unchanged and can be omitted.
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
        """Compute any number of values per record: a Python function returns a sequence of them."""
        python = self._function("flat_map_values", function, name)
        serde = self._serde("flat_map_values", value, name)
        return KStream(self._builder, self._then(MapFunctionNode, name, function=python, serde=serde, flat=True))

    def map(self, function: Function, *, key: Any = None, value: Any = None, name: str | None = None) -> KStream:
        """Compute another key and value per record: a Python function of key and value returns the pair."""
        return self._map("map", function, key, value, name, flat=False)

    def flat_map(self, function: Function, *, key: Any = None, value: Any = None, name: str | None = None) -> KStream:
        """Compute any number of records per record: a Python function of key and value returns a sequence of pairs."""
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
        """Set another key: existing columns, expressions that become columns, or a Python function.

        With a function, ``key`` is the serde of the result. The default is the serde of the previous key.
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
        """Group by columns, expressions or a Python function, as in ``select_key``.

        Records are repartitioned only if these columns do not determine the bucket.
        """
        return self.select_key(*columns, name=name, **expressions).group_by_key()

    def group_by_key(self) -> KGroupedStream:
        """Group by the current key."""
        from millrace_streams.language.grouped import KGroupedStream

        return KGroupedStream(self._builder, self._node)

    def split(self, *, name: str | None = None) -> BranchedKStream:
        """Split the stream: each record goes to the first branch whose predicate is true."""
        return BranchedKStream(self._builder, self._node, name)

    def merge(self, other: KStream, *, name: str | None = None) -> KStream:
        """Merge the records of both streams, in order of arrival."""
        return KStream(self._builder, self._then(MergeNode, name, other))

    def peek(self, function: Function, *, name: str | None = None) -> KStream:
        """Pass each record to a Python function and keep it unchanged."""
        return KStream(self._builder, self._then(PeekNode, name, function=self._function("peek", function, name)))

    def for_each(self, function: Function, *, name: str | None = None) -> None:
        """Pass each record to a Python function; the stream ends here."""
        self._then(ForEachNode, name, function=self._function("for_each", function, name))

    def repartition(self, topic: str | None = None, *, name: str | None = None) -> KStream:
        """Repartition the records by key through an internal topic.

        Records without a key are dropped, unless a join with an outer side follows.
        """
        topic = topic or self._builder.new_name("KSTREAM-REPARTITION-TOPIC")
        return KStream(self._builder, self._then(RepartitionNode, name, topic=f"{topic}-repartition"))

    def through(self, topic: str, *, key: Any = None, value: Any = None, name: str | None = None) -> KStream:
        """Write the records to a topic that other readers can use, as ``to`` does, and continue with its content."""
        produced = self._produced("through", key, value, name)
        fields = {"topic": topic, "visible": True, "keep_null_keys": True, "produced": produced}
        return KStream(self._builder, self._then(RepartitionNode, name, **fields))

    def to_table(
        self, *, store: str | None = None, versioned: Duration | None = None, name: str | None = None
    ) -> KTable:
        """Read the records as the changelog of a table: the last record of a key counts, and one without a value
        deletes.

        With ``versioned`` the store keeps the versions of each row for that duration, by the records' timestamps.
        """
        from millrace_streams.language.table import KTable

        history_ms = None if versioned is None else length_ms(versioned, self._where("to_table", name) + ": versioned")
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
        """Join with a stream (within ``window``), a table, or a global table (by the key from ``selector``).

        ``joiner(left, right)`` or ``joiner(key, left, right)`` returns the value. ``value`` is its type; the default is
        the type of the left value. Without a function the value is made of expressions, such as
        ``region=right("region")`` or the single ``left() + right()``. It then has these columns and the key's, and with
        ``keep`` all left columns as well.

        ``selector`` is a column, an expression, or a function of value, or of key and value. With ``grace`` records
        wait that long for older changes of a versioned table. ``name`` also names the join's stores, which an upgraded
        topology needs to keep its state.
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
        """Join as ``join`` does; a record without a match is joined with None, which is null in expressions."""
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
        """Join two streams as ``join`` does; records of either side without a match are joined with None."""
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
            raise TopologyError(f"{where}: a join with a table has no window: leave window out")
        if (selector is not None) != isinstance(other, GlobalKTable):
            raise TopologyError(f"{where}: selector=... is for joins with a global table, which need it")
        if selector is not None:
            fields["selector"] = self._key_of("selector", selector, name)
        if grace is not None:
            buffer = f"{name or self._builder.new_name('KSTREAM-JOIN')}-BUFFER-STORE"
            fields |= {"grace_ms": length_ms(grace, f"{where}: grace"), "buffer": buffer}
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
        """Process the records by a user's processor; ``supplier()`` creates one for each task.

        ``stores`` are the stores that it can use, or the names of stores added to the builder. The name of a table's
        store (also of a global table) lets it read the table's rows. ``key`` and ``value`` are the types of the
        forwarded records; the defaults are the types of the input.
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
        """Process the records as ``process`` does; forwarded records keep the key."""
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
        connected = [self._builder.store(store, where) for store in stores]
        tables = list(dict.fromkeys(each for each in connected if isinstance(each, TableNode)))
        fields = {
            "supplier": supplier,
            "connected": tuple(each for each in connected if isinstance(each, StoreBuilder)),
            "tables": tuple(table.store for table in tables),
            "key_serde": self._key_serde(what, key, name),
            "serde": self._serde(what, value, name),
            "fixed_key": fixed_key,
        }
        handles = [Handle(self._builder, table) for table in tables]
        return KStream(self._builder, self._then(ProcessNode, name, *handles, **fields))

    def to(self, topic: str | Function, *, key: Any = None, value: Any = None, name: str | None = None) -> None:
        """Write the records to a topic, or each record to the topic that a function returns (Kafka's
        ``TopicNameExtractor``).

        The function takes the value, key and value, or key, value and ``RecordContext``. Its topics must exist and hold
        bytes; otherwise the query fails.

        For a topic of bytes, ``key`` and ``value`` are serdes or their names. The default for single values is the
        serde of their column. Rows need ``json_rows(...)``, ``avro(...)`` or ``protobuf(...)``, which take columns by
        name, key columns included. A typed topic takes columns by name, and neither argument.
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
        """Append the records to a Delta table. ``table`` is a name; the runner's ``tables`` has its path."""
        self._then(DeltaSinkNode, name, table=table)


class BranchedKStream(Handle):
    """Stream that is split into branches (Kafka's ``BranchedKStream``).

    Each record goes to the first branch whose predicate is true.
    """

    _instead = "name a branch first: branch(predicate), or default_branch()"

    def __init__(self, stream_builder: Any, node: Node, name: str | None) -> None:
        """Create a handle that splits the output of ``node``."""
        super().__init__(stream_builder, node)
        self._split_name = name
        self._earlier: tuple[Expression | PythonFunction, ...] = ()
        self._is_complete = False

    def branch(self, predicate: Predicate, *, name: str | None = None) -> KStream:
        """Return the next branch. Raises ``TopologyError`` after ``default_branch``."""
        self._check_incomplete("branch", name)
        checked = self._predicate("branch", predicate, name)
        node = self._then(BranchNode, self._branch_name(name), predicate=checked, earlier=self._earlier)
        self._earlier = (*self._earlier, checked)
        return KStream(self._builder, node)

    def default_branch(self, *, name: str | None = None) -> KStream:
        """Return the branch of the records that no other branch takes, which is the last one.

        Raises ``TopologyError`` after another ``default_branch``.
        """
        self._check_incomplete("default_branch", name)
        self._is_complete = True
        node = self._then(BranchNode, self._branch_name(name), predicate=None, earlier=self._earlier)
        return KStream(self._builder, node)

    def _check_incomplete(self, what: str, name: str | None) -> None:
        if self._is_complete:
            raise TopologyError(
                f"{self._where(what, name)}: default_branch() took all other records, so no branch may follow it"
            )

    def _branch_name(self, name: str | None) -> str | None:
        return f"{self._split_name}{name}" if self._split_name and name else name
