"""The stores of a checkpoint as they were after a batch, read by Spark's own state reader.

A checkpoint may be read while its query runs: Spark keeps the state of the last hundred batches or so, and a reader
changes nothing. One store is read as a whole, by one small job of Spark; without a session one is begun, which takes
a few seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.errors import UsageError
from millrace_streams.checkpoints.manifest import Manifest, read_manifest
from millrace_streams.checkpoints.stores import StoreDescription
from millrace_streams.graph.store_names import PAGES, state_name
from millrace_streams.runners.state import kept_rows, store_over
from millrace_streams.state.pages import Page
from millrace_streams.state.variables import MemoryVariables
from millrace_streams.steps.operator import AnyStore
from pyspark_millrace.checkpoints.query_log import checkpoint_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STATE_FORMAT: Final = "statestore"


def manifest_of(checkpoint: str | Path) -> Manifest:
    """What a checkpoint says of its topology. Raises ``UsageError`` for a directory that is no such checkpoint."""
    directory = checkpoint_directory(checkpoint)
    manifest = read_manifest(directory)
    if manifest is None:
        raise UsageError(f"{directory} is not the checkpoint of a topology: give what run_stream has as checkpoint")
    return manifest


def committed_batch(checkpoint: Path, wanted: int | None = None) -> int:
    """The batch whose state is read: the last one that is done, or the one wanted.

    Raises ``UsageError`` for one that is not done, or is no longer known, and where none is.
    """
    done = sorted(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*") if path.name.isdecimal())
    if not done:
        raise UsageError(f"{checkpoint}: the query has finished no batch yet, so there is no state to read")
    if wanted is None:
        return done[-1]
    if wanted not in done:
        raise UsageError(f"{checkpoint}: batch {wanted} has no state to read: there is that of {done[0]} to {done[-1]}")
    return wanted


def read_store(spark: SparkSession, checkpoint: Path, described: StoreDescription, batch: int) -> dict[int, AnyStore]:
    """A store as it was after a batch, by bucket; of one that each bucket holds whole, one bucket's."""
    # Chunks as a list, for their order counts.
    logs = _variable(spark, checkpoint, described, batch, state_name(described.name)).selectExpr(
        "key.*", "list_value.chunk"
    )
    if described.everywhere:
        logs = logs.orderBy(logs.columns[0]).limit(1)
    kept = {row[0]: MemoryVariables([bytes(chunk) for chunk in row[1]]) for row in logs.collect()}
    pages = _variable(spark, checkpoint, described, batch, PAGES).selectExpr("key.*", "explode(map_value)")
    for bucket, page, chunk in pages.where(pages["key"]["store"] == described.name).collect():
        if bucket in kept:
            kept[bucket].pages[Page(page["slot"], page["part"])] = bytes(chunk[0])
    return {
        bucket: store_over(described.spec, kept_rows(described.spec, variables)) for bucket, variables in kept.items()
    }


def _variable(spark: SparkSession, checkpoint: Path, described: StoreDescription, batch: int, name: str) -> DataFrame:
    """A state variable of the stage that keeps a store, by bucket."""
    return (
        spark.read.format(_STATE_FORMAT)
        .option("operatorId", _operator_of(checkpoint, described))
        .option("stateVarName", name)
        .option("batchId", batch)
        .option("flattenCollectionTypes", "false")
        .load(str(checkpoint))
    )


def _operator_of(checkpoint: Path, described: StoreDescription) -> int:
    """The number that Spark gave to the stage that keeps a store."""
    for path in sorted((checkpoint / "state").glob("*/_metadata/v2/*")):
        if path.name.isdecimal():
            [_, content] = path.read_text(encoding="utf-8").split("\n", 1)
            operator = json.loads(content)
            variables = json.loads(operator["operatorPropertiesJson"])["stateVariables"]
            if any(variable["stateName"] == state_name(described.name) for variable in variables):
                return int(operator["operatorInfo"]["operatorId"])
    raise UsageError(
        f"{checkpoint} has no state of the store {described.name}: the query has finished no batch with it"
    )


@contextmanager
def reading_session(spark: SparkSession | None) -> Iterator[SparkSession]:
    """The session given, the active one, or one that ends with the reading."""
    from pyspark.sql import SparkSession as Session

    active = spark or Session.getActiveSession()
    if active is not None:
        yield active
        return
    from pyspark_millrace import session

    begun = session("millrace streams", master="local[1]", delta=False)
    begun.sparkContext.setLogLevel("ERROR")
    try:
        yield begun
    finally:
        begun.stop()
