"""The graph as an SVG picture, with a colour per sub-topology.

Boxes are on layers, each below all boxes that lead to it. An edge that crosses layers takes a place on each of them, so
that it passes beside their boxes. The places of a layer are ordered by the mean position of their neighbours, which
avoids most crossings.

The layout is computed here, because graphviz needs a program that no wheel contains, and a picture in a notebook must
not fail without it. The layered layout of igraph ignores the widths of boxes, so all distances would be as long as the
longest name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from millrace_streams.graph.diagram import Box, Diagram

_COLOURS: Final = ("#dbeafe", "#dcfce7", "#fef3c7", "#fce7f3", "#ede9fe", "#ccfbf1", "#ffedd5", "#e2e8f0")
_OUTSIDE: Final = "#ffffff"
_CHARACTER_PX: Final = 7.3
_LINE_PX: Final = 17
_PADDING_PX: Final = 12
_GAP_PX: Final = 26
_LAYER_GAP_PX: Final = 44
_SWEEPS: Final = 4


@dataclass(slots=True)
class _Place:
    """Position of a box, or of an edge, on a layer.

    ``box`` is None where an edge passes the layer. ``x`` is the centre and ``y`` the upper edge of the position, in px.
    """

    box: Box | None
    above: list[_Place] = field(default_factory=list)
    below: list[_Place] = field(default_factory=list)
    x: float = 0
    y: float = 0

    @property
    def width(self) -> float:
        """Width of the place, in px."""
        if self.box is None:
            return 0
        return max(map(len, self.box.lines)) * _CHARACTER_PX + 2 * _PADDING_PX

    @property
    def height(self) -> float:
        """Height of the box, in px."""
        return 0 if self.box is None else len(self.box.lines) * _LINE_PX + _PADDING_PX


def svg(diagram: Diagram) -> str:
    """Return the picture: topics (rounded) and Delta tables in white, nodes in their sub-topology's colour."""
    layers = _layers(diagram)
    for _ in range(_SWEEPS):
        for layer in layers:
            _arrange(layer, lambda place: place.above)
        for layer in reversed(layers):
            _arrange(layer, lambda place: place.below)
    width, height = _settle(layers)
    places = [place for layer in layers for place in layer]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="monospace" font-size="12">',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#475569"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="{_OUTSIDE}"/>',
        *(_edge(place, below) for place in places for below in place.below),
        *(_box(place, place.box) for place in places if place.box is not None),
        "</svg>",
    ]
    return "\n".join(lines)


def _layers(diagram: Diagram) -> list[list[_Place]]:
    """Return the boxes by layer, with places for edges that cross layers, connected to their neighbours above and
    below.
    """
    depth = _depths(diagram)
    layers: list[list[_Place]] = [[] for _ in range(max(depth, default=-1) + 1)]
    places = [_Place(box) for box in diagram.boxes]
    for place, layer in zip(places, depth, strict=True):
        layers[layer].append(place)
    for one, other in diagram.edges:
        before = places[one]
        for layer in range(depth[one] + 1, depth[other]):
            passing = _Place(None)
            layers[layer].append(passing)
            _connect(before, passing)
            before = passing
        _connect(before, places[other])
    return layers


def _depths(diagram: Diagram) -> list[int]:
    """Return the layer of each box, one below the lowest of its predecessors. The edges are acyclic."""
    depth = [0] * len(diagram.boxes)
    for _ in diagram.boxes:
        for one, other in diagram.edges:
            depth[other] = max(depth[other], depth[one] + 1)
    # A box without predecessors is directly above its first successor.
    for place in range(len(depth)):
        below = [depth[other] for one, other in diagram.edges if one == place]
        if below and not any(other == place for _, other in diagram.edges):
            depth[place] = min(below) - 1
    return depth


def _connect(above: _Place, below: _Place) -> None:
    above.below.append(below)
    below.above.append(above)


def _arrange(layer: list[_Place], wanted: Callable[[_Place], Sequence[_Place]]) -> None:
    """Place each box of a layer as near as possible to the mean of its neighbours.

    Boxes are pushed right until none overlap, and also left; the middle of both results has no overlap either.
    """
    means = {id(place): _mean([other.x for other in wanted(place)] or [place.x]) for place in layer}
    layer.sort(key=lambda place: means[id(place)])
    to_right, to_left = list(layer), list(reversed(layer))
    right = dict(zip(map(id, to_right), _pushed(to_right, [means[id(place)] for place in to_right]), strict=True))
    left = dict(zip(map(id, to_left), _pushed(to_left, [-means[id(place)] for place in to_left]), strict=True))
    for place in layer:
        place.x = (right[id(place)] - left[id(place)]) / 2


def _pushed(layer: Sequence[_Place], wanted: Sequence[float]) -> list[float]:
    """Return centres from left to right: as wanted, or shifted right as far as the previous boxes require."""
    centres: list[float] = []
    edge = -math.inf
    for place, centre in zip(layer, wanted, strict=True):
        centres.append(max(centre, edge + place.width / 2))
        edge = centres[-1] + place.width / 2 + _GAP_PX
    return centres


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _settle(layers: Sequence[Sequence[_Place]]) -> tuple[float, float]:
    """Shift all places right of 0 and set the heights of layers; returns the total width and height."""
    places = [place for layer in layers for place in layer]
    left = min((place.x - place.width / 2 for place in places), default=0) - _GAP_PX
    y: float = _GAP_PX
    for layer in layers:
        for place in layer:
            place.x -= left
            place.y = y
        y += max(place.height for place in layer) + _LAYER_GAP_PX
    right = max((place.x + place.width / 2 for place in places), default=0) + _GAP_PX
    return right, y - _LAYER_GAP_PX + _GAP_PX


def _edge(above: _Place, below: _Place) -> str:
    top, bottom = above.y + above.height, below.y
    half = (top + bottom) / 2
    arrow = ' marker-end="url(#arrow)"' if below.box is not None else ""
    return (
        f'<path d="M{above.x:.0f} {top:.0f} C{above.x:.0f} {half:.0f} {below.x:.0f} {half:.0f} {below.x:.0f} '
        f'{bottom:.0f}" fill="none" stroke="#475569"{arrow}/>'
    )


def _box(place: _Place, box: Box) -> str:
    fill = _OUTSIDE if box.part is None else _COLOURS[box.part % len(_COLOURS)]
    round_px = place.height / 2 if box.kind == "topic" else 3
    title = box.kind.replace("table", "Delta table") if box.part is None else f"sub-topology {box.part}"
    lines = [(escape(line), place.y + number * _LINE_PX) for number, line in enumerate(box.lines, start=1)]
    texts = [f'<text x="{place.x:.0f}" y="{y:.0f}" text-anchor="middle">{line}</text>' for line, y in lines]
    return (
        f'<g><title>{title}</title><rect x="{place.x - place.width / 2:.0f}" y="{place.y:.0f}" '
        f'width="{place.width:.0f}" height="{place.height:.0f}" rx="{round_px:.0f}" fill="{fill}" stroke="#475569"/>'
        f"{''.join(texts)}</g>"
    )
