"""The files of a commit in the benchmarks' cache.

This module also gives the Python that runs them.

Invariant: a commit's folder is complete, because it gets its name after its last file was written.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from benchmarks.imports import PROJECT, ROOTS
from benchmarks.workspace import BenchmarkError, Workspace

_CONSTRAINTS = "constraints.txt"


@dataclass(frozen=True)
class CommitTree:
    """One commit as files."""

    commit: str
    folder: Path

    def suite(self) -> set[str]:
        """Return the names of the commit's benchmarks."""
        return {path.stem for path in (self.folder / "benchmarks" / "suite").glob("*.py")} - {"__init__"}

    def environment(self) -> dict[str, str]:
        """Return environment variables with which Python and its child processes import this commit's modules."""
        paths = [str(self.folder), *(str(self.folder / root) for root in ROOTS)]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def python(self) -> Path:
        """Return this Python if the commit needs no other versions, or else one in an environment of its own."""
        if needs_no_more(self.folder, PROJECT):
            return Path(sys.executable)
        if not (self.folder / ".venv" / "ready").exists():
            print(f"  making the environment of {self.commit[:12]}, which needs other versions", flush=True)
            done = subprocess.run(["make", "setup"], cwd=self.folder, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BenchmarkError(f"make setup failed in {self.folder}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return self.folder / ".venv/bin/python"


def full_name(revision: str, project: Path = PROJECT) -> str:
    """Return the whole id of a commit. Raises ``BenchmarkError`` for a commit that this clone does not have."""
    found = _git(project, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if found is None:
        raise BenchmarkError(f"this clone has no commit {revision}: fetch it (git fetch --unshallow), or name another")
    return found.decode().strip()


def extract(commit: str, workspace: Workspace, project: Path = PROJECT) -> CommitTree:
    """Write the files of a commit into the cache, if they are not there yet."""
    folder = workspace.folder("compare/commits") / commit
    if not folder.exists():
        archive = _git(project, "archive", "--format=tar", commit)
        if archive is None:
            raise BenchmarkError(f"git archive {commit} failed in {project}")
        unfinished = workspace.folder(f"compare/commits/{commit}.unfinished", empty=True)
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(unfinished, filter="data")
        unfinished.rename(folder)
    return CommitTree(commit, folder)


def needs_no_more(folder: Path, project: Path) -> bool:
    """Tell whether a commit's packages, versions and commands are all among those of the project."""
    constraints = set((project / _CONSTRAINTS).read_text().splitlines())
    if not set((folder / _CONSTRAINTS).read_text().splitlines()) <= constraints:
        return False
    return set(_requirements(folder)) <= set(_requirements(project))


def _requirements(folder: Path) -> Iterator[tuple[str, str]]:
    """Return a commit's dependencies, extras and entry points as (kind, text)."""
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    yield from (("dependency", each) for each in project.get("dependencies", ()))
    for extra, packages in project.get("optional-dependencies", {}).items():
        yield from ((extra, package) for package in packages)
    for group, entries in {"scripts": project.get("scripts", {}), **project.get("entry-points", {})}.items():
        yield from ((group, f"{name}={target}") for name, target in entries.items())


def _git(project: Path, *arguments: str) -> bytes | None:
    done = subprocess.run(["git", *arguments], cwd=project, capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None
