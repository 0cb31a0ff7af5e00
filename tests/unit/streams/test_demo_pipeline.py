"""Tests of the command line of the demo's Spark process.

The process accepts the demo's arguments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from millrace_streams.demo import pipeline
from millrace_streams.demo.processes import pipeline_arguments


def test_the_spark_process_gets_each_topic_and_all_of_its_places(tmp_path: Path, monkeypatch: Any) -> None:
    reached: dict[str, Any] = {}

    class BegunError(Exception):
        """A signal that the process has read its command line."""

    def reporter(progress: Path) -> Any:
        reached["progress"] = progress
        raise BegunError

    monkeypatch.setattr(pipeline, "StageReporter", reporter)
    words = pipeline_arguments(
        "h:1",
        tmp_path,
        topology=Path("hours.py"),
        topics=["flights", "weather"],
        begin=tmp_path / "begin",
        progress=tmp_path / "progress.jsonl",
    )
    assert words.count("--topic") == 2
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(pipeline.main)
    with pytest.raises(BegunError):
        app(args=words)
    assert reached == {"progress": tmp_path / "progress.jsonl"}
