"""Topology nodes as frozen data: the base, sources, sinks and stateless nodes.

A node names its parents. A graph is a tuple of nodes in the order in which they were added, parents first. Names are
those of Kafka Streams (``KSTREAM-FILTER-0000000001``), or the user's. Nodes are compared by name, which is unique
within a graph.
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
        """Names of the node's state stores."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceNode(Node):
    """Source of a topic's records. ``schema`` and ``key_columns`` can be declared; otherwise they are the topic's.

    ``timestamp`` names the column of event time (a timestamp, or ms since 1970); None means the record's timestamp.
    ``extractor`` computes it from key, value and the record's timestamp. ``serdes`` are the types of a topic of bytes.
    Every task reads a ``broadcast`` source completely. ``unread`` are columns that no node uses, so they may be null.
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
        """True if the topology declares the topic's content."""
        return self.serdes is not None or (self.schema is not None and self.key_columns is not None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FilterNode(Node):
    """Filter of the records for which ``predicate`` is true.

    A record passes neither on false nor on null. With ``negate`` exactly the other records pass.
    """

    prefix = "KSTREAM-FILTER"
    predicate: Expression | PythonFunction
    negate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MapValuesNode(Node):
    """New values from expressions over the columns of a record.

    The new columns are exactly ``columns`` and those of the key. With ``keep`` the node adds ``columns`` to all
    existing columns.
    """

    prefix = "KSTREAM-MAPVALUES"
    columns: tuple[tuple[str, Expression], ...]
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MapFunctionNode(Node):
    """New values from a Python function.

    ``serde`` is the type of the new values; None means the type of the previous values. With ``flat`` the function
    returns a sequence of values per record (``flat_map_values``).
    """

    prefix = "KSTREAM-MAPVALUES"
    function: PythonFunction
    serde: Serde | RowSerde | None
    flat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SelectKeyNode(Node):
    """Another key from ``columns``: existing ones, or expressions that become columns."""

    prefix = "KSTREAM-KEY-SELECT"
    columns: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SelectKeyFunctionNode(Node):
    """New key from a Python function.

    ``serde`` is the type of the new key; None means the type of the previous key.
    """

    prefix = "KSTREAM-KEY-SELECT"
    function: PythonFunction
    serde: Serde | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MapNode(Node):
    """Pairs of key and value from a Python function.

    The function returns one pair per record, or with ``flat`` a sequence of pairs.
    """

    prefix = "KSTREAM-MAP"
    function: PythonFunction
    key_serde: Serde | None
    serde: Serde | RowSerde | None
    flat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PeekNode(Node):
    """Pass-through that calls a Python function with each record."""

    prefix = "KSTREAM-PEEK"
    function: PythonFunction


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForEachNode(Node):
    """End of a stream that calls a Python function with each record."""

    prefix = "KSTREAM-FOREACH"
    function: PythonFunction


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BranchNode(Node):
    """One branch of a split stream.

    The branch takes the records for which ``predicate`` is true and none of ``earlier`` was. Without a predicate the
    branch takes all remaining records.
    """

    prefix = "KSTREAM-BRANCH"
    predicate: Expression | PythonFunction | None
    earlier: tuple[Expression | PythonFunction, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MergeNode(Node):
    """Merge of the records of both parents, in order of arrival."""

    prefix = "KSTREAM-MERGE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """Serdes for writing a topic of bytes (Kafka's ``Produced``).

    None means the serde of the key's or the value's column.
    """

    key: Serde | RowSerde | None = None
    value: Serde | RowSerde | None = None

    def __bool__(self) -> bool:
        """Return whether a serde was given, so that the topic holds bytes."""
        return self.key is not None or self.value is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RepartitionNode(Node):
    """Repartition by key through a topic.

    A sub-topology ends at this node and another one begins. With ``visible`` the topic is the user's own, and other
    applications can read it. ``produced`` are its serdes.
    """

    prefix = "KSTREAM-REPARTITION"
    topic: str
    keep_null_keys: bool = False
    visible: bool = False
    produced: Produced = Produced()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TopicSinkNode(Node):
    """Sink that writes records to a topic.

    With an ``extractor`` each record goes to the topic of bytes whose name that function returns. The extractor takes
    key, value and ``RecordContext``. ``topic`` is then empty.
    """

    prefix = "KSTREAM-SINK"
    topic: str
    produced: Produced = Produced()
    extractor: PythonFunction | None = None

    @property
    def destination(self) -> str:
        """Description of the topic."""
        return self.topic if self.extractor is None else f"(named by {self.extractor})"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeltaSinkNode(Node):
    """Sink that writes to a Delta table.

    The sink appends the records of a stream. It upserts the rows of a table by key (and window).
    """

    prefix = "DELTA-SINK"
    table: str


SinkNode: TypeAlias = TopicSinkNode | DeltaSinkNode
