"""Tests of checkpoints on a file system that only Spark reaches.

A topology's checkpoint is checked at the start, and queried. Hadoop's view file system stands for any: it is opened by
URI, and has directories behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from millrace.errors import EnvironmentProblemError, UsageError
from millrace_streams import IncompatibleStateError, StreamsBuilder, Topology, run_stream
from millrace_streams.checkpoints.files import HadoopFiles, checkpoint_files
from millrace_streams.cli.streams import app
from millrace_streams.queries import open_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COLUMNS = "key STRING, value BIGINT, __offset BIGINT, __timestamp TIMESTAMP"
AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def elsewhere(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """Return the root of a view file system whose content is in ``tmp_path / "behind"``."""
    (tmp_path / "behind").mkdir()
    name = f"t{abs(hash(tmp_path))}"
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[union-attr]
    link = f"fs.viewfs.mounttable.{name}.link./data"
    hadoop.set(link, (tmp_path / "behind").as_uri())
    yield f"viewfs://{name}/data"
    hadoop.unset(link)


def counting(store: str = "counts") -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("words", key_columns=["key"])
    words.group_by_key().count(store=store).to_delta("counts")
    return builder.build()


def run(spark: SparkSession, directory: Path, topology: Topology, checkpoint: str, words: str) -> None:
    source = directory / "words"
    known = len(list(source.glob("*.parquet"))) if source.exists() else 0
    rows = [(word, 1, 1000 * known + place, AT) for place, word in enumerate(words.split())]
    spark.createDataFrame(rows, COLUMNS).coalesce(1).write.mode("append").parquet(str(source))
    run_stream(
        topology,
        spark,
        inputs={"words": spark.readStream.schema(COLUMNS).parquet(str(source))},
        checkpoint=checkpoint,
        tables=str(directory / "counts"),
        available_now=True,
    ).awaitTermination()


def test_a_checkpoint_elsewhere_is_checked_and_read(spark: SparkSession, elsewhere: str, tmp_path: Path) -> None:
    checkpoint = f"{elsewhere}/checkpoint"
    run(spark, tmp_path, counting(), checkpoint, "a b a")
    assert (tmp_path / "behind" / "checkpoint" / "_millrace" / "topology.json").is_file()
    with open_state(checkpoint, spark=spark) as state:
        assert {entry.key: entry.value for entry in state.store("counts").all()} == {"a": 2, "b": 1}
        assert state.checkpoint == checkpoint
    listed = CliRunner().invoke(app, ["query", "counts", "-c", checkpoint, "--key", "a", "--format", "csv"])
    assert listed.stdout.splitlines()[1].startswith("a,2,")
    assert "counts" in CliRunner().invoke(app, ["stores", "-c", checkpoint]).stdout
    with pytest.raises(IncompatibleStateError, match=r"its store counts is now called others: set"):
        run(spark, tmp_path, counting("others"), checkpoint, "c")
    run(spark, tmp_path, counting(), checkpoint, "c a")
    with open_state(checkpoint, spark=spark) as state:
        assert state.batch_id > 0
        assert state.store("counts").get("a") == 3


def test_files_elsewhere_are_written_whole_and_problems_named(
    spark: SparkSession, elsewhere: str, tmp_path: Path
) -> None:
    files = checkpoint_files(f"{elsewhere}/c/", spark)
    assert isinstance(files, HadoopFiles)
    assert (files.location, files.names("no"), files.read("no/file")) == (f"{elsewhere}/c", [], None)
    for text in ("ä\n", "{}"):
        files.write("sub/file", text)
        assert (files.names("sub"), files.read("sub/file")) == (["file"], text)
    with pytest.raises(EnvironmentProblemError, match=r"viewfs://nowhere/c/ cannot be opened: .*nowhere"):
        checkpoint_files("viewfs://nowhere/c", spark)
    with pytest.raises(EnvironmentProblemError, match=r"/c/sub cannot be read: "):
        files.read("sub")
    with pytest.raises(UsageError, match="is not the checkpoint of a topology"), open_state(elsewhere, spark=spark):
        pass
    with pytest.raises(UsageError, match="Spark alone reaches this file system: give a session"):
        checkpoint_files(elsewhere, None)
