"""Builder of topologies (Kafka's ``StreamsBuilder``).

Every method adds a node and returns a new handle (``millrace_streams.language``); nothing is computed. ``build``
freezes the nodes into a ``Topology``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from millrace_streams.errors import TopologyError
from millrace_streams.functions import extractor_function, is_function
from millrace_streams.graph import SourceNode, Topology, ToTableNode
from millrace_streams.graph.topology_builder import TopologyBuilder
from millrace_streams.language import GlobalKTable, KStream, KTable
from millrace_streams.processors import StoreBuilder
from millrace_streams.serdes import row, scalar_serde, serde_of
from millrace_streams.windows import Duration, length_ms


class StreamsBuilder:
    """Builder of one topology (Kafka's ``StreamsBuilder``).

    >>> builder = StreamsBuilder()
    >>> flights = builder.stream("flights").filter(col("dep_delay").is_not_null())
    >>> flights.group_by("origin").count().to_delta("departures")
    >>> topology = builder.build()
    """

    def __init__(self) -> None:
        """Create an empty topology."""
        self._builder = TopologyBuilder()

    def stream(
        self,
        topic: str | Sequence[str],
        *,
        key: Any = None,
        value: Any = None,
        schema: Any = None,
        key_columns: Sequence[str] | None = None,
        timestamp: str | Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> KStream:
        """Read one topic, or several as one stream.

        The columns and the key are those of the topic, and are looked up when the topology runs. For a topic of bytes,
        ``key`` and ``value`` declare the types as serdes or their names (``"string"``, ``"long"``, ``"json"`` ...). An
        Arrow schema declares values that are rows. For a typed topic, ``schema`` (an Arrow schema, or any input of
        ``millrace.schemas.parse_schema``) and ``key_columns`` declare the columns and the key in advance. Then errors
        are found without a cluster.

        ``timestamp`` is the column of event time, or a function that returns it in ms. The function takes (value),
        (value, timestamp) or (key, value, timestamp), where ``timestamp`` is the record's own timestamp in ms. The
        default event time is the record's timestamp.

        Several topics are read as if their streams were merged. Each source is named ``name`` plus the topic's name.
        """
        if isinstance(topic, str) or not isinstance(topic, Sequence):
            return KStream(self._builder, self._source(topic, key, value, schema, key_columns, timestamp, name))
        if not topic or len(set(topic)) != len(topic):
            raise TopologyError(f"source of {topic!r}: name at least one topic, and none twice")
        first, *others = (
            KStream(
                self._builder, self._source(each, key, value, schema, key_columns, timestamp, name and f"{name}-{each}")
            )
            for each in topic
        )
        return reduce(KStream.merge, others, first)

    def table(
        self,
        topic: str,
        *,
        key: Any = None,
        value: Any = None,
        schema: Any = None,
        key_columns: Sequence[str] | None = None,
        timestamp: str | Callable[..., Any] | None = None,
        store: str | None = None,
        versioned: Duration | None = None,
        name: str | None = None,
    ) -> KTable:
        """Read a topic as the changelog of a table: the last record of a key counts, and one without a value deletes.

        The arguments are those of ``stream``. ``store`` names the table's store. With ``versioned`` the store keeps the
        versions of each row for that duration, by the records' timestamps.
        """
        source = self._source(topic, key, value, schema, key_columns, timestamp, None)
        return KTable(self._builder, self._table(source, store, versioned, name))

    def global_table(
        self,
        topic: str,
        *,
        key: Any = None,
        value: Any = None,
        schema: Any = None,
        key_columns: Sequence[str] | None = None,
        store: str | None = None,
        name: str | None = None,
    ) -> GlobalKTable:
        """Read a topic as a table that every task holds completely; the arguments are those of ``table``."""
        source = self._source(topic, key, value, schema, key_columns, None, None, broadcast=True)
        store = store or self._builder.new_name("KTABLE-SOURCE-STATE-STORE")
        return GlobalKTable(self._builder, self._table(source, store, None, name))

    def add_state_store(self, store: StoreBuilder) -> StreamsBuilder:
        """Add a store that processors can use by its name. Raises ``TopologyError`` for a name that is in use."""
        self._builder.add_store(store)
        return self

    def build(self) -> Topology:
        """Build the topology. Raises ``TopologyError`` if the nodes do not form one.

        If all sources declare their topics' content, columns, types and keys are checked here. Otherwise they are
        checked when the topics are known.
        """
        from millrace_streams.compiler import check

        topology = self._builder.build()
        if all(source.is_declared for source in topology.sources):
            check(topology, {})
        return topology

    def _source(
        self,
        topic: str,
        key: Any,
        value: Any,
        schema: Any,
        key_columns: Sequence[str] | None,
        timestamp: str | Callable[..., Any] | None,
        name: str | None,
        *,
        broadcast: bool = False,
    ) -> SourceNode:
        where = f"source of {topic}"
        if not isinstance(topic, str):
            raise TopologyError(
                f"{where}: a topic is given by its name; topics of a pattern are not followed: name them, "
                "stream(['one', 'other'])"
            )
        if (key is None) != (value is None):
            raise TopologyError(f"{where}: give the serdes of both key and value, as key='string', value='long'")
        if value is not None and schema is not None:
            raise TopologyError(f"{where}: schema= is of a typed topic, key= and value= of one of bytes: give either")
        fields: dict[str, Any] = {"topic": topic, "broadcast": broadcast}
        if value is not None:
            fields["serdes"] = (scalar_serde(key, where), serde_of(value, where))
        if schema is not None:
            fields["schema"] = row(schema).schema
        if key_columns is not None:
            fields["key_columns"] = tuple(key_columns)
        if is_function(timestamp):
            fields["extractor"] = extractor_function(timestamp, where)
        else:
            fields["timestamp"] = timestamp
        return self._builder.add(SourceNode, name, (), **fields)

    def _table(
        self, source: SourceNode, store: str | None, versioned: Duration | None, name: str | None
    ) -> ToTableNode:
        history_ms = None if versioned is None else length_ms(versioned, f"table of {source.topic}: versioned")
        if history_ms is not None and store is None:
            store = self._builder.new_name("KTABLE-SOURCE-STATE-STORE")
        return self._builder.add(ToTableNode, name, (source.name,), store=store, history_ms=history_ms)
