"""Hook of the documentation site: pages that lie outside ``docs/`` and the links to them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md", "benchmarks/RESULTS.md")
"""Pages of the repository that the site shows at the same path."""

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages outside ``docs/`` and the pictures of the results."""
    pictures = (path.relative_to(ROOT).as_posix() for path in (ROOT / "benchmarks/results").glob("*.svg"))
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
