"""Registry of assignors by their names in the group protocol."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from millrace.clients.assignors.cooperative_sticky import CooperativeStickyAssignor
from millrace.clients.assignors.model import Assignor
from millrace.clients.assignors.range_assignor import RangeAssignor
from millrace.clients.assignors.round_robin import RoundRobinAssignor
from millrace.clients.assignors.sticky import StickyAssignor
from millrace.errors import InvalidConfigError

_ALL: Final[tuple[Assignor, ...]] = (
    RangeAssignor(),
    RoundRobinAssignor(),
    StickyAssignor(),
    CooperativeStickyAssignor(),
)

ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType({assignor.name: assignor for assignor in _ALL})
"""All assignors by name."""


def find_assignor(name: str) -> Assignor:
    """Find an assignor by its name. Raises ``InvalidConfigError`` with the known names."""
    try:
        return ASSIGNORS[name]
    except KeyError:
        known = ", ".join(ASSIGNORS)
        raise InvalidConfigError(f"partition.assignment.strategy {name!r} is unknown: choose from {known}") from None


def find_assignors(strategy: str) -> list[Assignor]:
    """Find the assignors of ``partition.assignment.strategy``, the preferred one first.

    Raises ``InvalidConfigError`` for an unknown name, a repeated name, or no name at all.
    """
    names = [name.strip() for name in strategy.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise InvalidConfigError(
            f"partition.assignment.strategy={strategy!r}: name at least one of {', '.join(ASSIGNORS)}, and each once"
        )
    return [find_assignor(name) for name in names]
