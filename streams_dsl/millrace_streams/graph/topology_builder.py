"""Nodes and stores of a topology under construction."""

from __future__ import annotations

from typing import Any, TypeVar

from millrace_streams.errors import TopologyError
from millrace_streams.graph.nodes import Node
from millrace_streams.graph.tables import TableNode
from millrace_streams.graph.topology import Topology
from millrace_streams.processors import StoreBuilder

NodeT = TypeVar("NodeT", bound=Node)


class TopologyBuilder:
    """Collector of the nodes of a topology.

    The builder numbers nodes without a name as Kafka Streams does.
    """

    def __init__(self) -> None:
        """Create an empty topology."""
        self._nodes: list[Node] = []
        self._stores: dict[str, StoreBuilder] = {}
        self._index = 0

    def add(self, kind: type[NodeT], name: str | None, parents: tuple[str, ...], /, **fields: Any) -> NodeT:
        """Add a node after its parents and return it."""
        check_name(name)
        node = kind(name=name or self.new_name(kind.prefix), parents=parents, **fields)
        self._nodes.append(node)
        return node

    def new_name(self, prefix: str) -> str:
        """Return the next numbered name of a node, a store or a topic."""
        self._index += 1
        return f"{prefix}-{self._index - 1:010d}"

    def add_store(self, store: StoreBuilder) -> None:
        """Add a store under its name. Raises ``TopologyError`` for a name that is in use."""
        if store.name in self._stores:
            raise TopologyError(f"the store {store.name} was added already: name another one")
        self._stores[store.name] = store

    def store(self, store: StoreBuilder | str, where: str) -> StoreBuilder | TableNode:
        """Return a given store, or the added store of that name, or the table whose store has that name."""
        if isinstance(store, StoreBuilder):
            if self._stores.setdefault(store.name, store) is not store:
                raise TopologyError(f"{where}: another store is named {store.name} already: name it otherwise")
            return store
        if store in self._stores:
            return self._stores[store]
        tables = {node.store: node for node in self._nodes if isinstance(node, TableNode) and node.store is not None}
        if store in tables:
            return tables[store]
        known = ", ".join((*self._stores, *tables)) or "none"
        raise TopologyError(
            f"{where}: no store is named {store}; there are {known}: add it with builder.add_state_store(...), or name "
            "a table's store with store=..."
        )

    def build(self) -> Topology:
        """Freeze the nodes. Raises ``TopologyError`` if they do not form a topology."""
        return Topology(tuple(self._nodes))


def check_name(name: object) -> None:
    """Refuse a wrong node name, which was meant as a column called ``name``. Raises ``TopologyError``."""
    if name is not None and not isinstance(name, str):
        raise TopologyError(f"name={name!r} names the node; for a column of that name write expression.alias('name')")
