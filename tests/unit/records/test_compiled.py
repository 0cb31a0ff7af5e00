"""Tests of the loading of compiled loops.

``test_row_columns`` compares their results with those of slower code.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.records import (
    Record,
    build_rows_batch,
    build_rows_batch_of_columns,
    compiled,
    read_header,
    row_fields,
    usual_times,
)
from millrace.records.row_columns import rows_to_columns

from ...integration.waiting import eventually, run_to_end

BATCH = build_rows_batch([Record(value=b"v", timestamp_ms=5)] * 3)


def test_the_complete_check_decides_until_the_loop_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_loaded", [])
    with compiled._loading:
        assert usual_times(BATCH, 0, read_header(BATCH)) is None
        assert not any(thread.name == "millrace-load-loops" for thread in threading.enumerate()), "it is being loaded"
    assert usual_times(BATCH, 0, read_header(BATCH)) is None
    eventually(lambda: usual_times(BATCH, 0, read_header(BATCH)) == (5, 5))


def test_a_loop_that_cannot_be_loaded_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled, "_loaded", [])
    monkeypatch.setattr(compiled, "_cannot_load", threading.Event())
    monkeypatch.setitem(sys.modules, "millrace.records.loops", None)  # its import raises ImportError
    assert usual_times(BATCH, 0, read_header(BATCH)) is None
    eventually(lambda: "numba cannot be loaded" in caplog.text)
    for _ in range(3):
        assert usual_times(BATCH, 0, read_header(BATCH)) is None
    eventually(lambda: not any(thread.name == "millrace-load-loops" for thread in threading.enumerate()))
    assert caplog.text.count("numba cannot be loaded") == 1


def test_without_numba_the_log_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled, "_loaded", [])
    monkeypatch.setattr(compiled, "_cannot_load", threading.Event())
    for name in [name for name in sys.modules if name.split(".")[0] == "numba"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "millrace.records.loops")
    monkeypatch.setitem(sys.modules, "numba", None)
    compiled.begin_to_load_loops()
    eventually(lambda: "numba is not installed" in caplog.text)
    assert compiled.loops_if_loaded() is None


def test_a_process_loads_the_loop_when_it_has_read_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    records = pa.record_batch({"value": [b"v"] * 1000})
    batch = build_rows_batch_of_columns(records, timestamps_ms=5)
    monkeypatch.setattr(compiled, "_loaded", [])
    monkeypatch.setattr(row_fields, "_left", 3 * records.num_rows)
    for _ in range(3):
        rows_to_columns(batch, 0, read_header(batch))
    assert not any(thread.name == "millrace-load-loops" for thread in threading.enumerate())
    rows_to_columns(batch, 0, read_header(batch))
    eventually(compiled.loops_if_loaded)


_PROGRAM = """
import logging, sys
logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
import millrace.records, pyarrow
assert "numba" not in sys.modules, "loaded although nobody has written rows"
from millrace.records import build_rows_batch_of_columns, read_header, read_rows
rows = build_rows_batch_of_columns(pyarrow.record_batch({"value": [b"a", None]}), timestamps_ms=5)
assert [record.value for record in read_rows(rows, 0, read_header(rows))] == [b"a", None]
"""


def test_the_loops_are_loaded_when_they_are_needed_also_without_a_place_for_the_cache(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment["NUMBA_CACHE_LOCATOR_CLASSES"] = "ZipCacheLocator"  # only for modules in zip files
    done = run_to_end([sys.executable, "-W", "error", "-c", _PROGRAM], env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert logging.getLevelName(logging.WARNING) in done.stderr
    assert "is compiled in each process" in done.stderr
