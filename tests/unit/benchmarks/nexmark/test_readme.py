"""Tests of the queries and the first snippet of Nexmark's README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.nexmark import catalogue

README = Path(catalogue.__file__).with_name("README.md").read_text()


def test_the_readme_ends_with_the_catalogue() -> None:
    assert README.endswith(catalogue.as_markdown() + "\n"), "put catalogue.as_markdown() at its end"


def test_its_first_snippet_prints_answers(capsys: pytest.CaptureFixture[str]) -> None:
    first = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)[0]
    exec(first, {})
    assert "num: int64" in capsys.readouterr().out
