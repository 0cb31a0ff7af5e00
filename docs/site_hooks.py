"""Hook of the documentation site: pages that lie outside ``docs/``, the links to them, and tables on phones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "broker/ARCHITECTURE.md",
    "spark_source/ARCHITECTURE.md",
    "streams_dsl/ARCHITECTURE.md",
    "benchmarks/README.md",
    "benchmarks/RESULTS.md",
    "benchmarks/COMPARISONS.md",
    "benchmarks/nexmark/README.md",
    "benchmarks/nexmark/RESULTS.md",
)
"""Pages of the repository that the site shows at the same path."""

_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_HEADER = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<td(?P<attributes>[^>]*)>(?P<content>.*?)</td>", re.DOTALL)
_CODE = re.compile(r"<code>(.*?)</code>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages outside ``docs/`` and the pictures of the results."""
    folders = (ROOT / "benchmarks/results", ROOT / "benchmarks/nexmark")
    pictures = (path.relative_to(ROOT).as_posix() for folder in folders for path in folder.glob("*.svg"))
    for name in (*OUTSIDE, *pictures):
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links at the pages of the site; a link to any other file of the repository becomes its plain text."""
    name = page.file.src_uri
    source = ROOT / name if name in OUTSIDE else ROOT / "docs" / name

    def relinked(link: re.Match[str]) -> str:
        path = (source.parent / link["target"]).resolve()
        if "://" in link["target"] or not path.is_relative_to(ROOT) or not path.exists():
            return link[0]
        below = path.relative_to(ROOT).as_posix().removeprefix("docs/")
        if files.get_file_from_path(below) is None:
            return link["text"]
        return f"[{link['text']}]({'../' * name.count('/')}{below}{link['anchor'] or ''})"

    return _LINK.sub(relinked, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Name the column of each cell, for the style that shows rows as cards on phones, and let long names break."""
    return _TABLE.sub(lambda table: labelled(table[0]), html)


def labelled(table: str) -> str:
    """Give each cell of a table the attribute ``data-label``, and each name in code places where it may break."""
    headers = [_TAG.sub("", header).replace('"', "&quot;").strip() for header in _HEADER.findall(table)]

    def relabelled(row: re.Match[str]) -> str:
        labels = iter(headers)

        def cell(found: re.Match[str]) -> str:
            content = _CODE.sub(
                lambda code: "<code>" + re.sub(r"([./_=,])(?=\w)", r"\1<wbr>", code[1]) + "</code>", found["content"]
            )
            return f'<td{found["attributes"]} data-label="{next(labels, "")}">{content}</td>'

        return _CELL.sub(cell, row[0])

    return _ROW.sub(relabelled, table)
