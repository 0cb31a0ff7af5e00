"""Where a Spark runner's records come from: topics through ``format("millrace")``, or any DataFrame.

From a topic, columns are pushed down by the option ``columns`` and the reader's part of the plan runs inside the
source's own ``read()``, by the option ``transform``: only packed rows cross into the JVM. A DataFrame given instead
must have the plan's columns, ``__offset`` (a long that gives the order of records within a partition) and, unless the
topology takes event time from a column, ``__timestamp``; without ``__partition`` all records are of one partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from millrace.errors import UnknownTopicOrPartitionError, UsageError
from millrace_streams.compiler import Plan, compile_topology
from millrace_streams.compiler.plan import SourceReader
from millrace_streams.errors import TopologyError, UnsupportedTopologyError
from millrace_streams.graph import AggregateNode, SourceNode, TopicSinkNode, Topology
from millrace_streams.layout import OPAQUE_SHAPE, TopicShape
from millrace_streams.runners.packing import PACKED_DDL, ROWS_PER_PAYLOAD, Packer
from millrace_streams.steps.batch import OFFSET, PARTITION, SEQUENCE, TIMESTAMP
from millrace_streams.steps.reader import Reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a runner reads: topics of a cluster, or DataFrames in the place of topics.

    ``options`` are further options of ``format("millrace")``, such as ``maxOffsetsPerTrigger`` or
    ``startingTimestamp``.
    """

    bootstrap_servers: str | None = None
    frames: Mapping[str, DataFrame] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def shape_of(self, topic: str, declared_key: tuple[str, ...] | None) -> tuple[TopicShape, int | None]:
        """Columns and key of a topic, and its number of partitions if that is known.

        Raises ``UsageError`` when neither a cluster nor a DataFrame was given, and what the admin client raises.
        """
        if topic in self.frames:
            return _frame_shape(self.frames[topic], declared_key), None
        if self.bootstrap_servers is None:
            raise UsageError(
                f"nothing to read {topic} from: give bootstrap_servers, or inputs={{{topic!r}: DataFrame}}"
            )
        from millrace.clients import Admin

        with Admin({"bootstrap.servers": self.bootstrap_servers}) as admin:
            found = admin.describe_topic(topic)
        if found.schema is None:
            return OPAQUE_SHAPE, found.num_partitions
        return TopicShape(schema=found.schema, key_columns=found.key_columns), found.num_partitions


@dataclass(frozen=True, kw_only=True)
class Job:
    """A compiled topology with its inputs. ``partitions``: of the source topic, None when not known."""

    plan: Plan
    inputs: Inputs
    partitions: int | None

    @classmethod
    def prepare(cls, topology: Topology, inputs: Inputs) -> Job:
        """Find the topics' shapes, compile, and refuse what Spark cannot run yet.

        Raises ``TopologyError``, ``UnsupportedTopologyError``, ``UnknownTopicOrPartitionError`` and the client's
        errors.
        """
        shapes: dict[str, TopicShape] = {}
        partitions: int | None = None
        for source in topology.sources:
            try:
                shapes[source.topic], found = inputs.shape_of(source.topic, source.key_columns)
            except UnknownTopicOrPartitionError as error:
                raise UnknownTopicOrPartitionError(f"{source.name}: {error.message}") from error
            if source.serdes is not None and not shapes[source.topic].scalar and source.topic not in inputs.frames:
                raise TopologyError(
                    f"{source.name}: {source.topic} is a typed topic, which key= and value= cannot read: leave them out"
                )
            if found is not None and not source.broadcast:
                _check_partitions(source, found, partitions)
                partitions = found
        plan = compile_topology(topology, shapes)
        _check_for_spark(plan)
        return cls(plan=plan, inputs=inputs, partitions=partitions)

    def packed(self, spark: SparkSession, *, streaming: bool, defaults: Mapping[str, str]) -> DataFrame:
        """The source's records as packed rows. ``defaults`` are source options that the caller may override."""
        frames = [
            self._packed(spark, number, reader, streaming=streaming, defaults=defaults)
            for number, reader in enumerate(self.plan.readers)
        ]
        return reduce(lambda one, other: one.unionByName(other), frames)

    def _packed(
        self, spark: SparkSession, number: int, reader: SourceReader, *, streaming: bool, defaults: Mapping[str, str]
    ) -> DataFrame:
        topic = reader.source.topic
        buckets = self._buckets(reader) if reader.source.broadcast else None
        packer = Packer(Reader(reader.source, reader.layout, reader.operators), number, buckets)
        if topic in self.inputs.frames:
            frame = _with_metadata(self.inputs.frames[topic], reader)
            if not streaming:
                # Runs of one partition must not overlap; a stream's are put in order by the task.
                frame = frame.repartition(PARTITION).sortWithinPartitions(PARTITION, OFFSET)
            return frame.mapInArrow(packer, PACKED_DDL)
        from pyspark_millrace.transform import encode_transform

        columns = [*reader.columns, PARTITION, OFFSET, TIMESTAMP]
        options = {
            "kafka.bootstrap.servers": self.inputs.bootstrap_servers,
            "subscribe": topic,
            "maxRecordsPerBatch": ROWS_PER_PAYLOAD,
            **defaults,
            **self.inputs.options,
            "columns": ",".join(columns),
            "transform": encode_transform(packer),
            "transformSchema": PACKED_DDL,
        }
        stream_or_batch = spark.readStream if streaming else spark.read
        return stream_or_batch.format("millrace").options(**options).load()

    def _buckets(self, reader: SourceReader) -> int:
        """How many buckets a broadcast source's records must go to."""
        if self.partitions is not None:
            return self.partitions
        if any(PARTITION in frame.columns for frame in self.inputs.frames.values()):
            raise TopologyError(
                f"{reader.source.name}: a global table goes to every partition, and how many there are is not known: "
                f"leave the column {PARTITION} out of the DataFrames, or read topics"
            )
        return 1


def _frame_shape(frame: DataFrame, declared_key: tuple[str, ...] | None) -> TopicShape:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema, timezone="UTC")
    columns = pa.schema([column for column in schema if not column.name.startswith("__")])
    return TopicShape(schema=columns, key_columns=declared_key or ())


def _with_metadata(frame: DataFrame, reader: SourceReader) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it

    if OFFSET not in frame.columns:
        raise TopologyError(
            f"{reader.source.name}: the DataFrame needs a long column {OFFSET}, the order of the records in a partition"
        )
    if TIMESTAMP not in frame.columns and reader.source.timestamp is None:
        raise TopologyError(
            f"{reader.source.name}: the DataFrame needs a timestamp column {TIMESTAMP}, or the stream "
            "timestamp=<column>"
        )
    partition = F.col(PARTITION).cast("int") if PARTITION in frame.columns else F.lit(0)
    time = F.col(TIMESTAMP) if TIMESTAMP in frame.columns else F.lit(None)
    return frame.select(
        *reader.columns,
        *([F.col(SEQUENCE).cast("bigint")] if SEQUENCE in frame.columns else []),
        partition.alias(PARTITION),
        F.col(OFFSET).cast("bigint").alias(OFFSET),
        time.cast("timestamp").alias(TIMESTAMP),
    )


def _check_partitions(source: SourceNode, found: int, others: int | None) -> None:
    """Refuse topics that are not partitioned alike: records of one key would lie in different buckets."""
    if others is not None and found != others:
        raise TopologyError(
            f"{source.name}: {source.topic} has {found} partitions, the topology's other topics have {others}: what is "
            "joined or merged must have as many: write it to a topic of as many, or read it as a global table"
        )


def _check_for_spark(plan: Plan) -> None:
    for reader in plan.readers[1:]:
        raise UnsupportedTopologyError(
            f"{reader.source.name}: a topology with a second source ({reader.source.topic}) cannot be run on Spark "
            "yet: build one topology per topic, or run it in the test driver"
        )
    for repartition in plan.repartitions:
        by = ", ".join(repartition.key)
        raise UnsupportedTopologyError(
            f"{repartition.node}: grouping {plan.source.topic} by {by} would move records between partitions, "
            f"which the Spark runners cannot do yet: make {by} the topic's key columns, or run it in the test driver"
        )
    for operator in plan.task:
        if operator.node.stores and not isinstance(operator.node, AggregateNode):
            raise UnsupportedTopologyError(
                f"{operator.node.name}: the Spark runners keep the state of named aggregates only, so far: run it in "
                "the test driver"
            )
    for sink in plan.sinks:
        if isinstance(sink, TopicSinkNode):
            raise UnsupportedTopologyError(
                f"{sink.name}: writing to a topic ({sink.topic}) from Spark cannot be done yet: write with to_delta(), "
                "or run it in the test driver"
            )


def table_paths(plan: Plan, tables: Mapping[str, str] | str | None) -> dict[str, str]:
    """Where each Delta sink writes, by sink name. ``tables`` may be one path if there is one table.

    Raises ``UsageError`` for a table without a path, or a path for no table.
    """
    names = plan.topology.tables
    if isinstance(tables, str):
        if len(names) != 1:
            raise UsageError(f"one path for the tables {', '.join(names)}: give tables={{name: path}}")
        tables = {names[0]: tables}
    given = dict(tables or {})
    for name in given.keys() - set(names):
        raise UsageError(f"the topology writes no table {name}; its tables are {', '.join(names)}")
    missing = [name for name in names if name not in given]
    if missing:
        raise UsageError(f"where does the table {missing[0]} lie? give tables={{{missing[0]!r}: path}}")
    return {sink.name: given[sink.table] for sink in plan.sinks if not isinstance(sink, TopicSinkNode)}
