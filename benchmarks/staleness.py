"""Lines of code that changed since the measurement of a result.

Only the modules that our side loaded count. Comments, docstrings, blank lines and the layout of a statement are not
code here. A line that moved from one module to another is not counted, and neither is a renamed module. Every other
removed line counts, and every other added line.
"""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

from benchmarks.imports import PROJECT, ROOTS, unpacked

LINES_MAX = 200
"""A result is stale when more lines than this changed. ``benchmarks/README.md`` states the number."""

MAIN = "main"
"""The branch whose commits are permanent."""

Lines = Counter[str]

_UNRECORDED: Mapping[str, tuple[str, ...]] = {
    "log_": ("platform/millrace/records", "platform/millrace/segments", "broker/millrace_broker/log"),
    "rows_decode": ("platform/millrace/records",),
    "pending_timers": ("broker/millrace_broker/purgatory",),
    "streams_": ROOTS,
    "spark_": ("platform", "broker", "spark_source"),
    "topic_to_": ("platform", "broker", "spark_source"),
    "backfill_": ("platform", "broker", "spark_source"),
    "": ("platform", "broker"),
}
"""Folders that a benchmark loads, by the prefix of its name, for results without recorded modules."""


@dataclass(frozen=True)
class Tree:
    """The Python modules of one commit. ``blobs`` has the id of each module's content by its path."""

    blobs: Mapping[str, str]
    read: Callable[[str], str]
    """A function that returns the text of a blob."""

    def lines(self, paths: Iterable[str]) -> Lines:
        """Count the lines of code of some modules."""
        total: Lines = Counter()
        for path in paths:
            total.update(code_lines(self.read(self.blobs[path])))
        return total


def changed_lines(loaded: Iterable[str], old: Tree, new: Tree, renames: Mapping[str, str]) -> int:
    """Count the lines that changed from ``old`` to ``new`` in the modules that were loaded then or are loaded now.

    ``renames`` maps old paths to new ones. A module that ``old`` does not have is loaded now if one of the others
    imports it.
    """
    was = {path for path in loaded if path in old.blobs}
    now = {renames.get(path, path) for path in was} & new.blobs.keys()
    now |= _new_imports(now, old, new)
    changed = {path for path in old.blobs.keys() | new.blobs.keys() if old.blobs.get(path) != new.blobs.get(path)}

    def lines(tree: Tree, paths: Iterable[str]) -> Lines:
        return tree.lines(changed & tree.blobs.keys() & set(paths))

    everywhere_before, everywhere_after = lines(old, changed), lines(new, changed)
    before, after = lines(old, was), lines(new, now)
    removed = (before - after) & (everywhere_before - everywhere_after)
    added = (after - before) & (everywhere_after - everywhere_before)
    return removed.total() + added.total()


@cache
def code_lines(source: str) -> Lines:
    """Count the lines of a module's code in one layout, without comments, docstrings, blank lines and indentation."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)] or [ast.Pass()]  # type: ignore[attr-defined]
    return Counter(line.strip() for line in ast.unparse(tree).splitlines() if line.strip())


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _new_imports(paths: set[str], old: Tree, new: Tree) -> set[str]:
    """Return the modules that ``old`` lacks and that modules of ``paths`` import, also indirectly."""
    fresh = {_module_name(path): path for path in new.blobs.keys() - old.blobs.keys()}
    found: set[str] = set()
    pending = list(paths) if fresh else []
    while pending:
        for name in _imported_names(new.read(new.blobs[pending.pop()])):
            if (path := fresh.pop(name, None)) is not None:
                found.add(path)
                pending.append(path)
    return found


@cache
def _imported_names(source: str) -> frozenset[str]:
    """Return the names that may be modules, such as ``a`` and ``a.b`` of ``from a import b``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


def _module_name(path: str) -> str:
    parts = PurePosixPath(path).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass
class History:
    """The commits of a clone, with the changed lines since each."""

    project: Path = PROJECT
    _blobs: dict[str, str] = field(default_factory=dict)

    def changed_since(self, result: Mapping[str, object]) -> int | None:
        """Count the changed lines of a result's modules; ``None`` if this clone does not have its commit."""
        commit = str(result["commit"])
        old = self._tree(commit)
        if old is None or self._head is None:
            return None
        return changed_lines(_loaded(result, old), old, self._head, self._renames(commit))

    @cached_property
    def head(self) -> str | None:
        """Return the commit up to which lines are counted, or ``None`` outside a clone.

        It is the newest commit of ``main`` in the history of the checked out one. A rebase replaces the commits of a
        branch, and a report must not name a commit that a rebase removes. A clone without ``main`` counts up to
        ``HEAD``.
        """
        found = self._git("merge-base", "HEAD", MAIN) or self._git("rev-parse", "HEAD")
        return found.strip() if found else None

    def has(self, commit: str) -> bool:
        """Tell whether a commit is in the history of the checked out one."""
        return self._git("merge-base", "--is-ancestor", commit, "HEAD") is not None

    @property
    def is_whole(self) -> bool:
        """Tell whether this is a clone with all commits, and not a shallow one."""
        return (self._git("rev-parse", "--is-shallow-repository") or "").strip() == "false"

    @cached_property
    def _head(self) -> Tree | None:
        return self._tree(self.head) if self.head else None

    def _tree(self, commit: str) -> Tree | None:
        listed = self._git("ls-tree", "-r", "-z", commit, "--", *ROOTS)
        if listed is None:
            return None
        blobs = {}
        for entry in filter(None, listed.split("\0")):
            described, _, path = entry.partition("\t")
            if path.endswith(".py"):
                blobs[path] = described.split()[2]
        return Tree(blobs, self._read)

    def _renames(self, commit: str) -> dict[str, str]:
        options = ("--find-renames", "--diff-filter=R", "--name-status", "-z")
        listed = self._git("diff", *options, commit, str(self.head), "--", *ROOTS)
        parts = (listed or "").split("\0")
        return dict(zip(parts[1::3], parts[2::3], strict=False))

    def _read(self, blob: str) -> str:
        if blob not in self._blobs:
            self._blobs[blob] = self._git("cat-file", "blob", blob) or ""
        return self._blobs[blob]

    def _git(self, *arguments: str) -> str | None:
        """Return the output of git, or ``None`` if there is no git, no clone, or no such object."""
        try:
            done = subprocess.run(["git", *arguments], cwd=self.project, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return None
        return done.stdout if done.returncode == 0 else None


def _loaded(result: Mapping[str, object], tree: Tree) -> set[str]:
    recorded = result.get("modules")
    if isinstance(recorded, Mapping):
        return unpacked(recorded)
    name = str(result["name"])
    folders = next(folders for start, folders in _UNRECORDED.items() if name.startswith(start))
    return {path for path in tree.blobs if path.startswith(tuple(f"{folder}/" for folder in folders))}
