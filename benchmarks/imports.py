"""Project modules that the measured processes of our side load.

A process that is started during a recording writes the paths of its imported modules into a file beside its log. So do
the processes that it starts (``import_recorder/sitecustomize.py``). Without an active recording processes start as
usual.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

PROJECT = Path(__file__).parent.parent
ROOTS = ("platform", "broker", "spark_source", "streams_dsl")
"""The folders of the measured code."""
_RECORDER = Path(__file__).parent / "import_recorder"
_VARIABLE = "MILLRACE_BENCHMARK_IMPORTS"


class Recording:
    """Files with the imports of one side's processes."""

    def __init__(self) -> None:
        self._files: set[Path] = set()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Record processes that are started in the block."""
        _active.append(self)
        try:
            yield
        finally:
            _active.remove(self)

    def add(self, file: Path) -> None:
        """Count the imports that a file holds or will hold."""
        self._files.add(file)

    def modules(self) -> set[str]:
        """Return the recorded modules as paths below the project."""
        lines = {line for file in self._files if file.exists() for line in file.read_text().splitlines()}
        return {path for line in lines if (path := _in_project(line)) is not None}


_active: list[Recording] = []


def environment_of(log: Path) -> dict[str, str]:
    """Return the environment variables that make a process with this log record its imports, or none without a
    recording.
    """
    if not _active:
        return {}
    file = _file_of(log)
    file.unlink(missing_ok=True)
    count_process(log)
    return _environment(file)


def count_process(log: Path) -> None:
    """Count the imports of a process that was started earlier, for another benchmark of the same run."""
    for recording in _active:
        recording.add(_file_of(log))


def imported_by(module: str, folder: Path) -> set[str]:
    """Import a module in a process of its own, and return the project's modules that it imported."""
    file = folder / "module.imports"
    file.unlink(missing_ok=True)
    environment = os.environ | _environment(file)
    subprocess.run([sys.executable, "-c", f"import {module}"], cwd=PROJECT, env=environment, check=True)
    recording = Recording()
    recording.add(file)
    return recording.modules()


def packed(modules: Iterable[str]) -> dict[str, str]:
    """Write modules by folder, which takes a tenth of the length.

    An example is ``{"platform/millrace/ids": "base topic"}``.
    """
    folders: dict[str, list[str]] = defaultdict(list)
    for module in sorted(modules):
        path = PurePosixPath(module)
        folders[str(path.parent)].append(path.stem)
    return {folder: " ".join(names) for folder, names in folders.items()}


def unpacked(folders: Mapping[str, str]) -> set[str]:
    """Return the modules that ``packed`` wrote."""
    return {f"{folder}/{name}.py" for folder, names in folders.items() for name in names.split()}


def _file_of(log: Path) -> Path:
    return log.with_suffix(".imports")


def _environment(file: Path) -> dict[str, str]:
    path = [str(_RECORDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {_VARIABLE: str(file), "PYTHONPATH": os.pathsep.join(path)}


def _in_project(path: str) -> str | None:
    try:
        relative = Path(path).relative_to(PROJECT)
    except ValueError:
        return None
    return relative.as_posix() if relative.parts[0] in ROOTS and relative.suffix == ".py" else None
