"""Splits by reference: rows that describe splits, which a later task reads.

A stateful query shuffles its input, so each record passes the JVM twice. With ``byReference`` only a few hundred bytes
per split go through the shuffle. The task behind the shuffle reads the log itself, as a task of the source would. A
micro-batch can read the log again at any time, so this is safe.

Invariant: a reference holds offsets, file locations and schemas, but no options. Options may be secret, and shuffle
rows are written to disk.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from pyspark_millrace.planning.splits import STREAM_SIZING
from pyspark_millrace.reading.task_planning import plan_tasks
from pyspark_millrace.reading.tasks import SplitTask, read_task

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_millrace.options.source import SourceOptions
    from pyspark_millrace.planning.broker_client import BrokerClient
    from pyspark_millrace.planning.offsets import OffsetRange
    from pyspark_millrace.reading.layout import ReadLayout


class ReferenceTask(InputPartition):  # type: ignore[misc]  # pyspark is not typed here
    """The single task that yields the references of all splits."""

    def __init__(self, splits: Sequence[SplitTask]) -> None:
        self.splits = splits


def plan_references(
    client: BrokerClient,
    ranges: Sequence[OffsetRange],
    schemas: Mapping[int, pa.Schema],
    options: SourceOptions,
    layout: ReadLayout,
) -> list[ReferenceTask]:
    """Locate ranges and make one task of their references.

    A range is usually one split, because the task that keeps a partition's state reads all of it. Raises
    ``OffsetsLostError`` for lost records, unless losses are accepted; then they are logged.
    """
    large = replace(options, split_bytes=options.split_bytes or STREAM_SIZING.bytes_max)
    return [ReferenceTask(plan_tasks(client, ranges, schemas, large, STREAM_SIZING, layout.row_filter))]


def references(task: InputPartition, layout: ReadLayout) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``REFERENCE_DDL``, one for each split."""
    import pyarrow as pa

    if not isinstance(task, ReferenceTask):
        # Spark plans one empty task if there is nothing to read.
        return
    ranges = [split.split.range for split in task.splits]
    columns = [
        pa.array([each.key.topic for each in ranges], pa.string()),
        pa.array([each.key.partition for each in ranges], pa.int32()),
        pa.array([each.start for each in ranges], pa.int64()),
        pa.array([pickle.dumps((split, layout)) for split in task.splits], pa.binary()),
    ]
    yield pa.RecordBatch.from_arrays(columns, names=["topic", "partition", "offset", "reference"])


def read_reference(reference: bytes, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Read the split of a reference; ``options`` are those of its planning."""
    split, layout = pickle.loads(reference)
    return read_task(split, layout, replace(options, by_reference=False))
