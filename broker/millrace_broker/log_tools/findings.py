"""Findings in a file, in the order of the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Row:
    """Content of a file. ``kind`` names its type (``batch``, ``record``, ...), and ``values`` holds its fields."""

    kind: str
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Note:
    """A remark on something that is no damage."""

    text: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Damage in a file.

    ``position`` is the place in the file, and ``offset`` the offset in the log. Both are None if unknown.
    """

    text: str
    position: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        where = [f"position {self.position}"] if self.position is not None else []
        where += [f"offset {self.offset}"] if self.offset is not None else []
        return f"{', '.join(where)}: {self.text}" if where else self.text


Finding: TypeAlias = Row | Note | Problem
