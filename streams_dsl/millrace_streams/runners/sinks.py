"""Sinks: Delta tables, topics, and user functions, each written once per micro-batch.

Tables are written in a Delta transaction, topics in a transaction of the millrace sink. Both are named by the query's
id (from its checkpoint) and the sink's id (``checkpoints.sinks``), and numbered by the micro-batch. A repeated
micro-batch is skipped by sinks that have written it. A user function receives the number and must handle repetitions
itself, as with Spark's ``foreachBatch``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeAlias

from millrace.config.client import ProducerConfig
from millrace.errors import InvalidConfigError, UnknownTopicOrPartitionError, UsageError
from millrace_streams.compiler import Plan
from millrace_streams.errors import TopologyError
from millrace_streams.graph import DeltaSinkNode, RepartitionNode, TopicSinkNode
from millrace_streams.runners.dead_letters import DEAD_LETTERS, RECORDS, LetterRecords
from millrace_streams.runners.dead_letters import LAYOUT as LETTERS
from millrace_streams.runners.delta import ensure_table, overwrite, upsert
from millrace_streams.runners.output import address, spark_schema
from millrace_streams.runners.results import Results
from millrace_streams.runners.source import admin_client
from millrace_streams.runners.topic_rows import OpaqueRows
from millrace_streams.runners.worker import Sink, sinks_of, written_sink
from millrace_streams.steps.batch import TIMESTAMP, TOMBSTONE
from pyspark_millrace.delta.transactions import Transaction, append_rows
from pyspark_millrace.sink.options import parse_sink_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BatchFunction: TypeAlias = "Callable[[DataFrame, int], None]"
"""Function of the rows of a micro-batch and its number."""


class Target(Protocol):
    """Target of one sink's rows."""

    def prepare(self, spark: SparkSession, *, replaced: bool) -> None:
        """Prepare the target before the first batch, or check the target that a batch job replaces. Raises its
        errors.
        """
        ...

    def write(self, results: Results, transaction: Transaction | None) -> None:
        """Write a micro-batch's rows, or without a transaction all rows of a batch job."""
        ...


@dataclass(frozen=True, slots=True)
class DeltaTarget:
    """Target of a sink that writes to a Delta table.

    ``path`` is the path of the table. The rows of a stream are appended. Each row of a table updates or deletes the row
    with the same key.
    """

    sink: Sink
    path: str

    def prepare(self, spark: SparkSession, *, replaced: bool) -> None:
        """Create the table, or check its columns."""
        if not replaced:
            ensure_table(spark, self.path, spark_schema(self.sink.layout))

    def write(self, results: Results, transaction: Transaction | None) -> None:
        """Append, upsert, or overwrite."""
        sink, layout = self.sink, self.sink.layout
        if transaction is None:
            overwrite(results.unpacked(sink.name, layout), self.path)
            return
        rows = results.unpacked(sink.name, layout, sink.reserved)
        if layout.table:
            upsert(rows, self.path, layout.row_key, transaction, mark=TOMBSTONE if sink.deletes else None)
        else:
            append_rows(rows, self.path, transaction)


@dataclass(frozen=True)
class TopicTarget:
    """Target of a sink that writes to a topic.

    A typed topic takes columns by name. A topic of bytes takes the bytes into which the tasks convert the rows
    (``writer``). If a function names the topic of each record, all topics must hold bytes; the column ``__topic`` names
    them.
    """

    sink: Sink
    node: TopicSinkNode | RepartitionNode
    client: Mapping[str, str] = field(repr=False)

    @cached_property
    def writer(self) -> OpaqueRows | None:
        """Writer that converts rows to bytes, if the topic holds bytes.

        Raises ``TopologyError`` if the topic cannot hold the rows, and the errors of ``is_opaque``.
        """
        if not self.node.topic or is_opaque(self.node.topic, self.client):
            return OpaqueRows.of(self.node, self.sink.layout)
        if self.node.produced:
            raise TopologyError(
                f"{self.sink.name}: {self.node.topic} is a typed topic, whose columns are written by name: leave key= "
                "and value= out"
            )
        return None

    def prepare(self, spark: SparkSession, *, replaced: bool) -> None:
        """Check the options, and that the topic exists and can hold the rows."""
        check_options(self.client)
        self.writer  # noqa: B018 - the look-up is the check

    def write(self, results: Results, transaction: Transaction | None) -> None:
        """Send the rows, in the order of each bucket's output."""
        sink = self.sink if self.writer is None else written_sink(self.sink)
        rows = results.unpacked(sink.name, sink.layout, sink.reserved)
        send(rows, self.node.topic or None, self.client, transaction)


def is_opaque(topic: str, client: Mapping[str, str]) -> bool:
    """Return whether a topic holds bytes. Raises ``UnknownTopicOrPartitionError`` and other errors of the admin
    client.
    """
    with admin_client(client) as admin:
        return admin.describe_topic(topic).schema is None


def writers_of(plan: Plan, client: Mapping[str, str]) -> dict[str, OpaqueRows]:
    """Return the writers of existing topics of bytes, by node. Raises ``TopologyError``."""
    sinks, found = sinks_of(plan), {}
    for node in plan.outputs:
        if not isinstance(node, DeltaSinkNode):
            target = TopicTarget(sinks[node.name], node, client)
            with suppress(UnknownTopicOrPartitionError):
                if (writer := target.writer) is not None:
                    found[node.name] = writer
    return found


def send(rows: DataFrame, topic: str | None, client: Mapping[str, str], transaction: Transaction | None) -> None:
    """Write rows to a topic, or to the topics of their column, once per transaction or as a separate write."""
    options = _options(client)
    if topic is not None:
        options["topic"] = topic
    if transaction is not None:
        options |= {"txnAppId": transaction.application, "txnVersion": str(transaction.version)}
    rows.write.format("millrace").options(**options).mode("append").save()


def check_options(client: Mapping[str, str]) -> None:
    """Refuse options of clients that no sink can use. Raises ``UsageError``."""
    producer = parse_sink_options(_options(client), is_stream=False).producer_config(None)
    try:
        ProducerConfig.load(producer)
    except InvalidConfigError as error:
        raise UsageError(f"in the kafka.* options: {error.message}") from None


def _options(client: Mapping[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in client.items()}


@dataclass(frozen=True, slots=True)
class DeadLetterTarget:
    """Topic of bytes for dead letters, with their errors in headers."""

    topic: str
    client: Mapping[str, str] = field(repr=False)

    def prepare(self, spark: SparkSession, *, replaced: bool) -> None:
        """Check the options, and that the topic exists and holds bytes. Raises ``TopologyError``."""
        check_options(self.client)
        if not is_opaque(self.topic, self.client):
            raise TopologyError(f"dead_letters: {self.topic} is a typed topic; name one of bytes")

    def write(self, results: Results, transaction: Transaction | None) -> None:
        """Send the dead letters."""
        from pyspark.sql.pandas.types import from_arrow_schema

        rows = results.mapped(DEAD_LETTERS, LetterRecords(), from_arrow_schema(RECORDS))
        send(rows, self.topic, self.client, transaction)


@dataclass(frozen=True, slots=True)
class FunctionTarget:
    """A user function as a target."""

    sink: Sink
    function: BatchFunction

    def prepare(self, spark: SparkSession, *, replaced: bool) -> None:
        """Do nothing."""

    def write(self, results: Results, transaction: Transaction | None) -> None:
        """Call the function."""
        rows = results.unpacked(self.sink.name, self.sink.layout, self.sink.reserved)
        self.function(rows, 0 if transaction is None else transaction.version)


@dataclass(frozen=True, slots=True)
class Sinks:
    """All sinks of a plan. ``ids`` has the identity of each sink, by node."""

    targets: Mapping[str, Target]
    ids: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        plan: Plan,
        tables: Mapping[str, str] | str | None,
        client: Mapping[str, str] | None,
        foreach_batch: Mapping[str, BatchFunction] | None,
        dead_letters: str | None = None,
    ) -> Sinks:
        """Determine the target of each sink. ``client`` is the configuration of clients, if there is a cluster.

        Raises ``UsageError`` for a sink without a target, or a target without a sink.
        """
        functions = dict(foreach_batch or {})
        names = [address(node) for node in plan.outputs] + ([dead_letters] if dead_letters is not None else [])
        for name in functions.keys() - set(names):
            raise UsageError(f"foreach_batch: the topology writes no {name}; it writes {', '.join(names)}")
        paths = _paths([name for name in plan.topology.tables if name not in functions], tables)
        sinks = sinks_of(plan)
        targets: dict[str, Target] = {}
        for node in plan.outputs:
            sink, name = sinks[node.name], address(node)
            if name in functions:
                targets[node.name] = FunctionTarget(sink, functions[name])
            elif isinstance(node, DeltaSinkNode):
                targets[node.name] = DeltaTarget(sink, paths[name])
            elif client is not None:
                targets[node.name] = TopicTarget(sink, node, client)
            else:
                raise UsageError(
                    f"{node.name}: the brokers of topic {name} are unknown: give bootstrap_servers, or foreach_batch="
                    f"{{{name!r}: function}}"
                )
        if dead_letters is not None and dead_letters in functions:
            aside = Sink(DEAD_LETTERS, LETTERS, reserved=(TIMESTAMP,))
            targets[DEAD_LETTERS] = FunctionTarget(aside, functions[dead_letters])
        elif dead_letters is not None:
            if client is None:
                raise UsageError(
                    f"dead_letters: the brokers of topic {dead_letters} are unknown: give bootstrap_servers"
                )
            targets[DEAD_LETTERS] = DeadLetterTarget(dead_letters, client)
        return cls(targets)

    @property
    def writers(self) -> dict[str, OpaqueRows]:
        """Writers of the topics of bytes, by node; the tasks use them."""
        found = {name: target.writer for name, target in self.targets.items() if isinstance(target, TopicTarget)}
        return {name: writer for name, writer in found.items() if writer is not None}

    def prepare(self, spark: SparkSession, *, replaced: bool = False) -> None:
        """Prepare all targets. Raises their errors.

        With ``replaced`` the run overwrites the tables, so their columns are not checked.
        """
        for target in self.targets.values():
            target.prepare(spark, replaced=replaced)

    def write(self, results: Results, query_id: str | None, batch_id: int) -> None:
        """Write a micro-batch to all sinks with rows."""
        for name, target in self.targets.items():
            if results.counts.rows[name]:
                target.write(results, Transaction(application=f"{query_id}/{self.ids[name]}", version=batch_id))

    def write_all(self, results: Results) -> None:
        """Write the results of a batch job: tables are replaced, topics appended."""
        for name, target in self.targets.items():
            if results.counts.rows[name] or isinstance(target, DeltaTarget):
                target.write(results, None)


def _paths(names: Sequence[str], tables: Mapping[str, str] | str | None) -> dict[str, str]:
    """Return the path of each Delta table. ``tables`` can be one path if there is one table."""
    if isinstance(tables, str):
        if len(names) != 1:
            raise UsageError(f"one path for the tables {', '.join(names) or 'none'}: give tables={{name: path}}")
        tables = {names[0]: tables}
    given = dict(tables or {})
    for name in given.keys() - set(names):
        raise UsageError(f"the topology writes no table {name}; its tables are {', '.join(names)}")
    missing = [name for name in names if name not in given]
    if missing:
        raise UsageError(f"the path of table {missing[0]} is unknown: give tables={{{missing[0]!r}: path}}")
    return given
