"""The nodes that join. Parents are left and right; ``kind`` is inner, left or outer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from millrace_streams.expressions import Expression
from millrace_streams.functions import PythonFunction
from millrace_streams.graph.nodes import Node
from millrace_streams.graph.tables import TableNode
from millrace_streams.serdes import RowSerde, Serde
from millrace_streams.windows import JoinWindows

JoinKind: TypeAlias = Literal["inner", "left", "outer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinColumns:
    """Joined values from expressions over the columns of both sides, ``left.<name>`` and ``right.<name>``, and the key.

    They are exactly ``columns`` and the key's, or with ``keep`` the left side's as well.
    """

    columns: tuple[tuple[str, Expression], ...]
    keep: bool = False


Joiner: TypeAlias = PythonFunction | JoinColumns
"""What gives a joined value: a function of both values (or the key before them), or expressions."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamTableJoinNode(Node):
    """Each record of a stream with the row of a table at that moment.

    ``selector`` gives the table's key for a record (of a global table); else it is the record's. ``grace_ms``: records
    wait so long in ``buffer`` for older changes of a versioned table.
    """

    prefix = "KSTREAM-JOIN"
    kind: JoinKind
    joiner: Joiner
    serde: Serde | RowSerde | None
    selector: PythonFunction | Expression | None = None
    grace_ms: int | None = None
    buffer: str | None = None

    @property
    def stores(self) -> tuple[str, ...]:
        """The buffer, if records wait."""
        return (self.buffer,) if self.buffer is not None else ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamStreamJoinNode(Node):
    """Pairs of records of two streams that have the same key and lie within a window of each other."""

    prefix = "KSTREAM-JOIN"
    kind: JoinKind
    joiner: Joiner
    serde: Serde | RowSerde | None
    window: JoinWindows
    left_store: str
    right_store: str
    waiting_store: str

    @property
    def stores(self) -> tuple[str, ...]:
        """The records of both sides, and those that wait for a partner."""
        return (self.left_store, self.right_store, self.waiting_store)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableTableJoinNode(TableNode):
    """The rows of two tables that have the same key."""

    prefix = "KTABLE-JOIN"
    kind: JoinKind
    joiner: Joiner
    serde: Serde | RowSerde | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SubscribeNode(Node):
    """First part of a foreign-key join: says to the row of the right table which rows of the left one want it."""

    prefix = "KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION"
    kind: JoinKind
    extractor: PythonFunction | Expression
    key_serde: Serde


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnswerNode(Node):
    """Second part of a foreign-key join: keeps the subscriptions and answers them with rows of the right table."""

    prefix = "KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR"
    store: str

    @property
    def stores(self) -> tuple[str, ...]:
        """The subscriptions."""
        return (self.store,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResponseJoinNode(TableNode):
    """Last part of a foreign-key join: joins an answer with the left row, unless that has changed since it asked."""

    prefix = "KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR"
    kind: JoinKind
    joiner: Joiner
    serde: Serde | RowSerde | None
