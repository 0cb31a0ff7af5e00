"""The stores of a checkpoint as they were after a batch, read by Spark's own state reader.

A checkpoint may be read while its query runs: Spark keeps the state of the last hundred batches or so, and a reader
changes nothing. One store is read as a whole, by one small job of Spark; without a session one is begun, which takes
a few seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from millrace.errors import UsageError
from millrace_streams.checkpoints.files import CheckpointFiles
from millrace_streams.checkpoints.manifest import Manifest, read_manifest
from millrace_streams.checkpoints.stores import StoreDescription
from millrace_streams.graph.store_names import PAGES, state_name
from millrace_streams.state.pages import Page
from millrace_streams.state.variables import MemoryVariables
from millrace_streams.steps.operator import AnyStore
from millrace_streams.steps.packed_state import kept_rows, store_over

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STATE_FORMAT: Final = "statestore"


def manifest_of(files: CheckpointFiles) -> Manifest:
    """What a checkpoint says of its topology. Raises ``UsageError`` for a directory that is no such checkpoint."""
    manifest = read_manifest(files)
    if manifest is None:
        raise UsageError(
            f"{files.location} is not the checkpoint of a topology: give what run_stream has as checkpoint"
        )
    return manifest


def committed_batch(files: CheckpointFiles, wanted: int | None = None) -> int:
    """The batch whose state is read: the last one that is done, or the one wanted.

    Raises ``UsageError`` for one that is not done, or is no longer known, and where none is.
    """
    done = sorted(int(name) for name in files.names("commits") if name.isdecimal())
    if not done:
        raise UsageError(f"{files.location}: the query has finished no batch yet, so there is no state to read")
    if wanted is None:
        return done[-1]
    if wanted not in done:
        raise UsageError(
            f"{files.location}: batch {wanted} has no state to read: there is that of {done[0]} to {done[-1]}"
        )
    return wanted


def read_store(
    spark: SparkSession, files: CheckpointFiles, described: StoreDescription, batch: int
) -> dict[int, AnyStore]:
    """A store as it was after a batch, by bucket; of one that each bucket holds whole, one bucket's."""
    # Chunks as a list, for their order counts.
    logs = _variable(spark, files, described, batch, state_name(described.name)).selectExpr("key.*", "list_value.chunk")
    if described.everywhere:
        logs = logs.orderBy(logs.columns[0]).limit(1)
    kept = {row[0]: MemoryVariables([bytes(chunk) for chunk in row[1]]) for row in logs.collect()}
    pages = _variable(spark, files, described, batch, PAGES).selectExpr("key.*", "explode(map_value)")
    for bucket, page, chunk in pages.where(pages["key"]["store"] == described.name).collect():
        if bucket in kept:
            kept[bucket].pages[Page(page["slot"], page["part"])] = bytes(chunk[0])
    return {
        bucket: store_over(described.spec, kept_rows(described.spec, variables)) for bucket, variables in kept.items()
    }


def _variable(
    spark: SparkSession, files: CheckpointFiles, described: StoreDescription, batch: int, name: str
) -> DataFrame:
    """A state variable of the stage that keeps a store, by bucket."""
    return (
        spark.read.format(_STATE_FORMAT)
        .option("operatorId", _operator_of(files, described))
        .option("stateVarName", name)
        .option("batchId", batch)
        .option("flattenCollectionTypes", "false")
        .load(files.location)
    )


def _operator_of(files: CheckpointFiles, described: StoreDescription) -> int:
    """The number that Spark gave to the stage that keeps a store."""
    for operator in _operators(files):
        variables = json.loads(operator["operatorPropertiesJson"])["stateVariables"]
        if any(variable["stateName"] == state_name(described.name) for variable in variables):
            return int(operator["operatorInfo"]["operatorId"])
    raise UsageError(
        f"{files.location} has no state of the store {described.name}: the query has finished no batch with it"
    )


def _operators(files: CheckpointFiles) -> Iterator[dict[str, Any]]:
    """What Spark says of the stages that keep state."""
    for number in files.names("state"):
        directory = f"state/{number}/_metadata/v2"
        for batch in files.names(directory):
            text = files.read(f"{directory}/{batch}") if batch.isdecimal() else None
            # A version comes first, in a line of its own; one that Spark purged meanwhile is not there.
            if text is not None:
                yield json.loads(text.partition("\n")[2])


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
