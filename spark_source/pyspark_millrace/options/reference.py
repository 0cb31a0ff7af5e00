"""The definitions of all options of ``format("millrace")``: names, meanings, defaults.

The parsers take the known names from here, and the reference pages of the documentation are generated from here. An
option whose origin is ``KAFKA`` has the name and the meaning of Spark's Kafka connector.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class OptionOrigin(StrEnum):
    """The connector that defined an option's name and meaning."""

    KAFKA = "Kafka"
    DELTA = "Delta"
    SPARK = "Spark"
    MILLRACE = "millrace"


@dataclass(frozen=True, slots=True)
class Option:
    """One option. ``default`` is text for the reference; empty where the option has none."""

    name: str
    meaning: str
    default: str = ""
    origin: OptionOrigin = OptionOrigin.KAFKA
    aliases: tuple[str, ...] = ()
    """Other names of the same option, which are accepted alike."""


def names_of(options: Iterable[Option]) -> tuple[str, ...]:
    """Return every accepted name of some options, aliases included."""
    return tuple(name for option in options for name in (*option.aliases, option.name))


BOOTSTRAP_SERVERS: Final = Option(
    "kafka.bootstrap.servers",
    "Brokers to start from, as `host:port[,host:port]`. Required.",
    aliases=("bootstrap.servers",),
)

_STARTING: Final = (
    Option(
        "startingOffsets",
        'Start of the read: `earliest`, `latest`, or offsets per partition such as `{"topic": {"0": 23, "1": -2}}`, '
        "where -2 means earliest and -1 means latest. A stream that stopped before its first batch had records "
        "resolves `latest` again at its next start: its checkpoint holds no offsets yet.",
        default="batch: `earliest`; stream: `latest`",
    ),
    Option("startingTimestamp", "In every partition, start at the first record at or after this time in milliseconds."),
    Option("startingOffsetsByTimestamp", 'The same for each partition, as JSON: `{"topic": {"0": 1700000000000}}`.'),
    Option(
        "startingOffsetsByTimestampStrategy",
        "Result of a starting timestamp after the last record of a partition: `error`, or `latest` to start at the "
        "end.",
        default="`error`",
    ),
)

_ENDING: Final = (
    Option("endingOffsets", "Batch: end of the read, in the forms of `startingOffsets`.", default="`latest`"),
    Option("endingTimestamp", "Batch: end at the first record at or after this time in milliseconds."),
    Option("endingOffsetsByTimestamp", "Batch: the same for each partition, as JSON."),
    Option(
        "streamEndingOffsets",
        'Stream: offsets such as `{"topic": {"0": 23}}` beyond which these partitions are not read. With the trigger '
        "`availableNow` the query ends there. A batch uses `endingOffsets`.",
        origin=OptionOrigin.MILLRACE,
    ),
)

_LIMITS: Final = (
    Option(
        "maxOffsetsPerTrigger",
        "Upper bound of the records of one micro-batch. Partitions share it in proportion to their backlog, and every "
        "partition with a backlog gets at least one record.",
    ),
    Option("minOffsetsPerTrigger", "A micro-batch waits until this many records are there, or `maxTriggerDelay` ends."),
    Option(
        "maxBytesPerTrigger", "The same as `maxOffsetsPerTrigger`, in bytes of the log.", origin=OptionOrigin.MILLRACE
    ),
    Option(
        "minBytesPerTrigger", "The same as `minOffsetsPerTrigger`, in bytes of the log.", origin=OptionOrigin.MILLRACE
    ),
    Option(
        "maxTriggerDelay",
        "Longest wait for `minOffsetsPerTrigger` or `minBytesPerTrigger`, for example `15m`. The first micro-batch "
        "does not wait.",
        default="`15m`",
    ),
    Option(
        "maxBytesPerSecond",
        "Upper bound of the bytes that the tasks of one query read in a second on one machine.",
        origin=OptionOrigin.MILLRACE,
    ),
)

_SPLITS: Final = (
    Option("minPartitions", "Lower bound of the number of tasks."),
    Option("maxRecordsPerPartition", "Upper bound of the records that one task reads."),
    Option(
        "splitBytes",
        "Target size of the range that one task reads. The default of a batch is the size of the data divided by three "
        "times the cores, between 8 and 256 MiB. The default of a stream is the size divided by twice the cores, "
        "between 8 and 512 MiB. The planner counts the cores of the driver's machine: on a larger cluster set "
        "`minPartitions` to two to four times the cores of the cluster.",
        origin=OptionOrigin.MILLRACE,
    ),
    Option(
        "splitPartitions",
        "If false, one task reads all records of a partition, so that a sink with a writer for each task keeps their "
        "order. `minPartitions`, `maxRecordsPerPartition` and `splitBytes` are then refused.",
        default="`true`",
        origin=OptionOrigin.MILLRACE,
    ),
    Option(
        "maxRecordsPerBatch",
        "Upper bound of the rows in one Arrow batch that a task hands to Spark.",
        default="50000",
        origin=OptionOrigin.MILLRACE,
    ),
    Option(
        "directReads",
        "`auto`: a task opens the segment files that the broker names, and reads from the broker when it cannot. "
        "`always`: a task that cannot open them fails. `never`: tasks always read from the broker.",
        default="`auto`",
        origin=OptionOrigin.MILLRACE,
    ),
)

_CONTENT: Final = (
    Option(
        "columns", "Columns to read, separated by commas. Other columns are not decoded.", origin=OptionOrigin.MILLRACE
    ),
    Option(
        "filter",
        "SQL condition. Only records for which it is true leave the task, and batches whose statistics rule it out are "
        "not read.",
        origin=OptionOrigin.MILLRACE,
    ),
    Option(
        "pushFilters",
        "If true, Spark pushes the conditions of `where` down to the source. Set it for a DataFrame that is used once.",
        default="`false`",
        origin=OptionOrigin.MILLRACE,
    ),
    Option("includeHeaders", "Adds the column `headers`, or `__headers` for a typed topic.", default="`false`"),
    Option(
        "includeMetadata",
        "Typed topics: adds `__topic`, `__partition`, `__offset` and the other metadata columns.",
        default="`false`",
        origin=OptionOrigin.MILLRACE,
    ),
    Option(
        "transform",
        "Pickled function from Arrow batches to Arrow batches, applied in the task before rows enter the JVM. "
        "`pyspark_millrace.transform.encode_transform` makes the value.",
        origin=OptionOrigin.MILLRACE,
    ),
    Option("transformSchema", "DDL of the columns that `transform` returns.", origin=OptionOrigin.MILLRACE),
    Option(
        "byReference",
        "Stream: returns one row for each split (`topic, partition, offset, reference`) instead of its records. "
        "A later task reads them with `pyspark_millrace.reading.references.read_reference`.",
        default="`false`",
        origin=OptionOrigin.MILLRACE,
    ),
)


def _decode_part(prefix: str, of: str) -> tuple[Option, ...]:
    def option(name: str, meaning: str, default: str = "") -> Option:
        return Option(f"{prefix}{name}", meaning, default, OptionOrigin.MILLRACE)

    return (
        option("", f"Format of {of}: `avro`, `json` or `protobuf`. Without it {of} stay bytes."),
        option(".schema", "The schema: an Avro schema, a JSON Schema or DDL for JSON, or the text of a `.proto` file."),
        option(".schemaFile", "File with the schema, on the driver's machine."),
        option(".schemaId", "Id of a schema in the registry."),
        option(".subject", "Subject of the registry whose newest schema is used."),
        option(".message", "Protobuf: name of the message. Not needed if the file defines only one."),
        option(
            ".framing",
            "`confluent`: a payload starts with a zero byte and the id of its schema. `none`: it does not.",
            "`confluent` with `schemaId` or `subject`, otherwise `none`",
        ),
    )


DECODE_OPTIONS: Final = (
    *_decode_part("decode", "values"),
    *_decode_part("decode.key", "keys"),
    Option(
        "badRecords",
        "Treatment of a payload that cannot be decoded: `fail` ends the query, `null` gives nulls, "
        "`deadletter:<topic>` writes the record to that topic.",
        default="`fail`",
        origin=OptionOrigin.MILLRACE,
    ),
)

READ_OPTIONS: Final = (
    BOOTSTRAP_SERVERS,
    Option("subscribe", "Topics to read, separated by commas."),
    Option(
        "subscribePattern",
        "Regular expression (Python syntax) that the whole name of a topic must match. A stream also reads matching "
        "topics that are created later.",
    ),
    Option("assign", 'Partitions to read: `{"topic": [0, 1]}`.'),
    *_STARTING,
    *_ENDING,
    Option(
        "isolation.level",
        "`read_committed`: records of open and aborted transactions are not read, and the read stops at the first open "
        "transaction. `read_uncommitted`: all records are read, which is the default of the Kafka connector.",
        default="`read_committed`",
        aliases=("kafka.isolation.level",),
    ),
    Option(
        "failOnDataLoss",
        "`true`: the query fails if records that it should read no longer exist. `false`: a warning names them. The "
        "option holds for batches too.",
        default="`true`",
    ),
    *_LIMITS,
    *_SPLITS,
    *_CONTENT,
    Option(
        "group.id",
        "Stream: consumer group to which the query commits its progress. The query does not join the group.",
        aliases=("kafka.group.id",),
    ),
    Option(
        "groupIdPrefix",
        "Stream: the same with a group named by this prefix and the id of the query. `group.id` has priority.",
    ),
    Option(
        "kafkaConsumer.pollTimeoutMs",
        "Time in milliseconds for which a task waits for a broker that does not answer.",
    ),
    Option("fetchOffset.numRetries", "Retries of an offset look-up after the client has given it up.", default="0"),
    Option("fetchOffset.retryIntervalMs", "Pause between these retries in milliseconds.", default="0"),
    *DECODE_OPTIONS,
)
"""Options of ``spark.read`` and ``spark.readStream``. ``kafka.<name>`` passes a setting to the client besides."""

WRITE_OPTIONS: Final = (
    BOOTSTRAP_SERVERS,
    Option("topic", "Topic of all rows. Without it the column `topic` (or `__topic`) names the topic of each row."),
    Option("includeHeaders", "`false`: the column of headers is not written.", default="`true`"),
    Option(
        "deliveryGuarantee",
        "`exactly-once`: the driver commits the rows of all tasks in one transaction. `at-least-once`: tasks write "
        "without a transaction, as Spark's Kafka sink does.",
        default="`exactly-once`",
        origin=OptionOrigin.MILLRACE,
    ),
    Option(
        "txnAppId",
        "Name of a series of writes. A stream uses it instead of the id of the query.",
        origin=OptionOrigin.DELTA,
    ),
    Option(
        "txnVersion",
        "Batch: number of this write in its series. A number that was written already, or a lower one, is skipped.",
        origin=OptionOrigin.DELTA,
    ),
    Option("checkpointLocation", "Stream: directory of the query's checkpoint.", origin=OptionOrigin.SPARK),
    Option("queryName", "Stream: name of the query.", origin=OptionOrigin.SPARK),
)
"""Options of ``df.write`` and ``df.writeStream``. ``kafka.<name>`` passes a setting to the producer besides."""
