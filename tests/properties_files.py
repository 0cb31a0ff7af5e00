"""Properties files, as users write them for commands and brokers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_properties(path: Path, options: Mapping[str, object]) -> None:
    """Write a line for each option."""
    path.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
