"""The graph as a Mermaid flowchart, for forges, notebooks and documentation tools."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from millrace_streams.graph.diagram import Box, BoxKind, Diagram

_SHAPES: Final[dict[BoxKind, tuple[str, str]]] = {"topic": ("([", "])"), "node": ("[", "]"), "table": ("[(", ")]")}


def mermaid(diagram: Diagram) -> str:
    """Return a flowchart of sub-topologies, with topics as rounded boxes and Delta tables as cylinders."""
    return "\n".join(["flowchart TD", *_boxes(diagram), *(f"  b{one} --> b{other}" for one, other in diagram.edges)])


def _boxes(diagram: Diagram) -> Iterator[str]:
    # Outside boxes (-1) come first. The sort is stable, so boxes of a part stay in node order.
    placed = sorted(enumerate(diagram.boxes), key=lambda found: _part(found[1]))
    for part, members in groupby(placed, key=lambda found: _part(found[1])):
        inside = part >= 0
        if inside:
            yield f'  subgraph part{part}["Sub-topology: {part}"]'
        for place, box in members:
            begin, end = _SHAPES[box.kind]
            label = "<br/>".join(re.sub(r'["<>&#;]', lambda found: f"#{ord(found[0])};", line) for line in box.lines)
            yield f'{"    " if inside else "  "}b{place}{begin}"{label}"{end}'
        if inside:
            yield "  end"


def _part(box: Box) -> int:
    return -1 if box.part is None else box.part
