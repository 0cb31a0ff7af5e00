"""Progress of the demo's stages, passed between two processes.

A stage starts, adds rows, and ends. The Spark process writes these events as JSON lines to a file. The demo's own
process reads the complete lines.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

SPARK: Final = "start Spark"
STREAM: Final = "hourly departures, stream"
BACKFILL: Final = "hourly departures, backfill"


def ingest_stage(topic: str) -> str:
    """Return the name of the stage that copies a topic into a Delta table."""
    return f"ingest {topic}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEvent:
    """The state of a stage: rows and seconds since its start. ``is_done`` is true in its last event."""

    stage: str
    rows: int = 0
    seconds: float = 0.0
    is_done: bool = False


class StageReporter:
    """Writer of stage events to a file."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[int], None]]:
        """Report a stage from its start to its end; yields the function that adds rows. A failed stage has no end."""
        started, rows = time.monotonic(), 0

        def add_rows(count: int) -> None:
            nonlocal rows
            rows += count
            tell(is_done=False)

        def tell(*, is_done: bool) -> None:
            event = StageEvent(stage=name, rows=rows, seconds=time.monotonic() - started, is_done=is_done)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(event)) + "\n")

        tell(is_done=False)
        yield add_rows
        tell(is_done=True)


class StageReader:
    """Reader of new events. An incomplete line is left for the next read."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._position = 0

    def read(self) -> list[StageEvent]:
        """Return the new events in the order in which they were written."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._position += len(whole) + len(newline)
        return [StageEvent(**json.loads(line)) for line in whole.splitlines()]
