"""What stores are called in Spark's state store, which knows letters, digits and underscores, and reserves some names.

Names that differ in punctuation alone would be one there, and two stores' entries would be mixed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from millrace_streams.errors import TopologyError
from millrace_streams.graph.nodes import Node

PAGES: Final = "millrace_pages"
"""Our own variable beside the stores' logs: pages of all stores of a stage."""

_RESERVED: Final = frozenset({"default", PAGES})


def state_name(store: str) -> str:
    """The name of a store's log in Spark's state store, as the state reader takes it."""
    return re.sub(r"\W", "_", store)


def check_store_names(nodes: Sequence[Node]) -> None:
    """Refuse names that Spark's state store cannot tell apart, or does not take.

    Raises ``TopologyError`` naming the nodes.
    """
    seen: dict[str, tuple[str, str]] = {}
    for node in nodes:
        for store in node.stores:
            name = state_name(store)
            if name in _RESERVED or name.startswith("_"):
                raise TopologyError(
                    f"{node.name}: a store cannot be named {store!r} in Spark's state store: begin with a letter or a "
                    f"digit, and leave {' and '.join(sorted(_RESERVED))} out"
                )
            other, other_node = seen.setdefault(name, (store, node.name))
            if other != store:
                raise TopologyError(
                    f"{node.name}: its store {store} and {other} of {other_node} differ in punctuation alone, and "
                    "Spark's state store would take them for one: name one of them otherwise"
                )
