"""State made anew from the source topics, for a changed topology to go on with where the old one was.

The topology runs in a checkpoint of its own, from the earliest records to the very offsets that the old checkpoint came
to, and its results go nowhere: tables and topics have those of the old one. Then the new checkpoint takes the old one's
place. Killed at any step, a rebuild that is started again goes on where it was; until the swap the old checkpoint is
untouched.

What topics no longer retain is in no rebuilt state, as it is in no new application's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millrace.clients import Admin
from millrace.clients.model import TopicPartition
from millrace.errors import UsageError
from millrace_streams.checkpoints.compatibility import admit
from millrace_streams.checkpoints.files import MountedFiles
from millrace_streams.checkpoints.manifest import Manifest
from millrace_streams.checkpoints.swap import stopped_checkpoint, swap
from millrace_streams.graph import Topology
from millrace_streams.runners.sinks import Sinks, writers_of
from millrace_streams.runners.source import Job, JobInputs
from millrace_streams.runners.stream import BatchReport, start
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
    """Make the state of a stopped query's checkpoint anew; gives where the old checkpoint is kept.

    ``puts_aside`` leaves out records that fail, as a query with dead letters does. Other arguments are those of
    ``run_stream``. Raises ``UsageError`` for a query that runs, goes on meanwhile or has not finished its last batch,
    and what ``run_stream`` raises.
    """
    directory = checkpoint_directory(checkpoint)
    old = stopped_checkpoint(directory)
    fresh = directory.with_name(f"{directory.name}.rebuilding")
    until = {"streamEndingOffsets": _ends(topology, old, bootstrap_servers), "startingOffsets": "earliest"}
    inputs = JobInputs(bootstrap_servers=bootstrap_servers, options={**(options or {}), **until})
    job = Job.prepare(topology, inputs, puts_aside=puts_aside)
    if puts_aside:  # what cannot be written was put aside as well
        job = replace(job, writers=writers_of(job.plan, bootstrap_servers))
    admit(Manifest.of(job.stages, job.buckets), MountedFiles(fresh))
    _say_where_schemas_lie(fresh, fresh)
    start(job, Sinks({}), spark, checkpoint=str(fresh), available_now=True, on_batch=on_batch).awaitTermination()
    if stopped_checkpoint(directory).newest != old.newest:
        raise UsageError(f"the query of {directory} has gone on meanwhile: stop it, and start the rebuild again")
    _say_where_schemas_lie(fresh, directory)
    return swap(directory, fresh, because="rebuild", now=now)


def _say_where_schemas_lie(checkpoint: Path, place: Path) -> None:
    """Write the place of a checkpoint into its files: Spark keeps whole paths of the schemas of state."""
    for file in checkpoint.glob("state/*/_metadata/*/[0-9]*"):
        # Hadoop's checksum of what was there before would make this one look damaged.
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        text = file.read_text(encoding="utf-8")
        file.write_text(_SCHEMAS.sub(lambda found: f"file:{place}{found[1]}", text), encoding="utf-8")


def _ends(topology: Topology, old: Checkpoint, bootstrap_servers: str) -> dict[str, dict[str, int]]:
    """Where each partition of the topology's topics must be read to: nowhere, where the old query was not."""
    came_to = offsets_of(old)
    ends: dict[str, dict[str, int]] = {}
    with Admin({"bootstrap.servers": bootstrap_servers}) as admin:
        for source in topology.sources:
            if not source.broadcast:
                partitions = range(admin.describe_topic(source.topic).num_partitions)
                ends[source.topic] = {
                    str(each): came_to.get(TopicPartition(source.topic, each), 0) for each in partitions
                }
    return ends
