"""The nodes of a topology: frozen data that knows no engine. Here the base, sources, sinks and what keeps no state.

A node names its parents; a graph is a tuple of nodes in the order in which they were added, parents first. Names are
Kafka Streams' (``KSTREAM-FILTER-0000000001``), or the user's. Nodes are compared by name: within a graph it is unique.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import pyarrow as pa

from millrace_streams.expressions import Expression
from millrace_streams.functions import PythonFunction
from millrace_streams.serdes import RowSerde, Serde


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
    ``extractor`` computes it from key, value and the record's timestamp. ``serdes`` says what a topic of bytes holds.
    A ``broadcast`` source is read whole by every task. ``unread`` are columns that nobody looks at: they may be null.
    """

    prefix = "KSTREAM-SOURCE"
    topic: str
    schema: pa.Schema | None = None
    key_columns: tuple[str, ...] | None = None
    timestamp: str | None = None
    extractor: PythonFunction | None = None
    serdes: tuple[Serde, Serde | RowSerde] | None = None
    broadcast: bool = False
    unread: frozenset[str] = frozenset()

    @property
    def is_declared(self) -> bool:
        """Whether the topology says itself what the topic holds."""
        return self.serdes is not None or (self.schema is not None and self.key_columns is not None)


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
    """New values from a Python function, of the type that ``serde`` says; None: the type that they had.

    With ``flat`` it gives a sequence of values for each record (``flat_map_values``).
    """

    prefix = "KSTREAM-MAPVALUES"
    function: PythonFunction
    serde: Serde | RowSerde | None
    flat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SelectKeyNode(Node):
    """Another key, made of ``columns``: existing ones, or expressions that become columns."""

    prefix = "KSTREAM-KEY-SELECT"
    columns: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SelectKeyFunctionNode(Node):
    """Another key from a Python function; None as ``serde``: of the type that the key had."""

    prefix = "KSTREAM-KEY-SELECT"
    function: PythonFunction
    serde: Serde | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MapNode(Node):
    """Pairs of key and value from a Python function: one for each record, or with ``flat`` a sequence of them."""

    prefix = "KSTREAM-MAP"
    function: PythonFunction
    key_serde: Serde | None
    serde: Serde | RowSerde | None
    flat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PeekNode(Node):
    """Shows each record to a Python function and passes it on."""

    prefix = "KSTREAM-PEEK"
    function: PythonFunction


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForEachNode(Node):
    """Shows each record to a Python function; an end of the graph."""

    prefix = "KSTREAM-FOREACH"
    function: PythonFunction


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BranchNode(Node):
    """One branch of a split: the records that ``predicate`` lets through and none of ``earlier`` did.

    Without a predicate it takes all that are left.
    """

    prefix = "KSTREAM-BRANCH"
    predicate: Expression | PythonFunction | None
    earlier: tuple[Expression | PythonFunction, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MergeNode(Node):
    """The records of both parents, in the order in which they come."""

    prefix = "KSTREAM-MERGE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """The serdes that write a topic of bytes; None: that of the key's or the value's column."""

    key: Serde | RowSerde | None = None
    value: Serde | RowSerde | None = None

    def __bool__(self) -> bool:
        """Whether anything was said: then the topic is one of bytes."""
        return self.key is not None or self.value is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RepartitionNode(Node):
    """Records go through a topic, to the bucket of their key: here a sub-topology ends and another begins.

    ``visible`` says that it is the user's own topic, which others may read; ``produced`` how it is written.
    """

    prefix = "KSTREAM-REPARTITION"
    topic: str
    keep_null_keys: bool = False
    visible: bool = False
    produced: Produced = Produced()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TopicSinkNode(Node):
    """Writes to a topic; or, with an ``extractor``, each record to the topic of bytes that the function names for it.

    The extractor takes key, value and ``RecordContext``. ``topic`` is then empty.
    """

    prefix = "KSTREAM-SINK"
    topic: str
    produced: Produced = Produced()
    extractor: PythonFunction | None = None

    @property
    def destination(self) -> str:
        """The topic in words."""
        return self.topic if self.extractor is None else f"(named by {self.extractor})"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeltaSinkNode(Node):
    """Writes to a Delta table: appends a stream's records, upserts a table's rows by key (and window)."""

    prefix = "DELTA-SINK"
    table: str


SinkNode: TypeAlias = TopicSinkNode | DeltaSinkNode
