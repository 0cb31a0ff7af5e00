"""The nodes of tables: where a table comes from, what changes it row by row, and what holds its changes back.

``store`` names the store that keeps a table's rows; a table that nobody asks for its rows has none. ``sends_old`` says
that the changes carry the values that they replace: the compiler finds out who needs them.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace_streams.expressions import Expression
from millrace_streams.functions import PythonFunction
from millrace_streams.graph.nodes import Node
from millrace_streams.serdes import RowSerde, Serde


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableNode(Node):
    """Base of the nodes that give a table and may keep it."""

    store: str | None = None
    sends_old: bool = False

    @property
    def stores(self) -> tuple[str, ...]:
        """The table's store, if it has one."""
        return (self.store,) if self.store is not None else ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToTableNode(TableNode):
    """A stream read as changes of a table. ``history_ms``: the table keeps versions for so long (KIP-889)."""

    prefix = "KTABLE-SOURCE"
    history_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaterializeNode(TableNode):
    """Keeps the rows of the table before it, for a join that must look them up; the compiler adds it."""

    prefix = "KTABLE-MATERIALIZE"
    history_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableFilterNode(TableNode):
    """The rows for which ``predicate`` is true; with ``negate``, the others. A row that no longer passes is deleted."""

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
    """New values of a table's rows from expressions; with ``keep`` all columns and those."""

    prefix = "KTABLE-MAPVALUES"
    columns: tuple[tuple[str, Expression], ...]
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SuppressNode(TableNode):
    """Holds changes back: until ``wait_ms`` after their time (or, with ``final``, after their window's end).

    ``wait_ms`` is None for a final one whose grace the compiler takes from the window. ``records_max`` limits the
    buffer: what is over it goes out early, or with ``strict`` is an error.
    """

    prefix = "KTABLE-SUPPRESS"
    final: bool
    wait_ms: int | None
    buffer: str
    records_max: int | None = None
    strict: bool = True

    @property
    def stores(self) -> tuple[str, ...]:
        """The buffer."""
        return (self.buffer,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToStreamNode(Node):
    """The changes of a table as a stream; the window, if any, stays part of the key."""

    prefix = "KTABLE-TOSTREAM"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupTableNode(Node):
    """Changes under another key and value: what the old row adds to its group goes, what the new one adds comes."""

    prefix = "KTABLE-SELECT"
    selector: PythonFunction | None
    columns: tuple[tuple[str, Expression], ...] = ()
    key_serde: Serde | None = None
    serde: Serde | RowSerde | None = None
