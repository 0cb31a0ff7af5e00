"""What a look into a file yields, in the order of the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Row:
    """Something that the file holds. ``kind`` says what (``batch``, ``record``, ...), ``values`` has its fields."""

    kind: str
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth knowing that is no damage."""

    text: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Damage, at a byte of the file and an offset of the log where those are known."""

    text: str
    position: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        where = [f"position {self.position}"] if self.position is not None else []
        where += [f"offset {self.offset}"] if self.offset is not None else []
        return f"{', '.join(where)}: {self.text}" if where else self.text


Finding: TypeAlias = Row | Note | Problem
