"""Rebuild of a changed topology's state from the source topics.

The topology runs in a separate checkpoint, from the earliest records to the offsets of the old checkpoint. Its results
are discarded, because tables and topics have those of the old topology. Then the new checkpoint replaces the old one. A
rebuild that was killed at any step resumes when it is started again. Until the swap the old checkpoint is unchanged.

Records that topics no longer retain are not in the rebuilt state, as in a new application.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millrace.clients.model import TopicPartition
from millrace.errors import UsageError
from millrace_streams.checkpoints.compatibility import admit
from millrace_streams.checkpoints.files import MountedFiles
from millrace_streams.checkpoints.manifest import Manifest
from millrace_streams.checkpoints.swap import stopped_checkpoint, swap
from millrace_streams.graph import Topology
from millrace_streams.runners.sinks import Sinks, writers_of
from millrace_streams.runners.source import Job, JobInputs, admin_client
from millrace_streams.runners.streaming_query import BatchReport, start
from pyspark_millrace.checkpoints.query_log import Checkpoint, checkpoint_directory
from pyspark_millrace.checkpoints.reset import offsets_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMAS: Final = re.compile(r'file:[^"]*?(/state/[0-9]+/_stateSchema/)')


def rebuild(
    topology: Topology,
    spark: SparkSession,
    *,
    checkpoint: str | Path,
    bootstrap_servers: str,
    now: datetime,
    options: Mapping[str, Any] | None = None,
    puts_aside: bool = False,
    on_batch: Callable[[BatchReport], None] | None = None,
) -> Path:
    """Rebuild the state of a stopped query's checkpoint; returns the new location of the old checkpoint.

    ``puts_aside`` leaves out records that fail, as a query with dead letters does. Other arguments are those of
    ``run_stream``. Raises ``UsageError`` if the query runs, advances meanwhile or has an unfinished batch, and the
    errors of ``run_stream``.
    """
    directory = checkpoint_directory(checkpoint)
    old = stopped_checkpoint(directory)
    fresh = directory.with_name(f"{directory.name}.rebuilding")
    client = JobInputs(bootstrap_servers=bootstrap_servers, options=options or {}).client
    assert client is not None
    until = {"streamEndingOffsets": _ends(topology, old, client), "startingOffsets": "earliest"}
    inputs = JobInputs(bootstrap_servers=bootstrap_servers, options={**(options or {}), **until})
    job = Job.prepare(topology, inputs, puts_aside=puts_aside)
    if puts_aside:  # values that cannot be written became dead letters as well
        job = replace(job, writers=writers_of(job.plan, client))
    admit(Manifest.of(job.stages, job.buckets, job.kept_partitions), MountedFiles(fresh))
    _say_where_schemas_lie(fresh, fresh)
    start(job, Sinks({}), spark, checkpoint=str(fresh), available_now=True, on_batch=on_batch).awaitTermination()
    if stopped_checkpoint(directory).newest != old.newest:
        raise UsageError(
            f"the query of {directory} has run another batch meanwhile: stop it, and start the rebuild again"
        )
    _say_where_schemas_lie(fresh, directory)
    return swap(directory, fresh, because="rebuild", now=now)


def _say_where_schemas_lie(checkpoint: Path, place: Path) -> None:
    """Write the location of a checkpoint into its files, because Spark stores absolute paths of the state's schemas."""
    for file in checkpoint.glob("state/*/_metadata/*/[0-9]*"):
        # Hadoop's checksum of the old content would make this file look damaged.
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        text = file.read_text(encoding="utf-8")
        file.write_text(_SCHEMAS.sub(lambda found: f"file:{place}{found[1]}", text), encoding="utf-8")


def _ends(topology: Topology, old: Checkpoint, client: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Return the end offsets of the topology's topics; 0 for partitions that the old query did not read."""
    came_to = offsets_of(old)
    ends: dict[str, dict[str, int]] = {}
    with admin_client(client) as admin:
        for source in topology.sources:
            if not source.broadcast:
                partitions = range(admin.describe_topic(source.topic).num_partitions)
                ends[source.topic] = {
                    str(each): came_to.get(TopicPartition(source.topic, each), 0) for each in partitions
                }
    return ends
