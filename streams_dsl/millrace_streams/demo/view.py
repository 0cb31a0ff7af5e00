"""Live view of the demo's stages, with purpose and progress."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from millrace_streams.demo.stages import StageEvent

STARTED: Final = "▸"
"""Start of the line that is printed when a stage starts, without a terminal."""


class StageView:
    """Display of running stages. ``stages`` has the purpose and rows of each, in display order.

    A terminal shows all stages at once. Otherwise a line is printed when a stage starts and when it ends.
    """

    def __init__(self, console: Console, stages: Mapping[str, tuple[str, int]]) -> None:
        self._console: Final = console
        self._progress: Final = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("[bold]{task.description}[/]\n  [dim]{task.fields[purpose]}[/]"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: Final[dict[str, TaskID]] = {
            name: self._progress.add_task(name, start=False, total=rows or 1, purpose=purpose)
            for name, (purpose, rows) in stages.items()
        }
        self._started: Final[set[str]] = set()
        self.finished: Final[list[StageEvent]] = []
        """Last event of each ended stage."""

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, event: StageEvent) -> None:
        """Show the new state of a stage."""
        task = self._tasks[event.stage]
        if event.stage not in self._started:
            self._started.add(event.stage)
            self._progress.start_task(task)
            self._print(f"{STARTED} {event.stage}")
        if not event.is_done:
            self._progress.update(task, completed=event.rows)
            return
        self.finished.append(event)
        total = max(event.rows, 1)
        self._progress.update(task, completed=total, total=total)
        nothing = "done" if event.stage.startswith("start ") else "nothing new"
        handled = f"{event.rows:,} rows" if event.rows else nothing
        self._print(f"[green]✓[/] {event.stage}: {handled}, in {event.seconds:.1f} s")

    def _print(self, line: str) -> None:
        if not self._console.is_terminal:
            self._console.print(line, soft_wrap=True)
