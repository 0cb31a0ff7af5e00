"""Lints of the repository itself.

The lints check sizes, leftovers, and the folder that must not be a package.
"""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
ROOTS = ("platform/millrace", "broker/millrace_broker", "spark_source/pyspark_millrace", "streams_dsl/millrace_streams")
MODULE_PER_CALL = ("api", "kafka_api", "calls", "data")
"""Packages with a module for each call or record, named like it."""


def tracked(pattern: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", pattern], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listed.decode().split("\0") if name and "_pb2" not in name]


@pytest.mark.parametrize("folder", ["platform", "tests", "broker", "spark_source", "streams_dsl"])
def test_a_source_root_is_not_a_package(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_every_folder_of_code_is_a_package_with_a_docstring() -> None:
    # A folder without ``__init__.py`` can be imported, but the import contracts do not see it.
    folders = {path.parent for root in ROOTS for path in tracked(f"{root}/*.py")}
    bare = [
        folder
        for folder in folders
        if not (folder / "__init__.py").exists() or not (folder / "__init__.py").read_text().startswith('"""')
    ]
    assert bare == []


def test_a_package_names_its_modules() -> None:
    unnamed = []
    for path in (path for root in ROOTS for path in tracked(f"{root}/*.py")):
        module = path.parent if path.name == "__init__.py" else path.with_suffix("")
        package = module.parent / "__init__.py"
        if not package.exists() or path.name == "__main__.py" or module.parent.name in MODULE_PER_CALL:
            continue
        words = ast.get_docstring(ast.parse(package.read_text())) or ""
        if not re.search(rf"\b{module.name}\b", words):
            unnamed.append(f"{package.relative_to(ROOT)} does not name {module.name}")
    assert unnamed == []


def test_files_have_a_readable_size() -> None:
    long = {str(path): n for path in tracked("*.py") if (n := len(path.read_text().splitlines())) > FILE_LINES_MAX}
    assert long == {}


def test_functions_fit_a_screen() -> None:
    import ast

    long = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1
        for path in tracked("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    }
    assert long == {}


def test_no_file_contains_a_todo_mark() -> None:
    leftover = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = [
        str(path) for path in tracked("*.py") if path != Path(__file__).resolve() and leftover.search(path.read_text())
    ]
    assert found == []


def test_nothing_names_a_machine_or_a_registry() -> None:
    private = re.compile(r"/root/|/work/|/home/\w+/|pypi\.org|repo1?\.maven|deb\.debian\.org")
    suspects = [*tracked("*.py"), *tracked("*.md"), *tracked("*.toml"), *tracked("*.txt"), *tracked("Makefile")]
    found = [str(path) for path in suspects if path != Path(__file__).resolve() and private.search(path.read_text())]
    assert found == []
