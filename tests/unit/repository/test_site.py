"""Tests of the documentation site's strict build and its generated pages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_the_reference_pages_are_generated_from_the_definitions_as_they_are() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate_reference.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_site_builds_without_a_broken_link_or_a_page_outside_the_navigation(tmp_path: Path) -> None:
    # With --quiet, the strict mode would not count warnings.
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 50
    foreign = [str(page) for page in pages if 'src="http' in page.read_text(encoding="utf-8")]
    assert foreign == [], "the site loads nothing from other hosts"
    index = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"] if "tombstone" in entry["text"].lower()}
    assert {"glossary/", "delta/"} <= found, "the search finds pages by the words in them"
