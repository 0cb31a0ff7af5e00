"""Tests of the site's hook for cells and long names.

The hook names the columns of table cells and lets long names break.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["site_hooks"] = module
    spec.loader.exec_module(module)
    return module


TABLE = (
    "<table><thead><tr><th>option</th><th><em>default</em></th></tr></thead>"
    "<tbody><tr><td><code>log.retention.ms</code></td><td style='text-align: right'>7 days</td></tr></tbody></table>"
)


def test_each_cell_has_the_name_of_its_column(hooks: ModuleType) -> None:
    html = hooks.labelled(TABLE)
    assert '<td data-label="option">' in html
    assert "<td style='text-align: right' data-label=\"default\">7 days</td>" in html


def test_names_may_break_at_their_dots_and_text_outside_of_tables_is_left(hooks: ModuleType) -> None:
    html = hooks.on_page_content("<p><code>a.b</code></p>" + TABLE, None, None, None)
    assert "<p><code>a.b</code></p>" in html
    assert "<code>log.<wbr>retention.<wbr>ms</code>" in html
