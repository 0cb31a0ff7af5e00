"""Every module of the suite is a benchmark, with at most one goal that the report can judge."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from benchmarks import suite

NAMES = [module.name for module in pkgutil.iter_modules(suite.__path__)]


@pytest.mark.parametrize("name", NAMES)
def test_a_module_holds_a_benchmark_of_its_name(name: str) -> None:
    benchmark = importlib.import_module(f"benchmarks.suite.{name}").BENCHMARK
    assert benchmark.name == name
    assert benchmark.target_ratio is None or benchmark.limit is None
    assert "fsync" in benchmark.ours.settings
    assert "fsync" in benchmark.peer.settings
