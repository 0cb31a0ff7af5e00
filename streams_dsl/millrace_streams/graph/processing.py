"""Nodes of the processor API: user processors with stores and punctuations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millrace_streams.graph.nodes import Node
from millrace_streams.processors import StoreBuilder
from millrace_streams.serdes import RowSerde, Serde


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProcessNode(Node):
    """A user's processor. With ``fixed_key`` (``process_values``) records keep the key.

    ``supplier`` creates a processor per task; ``connected`` are its stores. ``tables`` are the stores of tables that it
    reads, which are the parents after the stream. ``children`` are the nodes to which it can
    forward by name; the compiler finds them.
    """

    prefix = "KSTREAM-PROCESSOR"
    supplier: Callable[[], Any]
    connected: tuple[StoreBuilder, ...]
    key_serde: Serde | None
    serde: Serde | RowSerde | None
    fixed_key: bool = False
    children: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()

    @property
    def stores(self) -> tuple[str, ...]:
        """Names of the connected stores."""
        return tuple(builder.name for builder in self.connected)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChildNode(Node):
    """Records that a processor forwards to one child.

    The child gets the records for ``child`` and the records without a child name. The compiler adds one node for each
    child of a processor with several children.
    """

    prefix = "KSTREAM-PROCESSOR-CHILD"
    child: str
