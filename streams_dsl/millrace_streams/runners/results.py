"""What left a topology in a micro-batch or a batch job: packed rows, counted, and unpacked for each sink.

The task must run once and whole, whatever the sinks read of it, for its state is committed by that run; so results are
read once, here, and are persisted by then. What is little comes along into the driver and is unpacked there: a job of
Spark's for each sink is most of a small micro-batch's time. What is more is unpacked by tasks.
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
"""How many bytes of payloads come into the driver at most."""
LOCAL_ROWS_BYTES_MAX: Final = 64 * 2**10
"""How large rows of the driver may be, in Arrow, to be part of a plan; each rule of Spark's planning visits them.

Larger ones go to a task as they are, in Arrow; those that are part of a plan are collected without a job.
"""
LEAF_PARTITIONS: Final = "spark.sql.leafNodeDefaultParallelism"
"""Spark's setting of how many partitions small tables of the driver are cut into."""
_PAYLOADS: Final = pa.schema([("payload", pa.binary())])

Records = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Takes batches of packed payloads and gives rows; as for ``mapInArrow``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Records that went in, rows that came out by the node of their sink (dead letters too), records dropped."""

    records: int
    rows: Mapping[str, int]
    dropped: int

    def by_name(self, plan: Plan) -> dict[str, int]:
        """Rows by Delta table and topic; a topic that has a table's name is told from it."""
        found: dict[str, int] = {}
        for node in plan.outputs:
            name = address(node)
            if name in plan.topology.tables and not isinstance(node, DeltaSinkNode):
                name = f"topic {name}"
            found[name] = found.get(name, 0) + self.rows[node.name]
        return found


@dataclass(frozen=True, slots=True)
class Results:
    """Packed rows ``frame``, persisted; ``payloads`` has those of the targets that are whole in the driver."""

    frame: DataFrame
    counts: Counts
    payloads: Mapping[str, list[bytes]]

    @classmethod
    def of(cls, frame: DataFrame, plan: Plan, buckets: int) -> Results:
        """Run the task: count what came out, and take along what is little."""
        names = [*(node.name for node in plan.outputs), DEAD_LETTERS]
        # Each bucket has a row for each target at least, of which some may be as large as this.
        bytes_max = _DRIVER_BYTES_MAX // (len(names) * buckets)
        little = f"CASE WHEN length(payload) <= {bytes_max} THEN payload END AS payload"
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
        """What a function makes of a target's payloads, those of a bucket in their order."""
        if target not in self.payloads:
            return self._packed(target).mapInArrow(function, schema)
        payloads = pa.array(self.payloads[target], pa.binary())
        batches = function(iter([pa.RecordBatch.from_arrays([payloads], schema=_PAYLOADS)]))
        table = pa.Table.from_batches(batches, arrow_schema(schema))
        spark = self.frame.sparkSession
        rows = spark.createDataFrame(table, schema)
        # Cut into partitions, as by default, it would be written side by side. Uncut, it is collected without a job.
        return rows if spark.conf.get(LEAF_PARTITIONS, None) == "1" else rows.coalesce(1)

    def unpacked(self, sink: str, layout: Layout, reserved: tuple[str, ...] = ()) -> DataFrame:
        """The rows of a sink, with those of the reserved columns that its rows have."""
        schema = spark_schema(layout, reserved)
        return self.mapped(sink, Unpacker(arrow_schema(schema)), schema)

    def _packed(self, target: str) -> DataFrame:
        return self.frame.where((self.frame["stage"] == OUT) & (self.frame["target"] == target)).select("payload")


def _whole(rows: pa.Table, names: list[str]) -> dict[str, list[bytes]]:
    """The payloads of the targets of which none was too large."""
    payloads: dict[str, list[bytes]] = {name: [] for name in names}
    for target, payload in zip(rows["target"].to_pylist(), rows["payload"].to_pylist(), strict=True):
        if payload is None:
            payloads.pop(target, None)
        elif target in payloads:
            payloads[target].append(payload)
    return payloads
