"""Tests of the demo's stages.

One process writes them and another one reads them. They are shown with and without Spark's start.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from millrace_streams.demo.report import print_steps
from millrace_streams.demo.stages import SPARK, StageEvent, StageReader, StageReporter
from millrace_streams.demo.view import StageView


def test_a_reader_gets_each_event_once_and_no_unfinished_line(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    reader = StageReader(path)
    assert reader.read() == []
    with StageReporter(path).stage("ingest flights") as add_rows:
        add_rows(3)
        add_rows(4)
    assert [(event.rows, event.is_done) for event in reader.read()] == [(0, False), (3, False), (7, False), (7, True)]
    assert reader.read() == []
    with path.open("a") as file:
        file.write('{"stage": "ingest wea')
    assert reader.read() == []
    with path.open("a") as file:
        file.write('ther", "rows": 5}\n')
    assert reader.read() == [StageEvent(stage="ingest weather", rows=5)]


def test_a_stage_that_fails_does_not_end(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError("disk")

    path = tmp_path / "progress.jsonl"
    with pytest.raises(OSError, match="disk"), StageReporter(path).stage("ingest flights"):
        fail()
    assert not any(event.is_done for event in StageReader(path).read())


def test_rows_per_second_are_given_without_and_with_the_start_of_spark() -> None:
    printed = io.StringIO()
    finished = [
        StageEvent(stage="load flights", rows=1000, seconds=2.0, is_done=True),
        StageEvent(stage=SPARK, seconds=4.0, is_done=True),
        StageEvent(stage="ingest flights", rows=1000, seconds=1.0, is_done=True),
        StageEvent(stage="ingest weather", rows=0, seconds=1.0, is_done=True),
    ]
    print_steps(Console(file=printed, width=140), finished)
    lines = {line.split("│")[1].strip(): line.split("│") for line in printed.getvalue().splitlines() if "│" in line}
    assert [cell.strip() for cell in lines["load flights"][4:6]] == ["500", ""]
    assert [cell.strip() for cell in lines["ingest flights"][4:6]] == ["1,000", "200"]
    assert lines["ingest weather"][4].strip() == "nothing new"


def test_without_a_terminal_a_line_says_each_start_and_each_end() -> None:
    printed = io.StringIO()
    console = Console(file=printed, width=140)
    with StageView(console, {"load flights": ("Arrow tables into a topic", 10), "ingest flights": ("", 10)}) as view:
        view.show(StageEvent(stage="load flights"))
        view.show(StageEvent(stage="load flights", rows=10, seconds=1.0))
        view.show(StageEvent(stage="load flights", rows=10, seconds=1.0, is_done=True))
        view.show(StageEvent(stage="ingest flights", is_done=True))
    assert printed.getvalue().splitlines() == [
        "▸ load flights",
        "✓ load flights: 10 rows, in 1.0 s",
        "▸ ingest flights",
        "✓ ingest flights: nothing new, in 0.0 s",
    ]
    assert [event.stage for event in view.finished] == ["load flights", "ingest flights"]
