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
    """Remark that is no damage."""

    text: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Damage, with its position in the file and its offset in the log if known."""

    text: str
    position: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        where = [f"position {self.position}"] if self.position is not None else []
        where += [f"offset {self.offset}"] if self.offset is not None else []
        return f"{', '.join(where)}: {self.text}" if where else self.text


Finding: TypeAlias = Row | Note | Problem
