"""The nodes of the processor API: users' own processors with stores and punctuations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millrace_streams.graph.nodes import Node
from millrace_streams.processors import StoreBuilder
from millrace_streams.serdes import RowSerde, Serde


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProcessNode(Node):
    """Records through a user's processor. ``fixed_key`` ones (``process_values``) keep the key.

    ``supplier`` makes a processor for each task; ``connected`` are the stores that it may use. ``children`` are the
    nodes that it may forward to by name; the compiler finds them.
    """

    prefix = "KSTREAM-PROCESSOR"
    supplier: Callable[[], Any]
    connected: tuple[StoreBuilder, ...]
    key_serde: Serde | None
    serde: Serde | RowSerde | None
    fixed_key: bool = False
    children: tuple[str, ...] = ()

    @property
    def stores(self) -> tuple[str, ...]:
        """Names of the connected stores."""
        return tuple(builder.name for builder in self.connected)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChildNode(Node):
    """What a processor forwards to one of its children: all that is addressed to ``child`` or to no one by name.

    The compiler adds one for each child of a processor that has several.
    """

    prefix = "KSTREAM-PROCESSOR-CHILD"
    child: str
