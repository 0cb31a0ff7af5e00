"""Packed results of a micro-batch, counted and unpacked per sink.

The task must run exactly once and completely, whatever the sinks read, because that run commits its state. So the
packed rows are persisted, and read once here. Small results are collected into the driver and unpacked there, because a
Spark job per sink would take most of a small micro-batch's time. Tasks unpack larger results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from millrace_streams.compiler import Plan
from millrace_streams.graph import DeltaSinkNode
from millrace_streams.layout import Layout
from millrace_streams.runners.dead_letters import DEAD_LETTERS
from millrace_streams.runners.output import address, arrow_schema, spark_schema
from millrace_streams.runners.packed_rows import OUT, Unpacker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_DRIVER_BYTES_MAX: Final = 8 * 2**20
"""Most payload bytes of topics' records that are collected into the driver.

A task over a ``DataFrame`` may have records of all buckets, and give as much by itself.
"""
LOCAL_ROWS_BYTES_MAX: Final = 64 * 2**10
"""Largest Arrow size of driver rows that become part of a plan, because each rule of Spark's planner visits them.

Larger rows go to a task in Arrow. Rows in a plan are collected without a job.
"""
LEAF_PARTITIONS: Final = "spark.sql.leafNodeDefaultParallelism"
"""Spark's setting for the number of partitions of small driver tables."""
_PAYLOADS: Final = pa.schema([("payload", pa.binary())])

Records = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Converts batches of packed payloads to rows, as for ``mapInArrow``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of input records, output rows and dropped records.

    The output rows are counted by sink node; dead letters are counted among them.
    """

    records: int
    rows: Mapping[str, int]
    dropped: int

    def by_name(self, plan: Plan) -> dict[str, int]:
        """Return the rows by Delta table and topic; a topic with a table's name gets the prefix ``topic``."""
        found: dict[str, int] = {}
        for node in plan.outputs:
            name = address(node)
            if name in plan.topology.tables and not isinstance(node, DeltaSinkNode):
                name = f"topic {name}"
            found[name] = found.get(name, 0) + self.rows[node.name]
        return found


@dataclass(frozen=True, slots=True)
class Results:
    """Persisted output of a run, as packed rows.

    ``frame`` has the packed rows. ``payloads`` has the targets whose rows are completely in the driver.
    """

    frame: DataFrame
    counts: Counts
    payloads: Mapping[str, list[bytes]]

    @classmethod
    def of(cls, frame: DataFrame, plan: Plan, buckets: int) -> Results:
        """Run the task: count the output, and collect small results."""
        names = [*(node.name for node in plan.outputs), DEAD_LETTERS]
        # A usual micro-batch has a task for each bucket of each source. No more tasks are collected, and of each only
        # the first piece, because a long run has any number of both.
        tasks_max = buckets * len(plan.readers)
        bytes_max = _DRIVER_BYTES_MAX // (len(names) * tasks_max)
        is_little = f"is_first AND spark_partition_id() < {tasks_max} AND length(payload) <= {bytes_max}"
        little = f"CASE WHEN {is_little} THEN payload END AS payload"
        rows = frame.selectExpr("target", "rows", "records", "dropped", little).toArrow()
        counted = rows.group_by("target").aggregate([("rows", "sum")]).to_pylist()
        found = {row["target"]: row["rows_sum"] for row in counted}
        counts = Counts(
            records=sum(rows["records"].to_pylist()),
            rows={name: found.get(name, 0) for name in names},
            dropped=sum(rows["dropped"].to_pylist()),
        )
        return cls(frame, counts, _whole(rows, names))

    def mapped(self, target: str, function: Records, schema: StructType) -> DataFrame:
        """Apply a function to a target's payloads; those of a bucket are in order."""
        if target not in self.payloads:
            packed = self.frame.where((self.frame["stage"] == OUT) & (self.frame["target"] == target))
            return packed.select("payload").mapInArrow(function, schema)
        payloads = pa.array(self.payloads[target], pa.binary())
        batches = function(iter([pa.RecordBatch.from_arrays([payloads], schema=_PAYLOADS)]))
        # PySpark's conversion refuses lists with nulls that begin within an Arrow buffer, as those of a slice do.
        table = pa.Table.from_batches(batches, arrow_schema(schema)).combine_chunks()
        spark = self.frame.sparkSession
        rows = spark.createDataFrame(table, schema)
        # Default partitioning would write it in parallel; an undivided table is collected without a job.
        return rows if spark.conf.get(LEAF_PARTITIONS, None) == "1" else rows.coalesce(1)

    def unpacked(self, sink: str, layout: Layout, reserved: tuple[str, ...] = ()) -> DataFrame:
        """Return the rows of a sink, with the given reserved columns."""
        schema = spark_schema(layout, reserved)
        return self.mapped(sink, Unpacker(arrow_schema(schema)), schema)


def _whole(rows: pa.Table, names: list[str]) -> dict[str, list[bytes]]:
    """Return the payloads of targets without a payload over the limit."""
    payloads: dict[str, list[bytes]] = {name: [] for name in names}
    for target, payload in zip(rows["target"].to_pylist(), rows["payload"].to_pylist(), strict=True):
        if payload is None:
            payloads.pop(target, None)
        elif target in payloads:
            payloads[target].append(payload)
    return payloads
