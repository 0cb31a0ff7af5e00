"""Tests of the import recording of measured processes and their children."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks import imports
from benchmarks.imports import Recording
from benchmarks.workspace import start

from ...integration.waiting import STALL_S

_IDS = "platform/millrace/ids.py"


def _run(code: str, log: Path) -> None:
    assert start([sys.executable, "-c", code], log).wait(STALL_S) == 0, log.read_text()


def test_a_process_of_a_recording_tells_the_modules_that_it_imports(tmp_path: Path) -> None:
    recording = Recording()
    with recording.active():
        _run("import json, millrace.ids", tmp_path / "process.log")
    found = recording.modules()
    assert {_IDS, "platform/millrace/__init__.py"} <= found
    assert not [path for path in found if not path.startswith("platform/millrace/")]


def test_a_child_of_a_process_tells_its_imports_as_well(tmp_path: Path) -> None:
    recording = Recording()
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import millrace.ids'], check=True)"
    with recording.active():
        _run(child, tmp_path / "process.log")
    assert _IDS in recording.modules()


def test_a_process_that_was_started_for_another_benchmark_can_be_counted(tmp_path: Path) -> None:
    first, second = Recording(), Recording()
    log = tmp_path / "process.log"
    with first.active():
        _run("import millrace.ids", log)
    with second.active():
        imports.count_process(log)
    assert second.modules() == first.modules()


def test_without_a_recording_processes_start_as_anybody_would_start_them(tmp_path: Path) -> None:
    log = tmp_path / "process.log"
    _run("import os, sys; assert 'sitecustomize' not in getattr(sys.modules.get('sitecustomize'), '__file__', '')", log)
    assert imports.environment_of(log) == {}
    assert "MILLRACE_BENCHMARK_IMPORTS" not in os.environ


def test_a_benchmark_without_processes_has_the_modules_of_its_own_imports(tmp_path: Path) -> None:
    found = imports.imported_by("benchmarks.suite.pending_timers", tmp_path)
    assert "broker/millrace_broker/purgatory/__init__.py" in found
    assert not [path for path in found if path.startswith("platform/millrace/clients/")]


def test_packed_modules_come_back_as_they_were() -> None:
    modules = {"platform/millrace/ids.py", "platform/millrace/__init__.py", "broker/millrace_broker/log/segment.py"}
    packed = imports.packed(modules)
    assert packed["platform/millrace"] == "__init__ ids"
    assert imports.unpacked(packed) == modules
