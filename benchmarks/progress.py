"""The finished benchmarks of an interrupted run.

The file is in the workspace from a run's first finished benchmark until its last. It counts only for a run of the same
``identity``: commit, records, repeats.
"""

from __future__ import annotations

import json

from benchmarks.workspace import Workspace


class Progress:
    """Names of finished benchmarks, kept in ``unfinished.json``."""

    def __init__(self, workspace: Workspace, identity: str, file: str = "unfinished.json") -> None:
        self._path = workspace.root / file
        self._identity = identity
        self._finished: list[str] = []

    def finished(self) -> set[str]:
        """Return the finished benchmarks of an earlier run of the same identity. This run keeps them as finished."""
        if self._path.exists():
            saved = json.loads(self._path.read_text())
            if saved["run"] == self._identity:
                self._finished = saved["finished"]
        return set(self._finished)

    def add(self, name: str) -> None:
        """Note a benchmark as finished."""
        self._finished.append(name)
        self._path.write_text(json.dumps({"run": self._identity, "finished": self._finished}))

    def clear(self) -> None:
        """Remove the file after the last benchmark, so that the next run starts from the beginning."""
        self._path.unlink(missing_ok=True)
