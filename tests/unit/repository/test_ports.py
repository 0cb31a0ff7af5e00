"""Tests of the ports that tests give their servers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.ports import claims, free_port


def test_a_port_is_given_once_among_all_processes() -> None:
    port = free_port()
    assert not claims(port)
    other = f"from tests.ports import claims; raise SystemExit(claims({port}))"
    assert subprocess.run([sys.executable, "-c", other], cwd=Path(__file__).parents[3], check=False).returncode == 0
