"""The graph as a Mermaid flowchart, which forges, notebooks and documentation tools draw."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from millrace_streams.graph.diagram import Box, BoxKind, Diagram

_SHAPES: Final[dict[BoxKind, tuple[str, str]]] = {"topic": ("([", "])"), "node": ("[", "]"), "table": ("[(", ")]")}


def mermaid(diagram: Diagram) -> str:
    """A flowchart: sub-topologies with their nodes, topics as rounded boxes, Delta tables as cylinders."""
    return "\n".join(["flowchart TD", *_boxes(diagram), *(f"  b{one} --> b{other}" for one, other in diagram.edges)])


def _boxes(diagram: Diagram) -> Iterator[str]:
    # Outside ones (-1) first; the sort is stable, so that boxes of a part stay in the order of the nodes.
    placed = sorted(enumerate(diagram.boxes), key=lambda found: _part(found[1]))
    for part, members in groupby(placed, key=lambda found: _part(found[1])):
        inside = part >= 0
        if inside:
            yield f'  subgraph part{part}["Sub-topology: {part}"]'
        for place, box in members:
            begin, end = _SHAPES[box.kind]
            yield f'{"    " if inside else "  "}b{place}{begin}"{_label(box)}"{end}'
        if inside:
            yield "  end"


def _part(box: Box) -> int:
    return -1 if box.part is None else box.part


def _label(box: Box) -> str:
    return "<br/>".join(re.sub(r'["<>&#;]', lambda found: f"#{ord(found[0])};", line) for line in box.lines)
