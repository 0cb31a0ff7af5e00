"""Tests of the documents' references to files, headings and tests."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CAPABILITIES = ROOT / "docs" / "capabilities.md"
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_TEST = re.compile(r"`([\w/.]+\.py)::(\w+)`")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_STATES = ("works", "partly", "not yet")


def _documents() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, check=True).stdout
    names = [name for name in listed.decode().split("\0") if name and not name.startswith("tests/")]
    return [ROOT / name for name in names]


@cache
def _anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings as code hosting sites make them.

    An anchor has lower case, no punctuation, and dashes for blanks.
    """
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", _documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_document_has_a_target(document: Path) -> None:
    lost = []
    for target in _LINK.findall(_FENCE.sub("", document.read_text())):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (document.parent / name).resolve() if name else document
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            lost.append(target)
    assert lost == []


@cache
def _tests_in(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


def _rows() -> list[list[str]]:
    lines = [line for line in CAPABILITIES.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "| proved by |" not in line]


def test_every_capability_says_how_far_it_is_and_what_proves_it() -> None:
    rows = _rows()
    assert len(rows) > 50
    for capability, state, proof in rows:
        assert state.startswith(_STATES), capability
        assert bool(_TEST.search(proof)) == (state != "not yet"), capability
        assert _TEST.sub("", proof).strip(", ") == "", capability


def test_the_tests_that_prove_capabilities_exist() -> None:
    named = _TEST.findall(CAPABILITIES.read_text())
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / "tests" / path).is_file() or name not in _tests_in(ROOT / "tests" / path)
    ]
    assert missing == []


def test_the_reference_names_each_environment_variable() -> None:
    sources = "".join(
        path.read_text("utf-8")
        for folder in ("platform", "broker", "spark_source", "streams_dsl", "jobs")
        for path in (ROOT / folder).rglob("*.py")
    )
    internal = {"MILLRACE_WORKER_PYTHON"}  # set by the session for its launcher
    page = (ROOT / "docs" / "reference" / "environment-variables.md").read_text("utf-8")
    assert set(re.findall(r"MILLRACE_[A-Z_]+", page)) == set(re.findall(r"MILLRACE_[A-Z_]+", sources)) - internal
