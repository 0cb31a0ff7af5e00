"""Suite: one module per benchmark, with a ``BENCHMARK`` of the module's name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.harness import Benchmark


def names() -> list[str]:
    """Return the names of all benchmarks in their order."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def benchmarks(chosen: Iterable[str] | None = None) -> list[Benchmark]:
    """Load the benchmarks of these names, or all without names."""
    wanted = names() if chosen is None else chosen
    return [importlib.import_module(f"{__name__}.{name}").BENCHMARK for name in wanted]
