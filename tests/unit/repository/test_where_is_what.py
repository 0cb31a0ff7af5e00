"""Tests of the page "Where is what".

It names files that exist, and each file contains the named class or function.
"""

from __future__ import annotations

import ast
import os
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "where-is-what.md"
SOURCES = (
    "platform/millrace",
    "broker/millrace_broker",
    "spark_source/pyspark_millrace",
    "streams_dsl/millrace_streams",
)
_ROW = re.compile(r"^\| (?P<concept>[^|]+) \| [^|]+ \| (?P<name>[^|]+) \| \[(?P<shown>[^\]]+)\]\((?P<link>[^)]+)\) \|$")


def _rows() -> list[re.Match[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "| concept |" not in line]
    rows = [(line, _ROW.match(line)) for line in lines]
    assert [line for line, row in rows if row is None] == [], "write each row as: concept, there, here, [file](link)"
    return [row for _, row in rows if row]


@cache
def _definitions(path: Path) -> frozenset[str]:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return frozenset(node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef))


def _files_with(name: str) -> list[str]:
    return sorted(
        path.relative_to(ROOT).as_posix()
        for source in SOURCES
        for path in (ROOT / source).rglob("*.py")
        if name in _definitions(path)
    )


@pytest.mark.parametrize("row", _rows(), ids=lambda row: str(row["concept"]))
def test_a_concept_is_where_the_page_says(row: re.Match[str]) -> None:
    name = row["name"].strip("`")
    path = (PAGE.parent / row["link"]).resolve()
    if row["name"] == "the module":
        assert path.is_file(), f"{row['shown']} is gone: name the file of {row['concept']!r} in docs/where-is-what.md"
        return
    found = path.is_file() and name in _definitions(path)
    assert found, (
        f"{name} is not in {row['shown']}: name its file in docs/where-is-what.md; it is in {_files_with(name)}"
    )


def test_the_text_of_each_link_is_its_file() -> None:
    # The documentation site shows the text alone, because sources are not part of it.
    wrong = [row["shown"] for row in _rows() if os.path.normpath(PAGE.parent / row["link"]) != str(ROOT / row["shown"])]
    assert wrong == []


def test_the_page_has_concepts_of_all_three_systems() -> None:
    concepts = [row["concept"] for row in _rows()]
    assert len(concepts) >= 40
    assert len(set(concepts)) == len(concepts)
    sections = re.findall(r"^## (\w+)", PAGE.read_text(), re.MULTILINE)
    assert {"Kafka", "Spark"} <= set(sections)
    assert "## Kafka Streams" in PAGE.read_text()
