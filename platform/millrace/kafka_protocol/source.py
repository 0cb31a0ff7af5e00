"""Source text of a compiled codec, with the fields of each line.

A line reads or writes its fields. A codec that fails does not know the field. The traceback has the line, and
``Source.spots`` the fields of that line.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, TracebackType
from typing import Any

from millrace.kafka_protocol.fields import FORMATS, SIZES_BYTES, Field


@dataclass(frozen=True, slots=True)
class Spot:
    """Field of a line. ``path`` has a format field for each loop index, ``value`` is the expression of the value."""

    path: str
    value: str = ""
    kind: str = ""


@dataclass(slots=True)
class Source:
    """Lines of a function, its constants, and the spots of each line."""

    lines: list[str] = field(default_factory=list)
    spots: list[tuple[Spot, ...]] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    _indent: int = 0

    def add(self, line: str, *spots: Spot) -> None:
        """Add a line at the current indentation."""
        self.lines.append("    " * self._indent + line)
        self.spots.append(spots)

    @contextmanager
    def block(self, head: str, *spots: Spot) -> Iterator[None]:
        """Add a compound statement. Its body is the lines that are added within the context."""
        self.add(head, *spots)
        self._indent += 1
        yield
        self._indent -= 1

    def constant(self, prefix: str, value: object) -> str:
        """Return the name of a constant with this value."""
        for name, known in self.constants.items():
            if known is value:
                return name
        name = f"{prefix}{len(self.constants)}"
        self.constants[name] = value
        return name

    def function(self, name: str, file_name: str) -> Any:
        """Compile the lines and return the function ``name`` that they define."""
        code: CodeType = compile("\n".join(self.lines) + "\n", file_name, "exec")
        names = dict(self.constants)
        exec(code, names)
        return names[name]


@dataclass(slots=True)
class FixedRun:
    """Neighbouring fields of fixed size, read or written with one ``struct`` call."""

    spots: list[Spot] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    uuids: list[tuple[str, Spot]] = field(default_factory=list)

    def packer(self, suffix: str = "") -> struct.Struct:
        """Return the layout of the run, and of ``suffix`` after it."""
        return struct.Struct(">" + "".join(FORMATS[spot.kind] for spot in self.spots) + suffix)

    @property
    def size_bytes(self) -> int:
        """Size of the run."""
        return sum(SIZES_BYTES[spot.kind] for spot in self.spots)


def is_fixed(each: Field) -> bool:
    """Return whether the field has the same size in each message."""
    return each.layout.kind in FORMATS and not each.layout.is_array


def failed_line(traceback: TracebackType | None, file_name: str) -> tuple[int, dict[str, Any]]:
    """Return the line of the compiled function that failed, and its variables."""
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == file_name:
            return traceback.tb_lineno, traceback.tb_frame.f_locals
        traceback = traceback.tb_next
    raise AssertionError(f"no line of {file_name} in the traceback")
