"""Identities of a topology's sinks, under which each micro-batch is written once.

A sink is identified by its target. Names of nodes are no identities, because a node that is added before a sink may
change its generated name. Several sinks of one topic are numbered in the order of the topology.

Invariant: a micro-batch that Spark runs again is written under the identities of its first run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from millrace_streams.compiler import Plan
from millrace_streams.errors import IncompatibleStateError
from millrace_streams.graph import DeltaSinkNode, RepartitionNode, SinkNode

_DEAD_LETTERS: Final = "dead_letters"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkDescription:
    """Sink of a topology, with its node, target and identity.

    ``target`` ends with the number of the sink among those of the same topic. It is empty in a manifest of an older
    millrace, and ``id`` is then the name of the node.
    """

    node: str
    target: str
    id: str

    @property
    def place(self) -> str:
        """The target without the sink's number."""
        return self.target.rpartition("/")[0]

    def to_json(self) -> dict[str, str]:
        """Return a JSON object."""
        return {"node": self.node, "target": self.target, "id": self.id}

    @classmethod
    def from_json(cls, found: str | Mapping[str, Any]) -> SinkDescription:
        """Parse the output of ``to_json``, or the name of a node, as an older millrace wrote it."""
        if isinstance(found, str):
            return cls(node=found, target="", id=found)
        return cls(node=found["node"], target=found["target"], id=found["id"])


def describe_sinks(plan: Plan, dead_letters: Mapping[str, str]) -> Iterator[SinkDescription]:
    """Yield the sinks of a plan. ``dead_letters`` has the topic of dead letters by the name of their sink."""
    places = {node.name: _place(node) for node in plan.outputs}
    places |= {name: f"{_DEAD_LETTERS}/{topic}" for name, topic in dead_letters.items()}
    numbers: Counter[str] = Counter()
    for node, place in places.items():
        numbers[place] += 1
        target = f"{place}/{numbers[place]}"
        yield SinkDescription(node=node, target=target, id=target)


def with_ids_of(
    before: Sequence[SinkDescription], now: Sequence[SinkDescription], location: str
) -> tuple[SinkDescription, ...]:
    """Return the sinks of a topology with the identities of the sinks of an unfinished micro-batch.

    Raises ``IncompatibleStateError`` if it is not certain which sink is which.
    """
    if any(not sink.target for sink in before):
        if {sink.node for sink in before} != {sink.node for sink in now if not sink.place.startswith(_DEAD_LETTERS)}:
            raise _unfinished(location, "an older millrace planned it, and the names of the sinks have changed")
        return tuple(replace(sink, id=sink.node) for sink in now)
    old, new = _nodes_by_place(before), _nodes_by_place(now)
    for place in sorted(old.keys() & new.keys()):
        if max(len(old[place]), len(new[place])) > 1 and old[place] != new[place]:
            raise _unfinished(location, f"the sinks of {place} have changed, and several write to it")
    ids = {sink.target: sink.id for sink in before}
    return tuple(replace(sink, id=ids.get(sink.target, sink.id)) for sink in now)


def _place(node: SinkNode | RepartitionNode) -> str:
    if isinstance(node, DeltaSinkNode):
        return f"table/{node.table}"
    # Without a topic a function names the topic of each record.
    return f"topic/{node.topic}" if node.topic else "topics"


def _nodes_by_place(sinks: Sequence[SinkDescription]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for sink in sinks:
        found.setdefault(sink.place, []).append(sink.node)
    return found


def _unfinished(location: str, reason: str) -> IncompatibleStateError:
    return IncompatibleStateError(
        f"{location} has an unfinished micro-batch, of which some sinks may have their rows, but {reason}: run the "
        "query once with the unchanged topology"
    )
