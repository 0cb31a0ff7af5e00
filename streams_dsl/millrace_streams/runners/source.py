"""Sources of a Spark runner: topics through ``format("millrace")``, or DataFrames.

For a topic, the option ``columns`` pushes columns down, and the option ``transform`` runs the reader's part of the plan
inside the source's ``read()``. So only packed rows enter the JVM. In a stream whose records stay in their partition,
not even these do: the task gets references and reads the records itself (``references``).

A DataFrame must have the plan's columns and ``__offset``, a long with the order of records within a partition. The
DataFrame also needs ``__timestamp``, unless a column has the event time. Without ``__partition`` all records are of one
partition.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, Final

from millrace.config.client import ConsumerConfig, ProducerConfig
from millrace.errors import UnknownTopicOrPartitionError, UsageError
from millrace_streams.compiler import Plan, compile_topology
from millrace_streams.compiler.plan import SourceReader
from millrace_streams.compiler.stages import Stage, Stages, stages_of
from millrace_streams.errors import TopologyError
from millrace_streams.graph import DeltaSinkNode, SourceNode, Topology
from millrace_streams.layout import OPAQUE_SHAPE, TopicShape
from millrace_streams.payload_rows import PayloadRows
from millrace_streams.runners.packed_rows import PACKED_DDL, ROWS_PER_PAYLOAD
from millrace_streams.runners.references import ReferredSource, may_refer, packed_references
from millrace_streams.runners.topic_rows import OpaqueRows
from millrace_streams.runners.worker import SourceRun, WorkerStage
from millrace_streams.serdes import SERDES, RowSerde, Serde
from millrace_streams.steps.batch import HEADERS, OFFSET, PARTITION, SEQUENCE, TIMESTAMP
from millrace_streams.steps.reader import Reader
from pyspark_millrace.options.source import parse_options, with_whole_partitions
from pyspark_millrace.transform import encode_transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millrace.clients import Admin

PARTITIONS_UNKNOWN: Final = 8
"""Number of buckets if DataFrames have an unknown number of partitions."""


_CONSUMERS_ONLY: Final = frozenset(ConsumerConfig.option_names()) - frozenset(ProducerConfig.option_names())
_PRODUCERS_ONLY: Final = frozenset(ProducerConfig.option_names()) - frozenset(ConsumerConfig.option_names())


def admin_client(client: Mapping[str, str]) -> Admin:
    """Return an admin client with those options of ``JobInputs.client`` that it knows."""
    from millrace.clients import Admin

    return Admin({name: value for name, value in client.items() if name not in _PRODUCERS_ONLY})


@dataclass(frozen=True, kw_only=True)
class JobInputs:
    """Inputs of a runner.

    The inputs are topics of a cluster, or DataFrames in place of topics. ``options`` are further options of
    ``format("millrace")``, such as ``maxOffsetsPerTrigger`` or ``startingTimestamp``. The sinks use the options of
    clients, such as ``kafka.security.protocol``, too. Options of producers alone, such as ``kafka.linger.ms``, are for
    the sinks only.
    """

    bootstrap_servers: str | None = None
    frames: Mapping[str, DataFrame] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def client(self) -> dict[str, str] | None:
        """The configuration of clients of the cluster, with options of producers; None without a cluster."""
        if self.bootstrap_servers is None:
            return None
        named = {name.lower(): str(value) for name, value in self.options.items() if value is not None}
        given = {name.removeprefix("kafka."): text for name, text in named.items() if name.startswith("kafka.")}
        client = {name: text for name, text in given.items() if name not in _CONSUMERS_ONLY}
        return client | {"bootstrap.servers": self.bootstrap_servers}

    def shape_of(self, topic: str, declared_key: tuple[str, ...] | None) -> tuple[TopicShape, int | None]:
        """Return columns and key of a topic, and its number of partitions if known.

        Raises ``UsageError`` without a cluster and a DataFrame, and the errors of the admin client.
        """
        if topic in self.frames:
            return _frame_shape(self.frames[topic], declared_key), None
        client = self.client
        if client is None:
            raise UsageError(f"topic {topic} has no input: give bootstrap_servers, or inputs={{{topic!r}: DataFrame}}")
        with admin_client(client) as admin:
            found = admin.describe_topic(topic)
        if found.schema is None:
            return OPAQUE_SHAPE, found.num_partitions
        return TopicShape(schema=found.schema, key_columns=found.key_columns), found.num_partitions


@dataclass(frozen=True, kw_only=True)
class Job:
    """A compiled topology with its inputs.

    ``partitions`` is that of the source topics, None if unknown; ``partitions_of`` has it by topic. With ``puts_aside``
    failing records become dead letters. ``writers`` are those of sinks to topics of bytes. ``application_id`` is empty
    in a stream, whose tasks know the query's id.
    """

    stages: Stages
    inputs: JobInputs
    partitions: int | None
    partitions_of: Mapping[str, int] = field(default_factory=dict)
    puts_aside: bool = False
    writers: Mapping[str, OpaqueRows] = field(default_factory=dict)
    application_id: str = ""

    @property
    def plan(self) -> Plan:
        """The plan that is cut into stages."""
        return self.stages.plan

    @classmethod
    def prepare(cls, topology: Topology, inputs: JobInputs, *, puts_aside: bool = False) -> Job:
        """Look up the topics' shapes, compile, and refuse a topology that cannot run.

        Raises ``TopologyError``, ``UnsupportedTopologyError``, ``UnknownTopicOrPartitionError`` and the client's
        errors.
        """
        shapes: dict[str, TopicShape] = {}
        partitions: dict[str, int] = {}
        for source in topology.sources:
            try:
                shapes[source.topic], found = inputs.shape_of(source.topic, source.key_columns)
            except UnknownTopicOrPartitionError as error:
                raise UnknownTopicOrPartitionError(f"{source.name}: {error.message}") from error
            if source.serdes is not None and source.topic not in inputs.frames:
                _check_serdes(source, source.serdes, shapes[source.topic])
            if found is not None:
                partitions[source.topic] = found
        stages = stages_of(compile_topology(topology, shapes))
        _check_partitions(stages, partitions)
        alike = [partitions[each.topic] for each in topology.sources if each.topic in partitions and not each.broadcast]
        return cls(
            stages=stages,
            inputs=inputs,
            partitions=max(alike, default=None),
            partitions_of=partitions,
            puts_aside=puts_aside,
        )

    @cached_property
    def buckets(self) -> int:
        """Number of buckets for repartitioned records: the largest number of partitions of a source topic.

        Without topics it is one for DataFrames without partitions.
        """
        if self.partitions is not None:
            return self.partitions
        return PARTITIONS_UNKNOWN if self._partitions_in_frames else 1

    def through_stages(
        self, entering: Sequence[tuple[int, DataFrame]], run: Callable[[WorkerStage, DataFrame], DataFrame]
    ) -> DataFrame:
        """Return the packed rows that leave all stages.

        ``entering`` are those of the sources, as ``packed`` returns them. ``run`` applies a stage, which works per
        bucket, to its rows: those of the stage before, and those that enter at this one.
        """
        rows: list[DataFrame] = []
        for stage in self.stages.stages:
            rows += [frame for first, frame in entering if first == stage.number]
            rows = [run(self._worker_stage(stage), _union(rows))]
        numbers = {stage.number for stage in self.stages.stages}
        return _union([*rows, *(frame for first, frame in entering if first not in numbers)])

    def _worker_stage(self, stage: Stage) -> WorkerStage:
        return WorkerStage.of(
            self.stages,
            stage,
            self.buckets,
            puts_aside=self.puts_aside,
            writers=self.writers,
            application_id=self.application_id,
        )

    def packed(
        self, spark: SparkSession, *, streaming: bool, defaults: Mapping[str, str]
    ) -> list[tuple[int, DataFrame]]:
        """Return the packed rows of each source, with the first stage that receives them; -1 if none does.

        ``defaults`` are source options that the caller may override.
        """
        found = []
        for reader, prologue in self._sources:
            if reader.source.topic in self.inputs.frames:
                frame = self._of_frame(reader, prologue, streaming=streaming)
            elif streaming and self._refers(reader, prologue, spark):
                options = self._options(reader, defaults) | {"byReference": "true"}
                frame = packed_references(_load(spark.readStream, options), prologue)
            else:
                run = encode_transform(self._run(reader, prologue))
                options = self._options(reader, defaults) | {"transform": run, "transformSchema": PACKED_DDL}
                if not all(isinstance(node, DeltaSinkNode) for node in prologue.outputs):
                    # Rows go from the source's tasks to a topic, and each task writes on its own.
                    options = with_whole_partitions(options)
                frame = _load(spark.readStream if streaming else spark.read, options)
            found.append((min((send.stage for send in prologue.sends), default=-1), frame))
        return found

    def referred(self, spark: SparkSession, stage: int, defaults: Mapping[str, str]) -> dict[str, ReferredSource]:
        """Return the sources that the tasks of a stage read themselves in a stream, by the node of their rows."""
        found = {}
        for reader, prologue in self._sources:
            if self._refers(reader, prologue, spark) and prologue.sends[0].stage == stage:
                options = parse_options(self._options(reader, defaults))
                found[prologue.sends[0].node] = ReferredSource(self._run(reader, prologue), options)
        return found

    def _refers(self, reader: SourceReader, prologue: Stage, spark: SparkSession) -> bool:
        """Return whether tasks read a source's splits themselves.

        With fewer buckets than cores, several source tasks share a partition. They are worth the cost of the shuffle if
        they do more than read.
        """
        if reader.source.topic in self.inputs.frames or reader.source.broadcast or not may_refer(prologue):
            return False
        return not reader.operators or self.buckets >= spark.sparkContext.defaultParallelism

    @property
    def _sources(self) -> list[tuple[SourceReader, Stage]]:
        return list(zip(self.plan.readers, self.stages.prologues, strict=True))

    def _run(self, reader: SourceReader, prologue: Stage) -> SourceRun:
        topic = reader.source.topic
        return SourceRun(
            reader=Reader(reader.source, reader.layout, reader.operators),
            worker_stage=self._worker_stage(prologue),
            source_number=[each.source.topic for each in self.plan.readers[: self.plan.readers.index(reader)]].count(
                topic
            ),
            everywhere={
                send.stage: self._buckets_of(reader, send.stage) for send in prologue.sends if send.way == "all"
            },
            partitions=self.kept_partitions.get(topic),
        )

    @cached_property
    def kept_partitions(self) -> dict[str, int]:
        """Numbers of partitions of the topics whose keys are in stores by partition."""
        topics = [reader.source.topic for reader, prologue in self._sources if self._keeps_partitions(prologue)]
        return {topic: self.partitions_of[topic] for topic in topics if topic in self.partitions_of}

    def _keeps_partitions(self, prologue: Stage) -> bool:
        """Return whether a store gets a source's records in the bucket of their partition."""
        numbers = {send.stage for send in prologue.sends if send.way == "partition"}
        return any(self._worker_stage(stage).stores for stage in self.stages.stages if stage.number in numbers)

    def _of_frame(self, reader: SourceReader, prologue: Stage, *, streaming: bool) -> DataFrame:
        given = self.inputs.frames[reader.source.topic]
        frame = _with_metadata(given, reader)
        if not streaming:
            # Runs of one partition must not overlap. In a stream the stage sorts them.
            together = frame.repartition(PARTITION) if PARTITION in given.columns else frame.coalesce(1)
            frame = together.sortWithinPartitions(PARTITION, OFFSET)
        return frame.mapInArrow(self._run(reader, prologue), PACKED_DDL)

    def _options(self, reader: SourceReader, defaults: Mapping[str, str]) -> dict[str, str]:
        """Return the options of ``format("millrace")`` for a source."""
        of_sinks = {f"kafka.{name}" for name in _PRODUCERS_ONLY}
        given = {name: value for name, value in self.inputs.options.items() if name.lower() not in of_sinks}
        chosen = {**defaults, **_of_topic(given, reader.source.topic)}
        options = {
            "kafka.bootstrap.servers": self.inputs.bootstrap_servers,
            "subscribe": reader.source.topic,
            "maxRecordsPerBatch": ROWS_PER_PAYLOAD,
            **(_of_whole_topic(chosen) if reader.source.broadcast else chosen),
            "columns": ",".join([*reader.columns, PARTITION, OFFSET, TIMESTAMP, *self._headers]),
        }
        return {name: str(value) for name, value in options.items()}

    @property
    def _headers(self) -> list[str]:
        return [HEADERS] if self.plan.carries_headers else []

    @property
    def _partitions_in_frames(self) -> bool:
        return any(PARTITION in frame.columns for frame in self.inputs.frames.values())

    def _buckets_of(self, reader: SourceReader, stage: int) -> int:
        """Return the number of buckets of a stage that receive a broadcast source's records."""
        if stage > 0 or self.partitions is not None:
            return self.buckets
        if self._partitions_in_frames:
            raise TopologyError(
                f"{reader.source.name}: a global table is sent to every partition, but their number is unknown: "
                f"leave the column {PARTITION} out of the DataFrames, or read topics"
            )
        return 1


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), frames)


def _load(reader: Any, options: Mapping[str, str]) -> DataFrame:
    frame: DataFrame = reader.format("millrace").options(**options).load()
    return frame


def _of_topic(options: Mapping[str, Any], topic: str) -> dict[str, Any]:
    """Return the options of one topic's source. Of an option that maps topics, such as a position, its part as JSON."""
    return {
        name: json.dumps({topic: value[topic]}) if isinstance(value, Mapping) else value
        for name, value in options.items()
        if not isinstance(value, Mapping) or topic in value
    }


def _of_whole_topic(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a source without a range or limit, because a global table is read completely, and first."""
    parts = (
        "starting",
        "ending",
        "maxoffsetspertrigger",
        "maxbytespertrigger",
        "minoffsets",
        "minbytes",
        "maxtriggerdelay",
    )
    whole = {name: value for name, value in options.items() if not name.lower().startswith(parts)}
    return {**whole, "startingOffsets": "earliest"}


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
        *([HEADERS] if HEADERS in frame.columns else []),
        partition.alias(PARTITION),
        F.col(OFFSET).cast("bigint").alias(OFFSET),
        time.cast("timestamp").alias(TIMESTAMP),
    )


def _check_serdes(source: SourceNode, serdes: tuple[Serde, Serde | RowSerde], shape: TopicShape) -> None:
    """Refuse serdes that cannot read a topic."""
    if not shape.scalar:
        raise TopologyError(
            f"{source.name}: {source.topic} is a typed topic, which key= and value= cannot read: leave them out"
        )
    for what, serde in zip(("key", "value"), serdes, strict=True):
        if not (serde.has_bytes if isinstance(serde, Serde) else isinstance(serde, PayloadRows)):
            raise TopologyError(
                f"{source.name}: {source.topic} is a topic of bytes, and {serde} does not define how to read the "
                f"{what}: give one of {', '.join(SERDES)}, json_rows(...), avro(...) or protobuf(...), or a serde of "
                "your own, Serde(...)"
            )


def _check_partitions(stages: Stages, partitions: Mapping[str, int]) -> None:
    """Refuse topics with different numbers of partitions whose records meet at a node or store without a
    repartition.
    """
    comes_from: dict[str, SourceNode] = {}
    kept_of: dict[str, SourceNode] = {}
    for reader, prologue in zip(stages.plan.readers, stages.prologues, strict=True):
        if reader.source.topic in partitions:
            comes_from |= {send.node: reader.source for send in prologue.sends if send.way == "partition"}
    for node in (operator.node for stage in stages.stages if stage.number == 0 for operator in stage.operators):
        met = [comes_from[name] for name in node.parents if name in comes_from]
        met += [kept_of[name] for name in node.stores if name in kept_of]
        for other in met[1:]:
            first, second = met[0].topic, other.topic
            if partitions[first] != partitions[second]:
                raise TopologyError(
                    f"{node.name}: {second} has {partitions[second]} partitions, but {first} has "
                    f"{partitions[first]}, and joined or merged topics need the same number: repartition() both, or "
                    "read one as a global table"
                )
        if met:
            comes_from[node.name] = met[0]
            kept_of |= dict.fromkeys(node.stores, met[0])
