"""Table nodes: table sources, row-by-row changes, and suppression.

``store`` names the store of a table's rows; a table whose rows are never looked up has none. With ``sends_old`` the
changes carry the values that they replace; the compiler sets it where a node needs them.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace_streams.expressions import Expression
from millrace_streams.functions import PythonFunction
from millrace_streams.graph.nodes import Node
from millrace_streams.serdes import RowSerde, Serde


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableNode(Node):
    """Base of table nodes, which can have a store."""

    store: str | None = None
    sends_old: bool = False

    @property
    def stores(self) -> tuple[str, ...]:
        """The table's store, if it has one."""
        return (self.store,) if self.store is not None else ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToTableNode(TableNode):
    """A stream read as the changelog of a table. With ``history_ms`` the table keeps versions that long (KIP-889)."""

    prefix = "KTABLE-SOURCE"
    history_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaterializeNode(TableNode):
    """Store for the rows of the preceding table.

    A join looks the rows up in this store. The compiler adds the node.
    """

    prefix = "KTABLE-MATERIALIZE"
    history_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnsentNode(Node):
    """Changes of a windowed table's store that the table does not send.

    These changes are the results of open windows and the expiry of rows. A copy of the table on another stage needs
    them. The compiler adds the node. ``length_ms`` is the length of all windows, None for sessions. ``fork`` is the
    number of the table's fork, if its branches meet again.
    """

    prefix = "KTABLE-UNSENT"
    length_ms: int | None
    fork: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowCopyNode(TableNode):
    """Copy of a windowed table for a join on a later stage.

    The parents of the node are the table and the ``UnsentNode``. With ``on_close`` the table sends only results of
    closed windows, which its unsent changes contain as well.
    """

    prefix = "KTABLE-MATERIALIZE"
    on_close: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableFilterNode(TableNode):
    """Filter of the rows for which ``predicate`` is true.

    With ``negate`` the other rows pass. A row that no longer passes is deleted.
    """

    prefix = "KTABLE-FILTER"
    predicate: Expression | PythonFunction
    negate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableMapNode(TableNode):
    """New values of a table's rows from a Python function."""

    prefix = "KTABLE-MAPVALUES"
    function: PythonFunction
    serde: Serde | RowSerde | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableSelectNode(TableNode):
    """New values of a table's rows from expressions.

    With ``keep`` the node adds ``columns`` to all existing columns.
    """

    prefix = "KTABLE-MAPVALUES"
    columns: tuple[tuple[str, Expression], ...]
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SuppressNode(TableNode):
    """Suppression of a table's changes for a time or until window close.

    The node emits a change ``wait_ms`` after its time, or with ``final`` that long after its window's end. ``wait_ms``
    is None for a final suppression whose grace the compiler takes from the window. ``records_max`` limits the buffer.
    On overflow the oldest change is emitted early, or with ``strict`` an error is raised.
    """

    prefix = "KTABLE-SUPPRESS"
    final: bool
    wait_ms: int | None
    buffer: str
    records_max: int | None = None
    strict: bool = True

    @property
    def stores(self) -> tuple[str, ...]:
        """The buffer's store."""
        return (self.buffer,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToStreamNode(Node):
    """Changes of a table as a stream.

    A window stays part of the key.
    """

    prefix = "KTABLE-TOSTREAM"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupTableNode(Node):
    """Changes of a table under another key and value.

    The downstream aggregation subtracts the old row from its group and adds the new row to its group.
    """

    prefix = "KTABLE-SELECT"
    selector: PythonFunction | None
    columns: tuple[tuple[str, Expression], ...] = ()
    key_serde: Serde | None = None
    serde: Serde | RowSerde | None = None
