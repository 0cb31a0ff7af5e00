"""Tests of the countable part of the prose rule (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("platform", "broker", "spark_source", "streams_dsl", "jobs", "tests", "benchmarks")
GENERATED = ("_pb2", "/oracles/")
SUMMARY_WORDS_MAX = 12
SENTENCE_WORDS_MAX = 25

_CODE = re.compile(r"``[^`]*``|`[^`]*`")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`0-9\"(])")
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs)\.")
_QUESTION_WORD = re.compile(r"(What|Who|Whom|Whose|Where|How|Which|Whether)\b")
_NO_PROSE = re.compile(r"\s*([*|\-+=>]|::|\d+\.)")


def sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph, in which each piece of code is one word."""
    text = _ABBREVIATION.sub(r"\1", _CODE.sub("X", " ".join(paragraph.split())))
    return [sentence for sentence in _SENTENCE_END.split(text) if sentence]


def count_words(sentence: str) -> int:
    """Return the number of words, without signs between them."""
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


def findings(docstring: str, *, has_summary: bool) -> Iterator[str]:
    """Yield what breaks the rule in a docstring. The summary of a module or class is a short noun phrase."""
    paragraphs = re.split(r"\n\s*\n", docstring)
    first = sentences(paragraphs[0])
    if has_summary and first and count_words(first[0]) > SUMMARY_WORDS_MAX:
        yield f"a summary of {count_words(first[0])} words: {first[0]}"
    for paragraph in paragraphs:
        if _NO_PROSE.match(paragraph) or "\n    " in paragraph:
            continue
        for sentence in sentences(paragraph):
            if count_words(sentence) > SENTENCE_WORDS_MAX:
                yield f"a sentence of {count_words(sentence)} words: {sentence}"
            elif _QUESTION_WORD.match(sentence) and not sentence.endswith("?"):
                yield f"a sentence without a named subject: {sentence}"


def findings_of(path: Path) -> Iterator[str]:
    """Yield what breaks the rule in the docstrings of a file, with its lines."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                has_summary = isinstance(node, ast.Module | ast.ClassDef)
                for found in findings(docstring, has_summary=has_summary):
                    yield f"{path.relative_to(ROOT)}:{node.body[0].lineno}: {found}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_have_short_sentences_with_a_named_subject(folder: str) -> None:
    paths = [path for path in sorted((ROOT / folder).rglob("*.py")) if not any(each in str(path) for each in GENERATED)]
    assert paths, folder
    found = [finding for path in paths for finding in findings_of(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("Segments of a partition.", 0),
        (" ".join(["word"] * 12) + ".", 0),
        (" ".join(["word"] * 13) + ".", 1),
        ("Segments.\n\n" + " ".join(["word"] * 25) + ".", 0),
        ("Segments.\n\n" + " ".join(["word"] * 26) + ".", 1),
        ("Segments.\n\nWhat is kept stays.", 1),
        ("Segments.\n\n``" + "code " * 30 + "`` is one word.", 0),
        ("Segments.\n\n* " + " ".join(["word"] * 30), 0),
    ],
)
def test_the_bounds_of_the_rule_are_exact(docstring: str, expected: int) -> None:
    assert len(list(findings(docstring, has_summary=True))) == expected
