"""Stores of a checkpoint as of a batch.

Spark's state reader reads them. A checkpoint can be read while its query runs: Spark keeps the state of about the last
hundred batches, and a reader changes nothing. A store is read completely by one small Spark job. Without a session a
new one starts, which takes a few seconds.
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
    """Return the manifest of a checkpoint. Raises ``UsageError`` if the directory is no topology's checkpoint."""
    manifest = read_manifest(files)
    if manifest is None:
        raise UsageError(f"{files.location} is not the checkpoint of a topology: give the checkpoint of run_stream")
    return manifest


def committed_batch(files: CheckpointFiles, wanted: int | None = None) -> int:
    """Return the batch whose state is read: the last committed one, or ``wanted``.

    Raises ``UsageError`` if that batch is not committed or no longer available, and if no batch is committed.
    """
    done = sorted(int(name) for name in files.names("commits") if name.isdecimal())
    if not done:
        raise UsageError(f"{files.location}: the query has finished no batch yet, so there is no state to read")
    if wanted is None:
        return done[-1]
    if wanted not in done:
        raise UsageError(
            f"{files.location}: batch {wanted} has no state to read: give a batch from {done[0]} to {done[-1]}"
        )
    return wanted


def read_store(
    spark: SparkSession, files: CheckpointFiles, described: StoreDescription, batch: int
) -> dict[int, AnyStore]:
    """Read a store as of a batch, by bucket; for a store that every bucket holds completely, one bucket's."""
    # Chunks are read as a list, because their order matters.
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
    """Read a state variable of a store's stage, by bucket."""
    return (
        spark.read.format(_STATE_FORMAT)
        .option("operatorId", _operator_of(files, described))
        .option("stateVarName", name)
        .option("batchId", batch)
        .option("flattenCollectionTypes", "false")
        .load(files.location)
    )


def _operator_of(files: CheckpointFiles, described: StoreDescription) -> int:
    """Return Spark's operator id of a store's stage."""
    for operator in _operators(files):
        variables = json.loads(operator["operatorPropertiesJson"])["stateVariables"]
        if any(variable["stateName"] == state_name(described.name) for variable in variables):
            return int(operator["operatorInfo"]["operatorId"])
    raise UsageError(
        f"{files.location} has no state of the store {described.name}: the query has finished no batch with it"
    )


def _operators(files: CheckpointFiles) -> Iterator[dict[str, Any]]:
    """Yield Spark's metadata of the stateful operators."""
    for number in files.names("state"):
        directory = f"state/{number}/_metadata/v2"
        for batch in files.names(directory):
            text = files.read(f"{directory}/{batch}") if batch.isdecimal() else None
            # The version is on the first line; a file that Spark purged meanwhile is missing.
            if text is not None:
                yield json.loads(text.partition("\n")[2])


def active_session(spark: SparkSession | None) -> SparkSession | None:
    """Return the given session, or the active one; None if there is none."""
    from pyspark.sql import SparkSession as Session

    return spark or Session.getActiveSession()


@contextmanager
def reading_session(spark: SparkSession | None) -> Iterator[SparkSession]:
    """Yield the given session, the active one, or a temporary one."""
    active = active_session(spark)
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
