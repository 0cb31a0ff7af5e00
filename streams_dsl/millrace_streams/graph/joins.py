"""Join nodes.

Their parents are left and right; ``kind`` is inner, left or outer.
"""

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
    """Joined values from expressions over ``left.<name>``, ``right.<name>`` and the key.

    They have exactly ``columns`` and the key's columns, and with ``keep`` the left columns as well.
    """

    columns: tuple[tuple[str, Expression], ...]
    keep: bool = False


Joiner: TypeAlias = PythonFunction | JoinColumns
"""Source of a joined value: a function of both values (optionally after the key), or expressions."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamTableJoinNode(Node):
    """Join of each stream record with the table's row at that moment.

    ``selector`` returns the key in a global table; the default is the record's key. With ``grace_ms`` records wait that
    long in ``buffer`` for older changes of a versioned table.
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
    """Join of two streams within a window.

    The node joins each pair of records with the same key whose times are within ``window``.
    """

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
        """Stores of both sides' records, and of those that wait for a match."""
        return (self.left_store, self.right_store, self.waiting_store)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableTableJoinNode(TableNode):
    """Join of the rows of two tables with the same key."""

    prefix = "KTABLE-JOIN"
    kind: JoinKind
    joiner: Joiner
    serde: Serde | RowSerde | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SubscribeNode(Node):
    """First part of a foreign-key join: the subscriptions.

    The node subscribes each left row to the right row of its foreign key.
    """

    prefix = "KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION"
    kind: JoinKind
    extractor: PythonFunction | Expression
    key_serde: Serde


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnswerNode(Node):
    """Second part of a foreign-key join: the responses.

    The node stores the subscriptions and responds to them with rows of the right table.
    """

    prefix = "KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR"
    store: str

    @property
    def stores(self) -> tuple[str, ...]:
        """The store of the subscriptions."""
        return (self.store,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResponseJoinNode(TableNode):
    """Last part of a foreign-key join: the joined rows.

    The node joins each response with the left row, unless the row has changed meanwhile.
    """

    prefix = "KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR"
    kind: JoinKind
    joiner: Joiner
    serde: Serde | RowSerde | None
