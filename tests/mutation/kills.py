"""Kills of earlier runs whose module and test are unchanged.

A run after a commit therefore judges only the survivors and the changed code again. Verdicts of survivors are never
taken over, because a new test may kill them. Comments and docstrings are no code.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Final

from .judging import Judgement, Verdict


@cache
def code_digest(file: Path) -> str:
    """Return the digest of a module's code without comments and docstrings, or nothing if the file does not exist."""
    if not file.is_file():
        return ""
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [each for each in node.body if not _is_text(each)]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def _is_text(node: ast.stmt) -> bool:
    """Tell whether it is a docstring of a module, a class, a function or a constant."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


class Kills:
    """A file of kills, to which each run appends."""

    def __init__(self, path: Path, root: Path) -> None:
        self._path: Final = path
        self._root: Final = root

    def known(self, names: Iterable[str]) -> dict[str, Judgement]:
        """Return the kills of these mutants whose module and test are unchanged."""
        wanted, found = set(names), {}
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            entry = json.loads(line)
            name, test = entry["name"], entry["test"]
            if name in wanted and (entry["module_code"], entry["test_code"]) == self._digests(name, test):
                found[name] = Judgement(Verdict(entry["verdict"]), test, entry["seconds"], is_kept=True)
        return found

    def add(self, name: str, judgement: Judgement) -> None:
        """Store a verdict if it is a kill."""
        if judgement.verdict not in (Verdict.KILLED, Verdict.TIMEOUT) or judgement.is_kept:
            return
        module_code, test_code = self._digests(name, judgement.test)
        entry = {"name": name, "module_code": module_code, "test_code": test_code} | asdict(judgement)
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def _digests(self, name: str, test: str) -> tuple[str, str]:
        """Return the digests of the mutant's module and of the test's file. A kill by timeout names no test."""
        file = self._root / test.partition("::")[0]
        return code_digest(self._root / name.partition(" ")[0]), code_digest(file)
