"""Test of exported class names.

Two classes share a name only for a reason in the glossary.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
GLOSSARY = ROOT / "docs" / "glossary.md"
SOURCES = (
    "platform/millrace",
    "broker/millrace_broker",
    "spark_source/pyspark_millrace",
    "streams_dsl/millrace_streams",
)


def _classes_exported(package: Path, source_root: Path) -> list[tuple[str, Path]]:
    """Return each class that a package's ``__init__.py`` imports from a module, with its defining module."""
    exported = []
    for node in ast.walk(ast.parse(package.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        module = source_root / (node.module.replace(".", "/") + ".py")
        if module.is_file():
            body = ast.parse(module.read_text(encoding="utf-8")).body
            classes = {each.name for each in body if isinstance(each, ast.ClassDef)}
            exported += [(alias.name, module) for alias in node.names if alias.name in classes]
    return exported


def _shared_names() -> dict[str, list[str]]:
    places: dict[str, set[str]] = defaultdict(set)
    for source in SOURCES:
        root = (ROOT / source).parent
        for package in (ROOT / source).rglob("__init__.py"):
            for name, module in _classes_exported(package, root):
                places[name].add(module.relative_to(ROOT).as_posix())
    assert len(places) > 300, "exported classes are found"
    return {name: sorted(modules) for name, modules in places.items() if len(modules) > 1}


def test_classes_share_a_name_only_where_the_glossary_says_why() -> None:
    _, _, section = GLOSSARY.read_text().partition("## Classes that share a name")
    explained = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE))
    shared = _shared_names()
    unexplained = {name: modules for name, modules in shared.items() if name not in explained}
    assert unexplained == {}, "rename one class of each, or say why in docs/glossary.md"
    assert set(explained) - set(shared) == set(), (
        "no two exported classes share these names: take them out of the glossary"
    )
