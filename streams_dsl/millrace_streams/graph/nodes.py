"""The nodes of a topology: frozen data that knows no engine.

A node names its parents; a graph is a tuple of nodes in the order in which they were added, parents first. Names are
Kafka Streams' (``KSTREAM-FILTER-0000000001``), or the user's. Nodes are compared by name: within a graph it is unique.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import pyarrow as pa

from millrace_streams.aggregates import Aggregate
from millrace_streams.expressions import Expression
from millrace_streams.functions import PythonFunction
from millrace_streams.windows import TimeWindows

Emit: TypeAlias = Literal["every", "last"]
"""``every``: a result for each record, as Kafka Streams without cache; ``last``: the last one of a key per batch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node:
    """Base of all nodes."""

    prefix: ClassVar[str]
    name: str
    parents: tuple[str, ...] = ()

    @property
    def stores(self) -> tuple[str, ...]:
        """Names of the state stores that the node keeps."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceNode(Node):
    """Records of a topic. ``schema`` and ``key_columns`` may be declared; else they are the topic's own.

    ``timestamp`` names the column that holds event time (a timestamp, or ms since 1970); None: the record's timestamp.
    """

    prefix = "KSTREAM-SOURCE"
    topic: str
    schema: pa.Schema | None = None
    key_columns: tuple[str, ...] | None = None
    timestamp: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FilterNode(Node):
    """The records for which ``predicate`` is true (not null, not false); with ``negate``, the others."""

    prefix = "KSTREAM-FILTER"
    predicate: Expression | PythonFunction
    negate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MapValuesNode(Node):
    """New values from expressions: exactly ``columns`` and the key's, or with ``keep`` all columns and those."""

    prefix = "KSTREAM-MAPVALUES"
    columns: tuple[tuple[str, Expression], ...]
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MapFunctionNode(Node):
    """New values from a Python function that gives a dict of the columns of ``schema``, or the one bare value."""

    prefix = "KSTREAM-MAPVALUES"
    function: PythonFunction
    schema: pa.Schema


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SelectKeyNode(Node):
    """Another key, made of ``columns``: existing ones, or expressions that become columns."""

    prefix = "KSTREAM-KEY-SELECT"
    columns: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AggregateNode(Node):
    """A table of ``aggregates`` by key, and by window if there is one; its state lies in ``store``."""

    prefix = "KSTREAM-AGGREGATE"
    aggregates: tuple[tuple[str, Aggregate], ...]
    window: TimeWindows | None
    store: str
    emit: Emit = "last"

    @property
    def stores(self) -> tuple[str, ...]:
        """The one store."""
        return (self.store,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToStreamNode(Node):
    """The updates of a table as a stream; the window, if any, becomes part of the key."""

    prefix = "KTABLE-TOSTREAM"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TopicSinkNode(Node):
    """Writes to a topic."""

    prefix = "KSTREAM-SINK"
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeltaSinkNode(Node):
    """Writes to a Delta table: appends a stream's records, upserts a table's rows by key (and window)."""

    prefix = "DELTA-SINK"
    table: str


SinkNode: TypeAlias = TopicSinkNode | DeltaSinkNode
