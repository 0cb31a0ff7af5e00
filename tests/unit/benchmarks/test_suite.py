"""Every module of the suite is a benchmark, with at most one goal that the report can judge."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from benchmarks import suite
from benchmarks.harness import Durability

NAMES = [module.name for module in pkgutil.iter_modules(suite.__path__)]
WITHOUT_DISK = {"rows_decode"}
"""These measure code in memory; every other one has to say when its sides wait for the disk."""


@pytest.mark.parametrize("name", NAMES)
def test_a_module_holds_a_benchmark_of_its_name(name: str) -> None:
    benchmark = importlib.import_module(f"benchmarks.suite.{name}").BENCHMARK
    assert benchmark.name == name
    assert benchmark.target_ratio is None or benchmark.limit is None
    assert benchmark.ours.settings
    assert benchmark.peer.settings
    if name not in WITHOUT_DISK:
        assert "fsync" in benchmark.ours.settings
        assert "fsync" in benchmark.peer.settings
    assert benchmark.durability in Durability
