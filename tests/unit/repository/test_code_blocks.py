"""Tests of the documents' Python and shell blocks.

Each block is run, or is listed with a reason.
"""

from __future__ import annotations

import re
from pathlib import Path

from ...integration.documented import NOT_RUN, ROOT, RUN_BY, blocks

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(path for path in (ROOT / "docs").rglob("*.md") if not {"design", "reference"} & set(path.parts)),
]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_each_page_with_blocks_is_run_by_a_test() -> None:
    with_blocks = {name(path) for path in DOCUMENTS if blocks(name(path))}
    assert with_blocks == set(RUN_BY), "run the blocks of the page in tests/integration, and name it in documented.py"


def test_the_tests_that_run_pages_name_them() -> None:
    # The tutorial's pages are named by their folder.
    wrong = [
        page
        for page, test in RUN_BY.items()
        if f'"{page}"' not in (text := (ROOT / "tests" / test).read_text())
        and not (page.startswith("docs/tutorial/") and '"docs" / "tutorial"' in text)
    ]
    assert wrong == []


def test_blocks_that_are_not_run_are_in_the_documents() -> None:
    text = "\n".join(path.read_text() for path in DOCUMENTS)
    assert [start for start in NOT_RUN if f"\n{start}" not in text] == [], "take the block out of NOT_RUN"


def test_blocks_of_code_have_a_language() -> None:
    # Without a language a block of code looks like output, and no test runs it.
    code = re.compile(r"^```\n((?:python|millrace|pip|export|spark-submit|import|from)\b.*)", re.MULTILINE)
    bare = [f"{name(path)}: {line}" for path in DOCUMENTS for line in code.findall(path.read_text())]
    assert bare == []
