"""Tests of the lookup of sub-commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ENTRY_POINTS = """
[millrace.commands]
greet = greeting:greet
topics = greeting:greet
"""
_GREETING = '''
def greet() -> None:
    """Greet."""
    print("hello")
'''


def _millrace(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = f"import sys; sys.path.append({str(folder)!r}); from millrace.cli.main import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)


def test_another_package_adds_a_command_and_replaces_none(tmp_path: Path) -> None:
    package = tmp_path / "greeting-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n", "utf-8")
    (package / "entry_points.txt").write_text(_ENTRY_POINTS, "utf-8")
    (tmp_path / "greeting.py").write_text(_GREETING, "utf-8")
    assert _millrace(tmp_path, "greet").stdout == "hello\n"
    assert "greet" in _millrace(tmp_path, "--help").stdout
    assert "create" in _millrace(tmp_path, "topics", "--help").stdout
