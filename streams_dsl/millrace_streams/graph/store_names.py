"""Names of stores in Spark's state store.

Spark's state store allows letters, digits and underscores. Spark reserves some names. Names that differ only in
punctuation would become equal there, and the entries of two stores would mix.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from millrace_streams.errors import TopologyError
from millrace_streams.graph.nodes import Node

PAGES: Final = "millrace_pages"
"""millrace's own variable beside the stores' logs, with the pages of all stores of a stage."""

_RESERVED: Final = frozenset({"default", PAGES})


def state_name(store: str) -> str:
    """Return the name of a store's log in Spark's state store, for the state reader."""
    return re.sub(r"\W", "_", store)


def check_store_names(nodes: Sequence[Node]) -> None:
    """Refuse names that Spark's state store cannot distinguish or does not accept.

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
                    f"{node.name}: its store {store} and {other} of {other_node} differ only in punctuation, which "
                    "Spark's state store does not distinguish: rename one of them"
                )
