"""Options of ``spark.read`` and ``spark.readStream`` with ``format("millrace")``.

Names and meanings are those of Spark's Kafka connector, and millrace adds a few. ``reference`` defines all options.
Names are not case-sensitive, as everywhere in Spark.

Every option is checked when the DataFrame is created. An unknown name, a value in a wrong form and a contradictory
combination raise ``UsageError`` with the option, the value and the accepted form. Checks that depend on batch or
stream, or on the current topics, run at planning. An unsupported option of the Kafka connector is refused with the
reason, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

from millrace.errors import InvalidConfigError, UsageError
from pyspark_millrace.options.decoding import DecodeOptions, parse_decode
from pyspark_millrace.options.given import GivenOptions
from pyspark_millrace.options.limits import TriggerLimits, parse_trigger_limits
from pyspark_millrace.options.positions import (
    NUMBER_MAX,
    AtTimestamp,
    AtTimestamps,
    ExactOffsets,
    OffsetSpec,
    Position,
    parse_assignment,
    parse_offsets,
    parse_timestamps,
)
from pyspark_millrace.options.reference import READ_OPTIONS, names_of
from pyspark_millrace.partition_key import PartitionKey

DEFAULT_ROWS_PER_BATCH: Final = 50_000
"""Most rows of an Arrow batch handed to Spark; docs/design/0006-spark-source.md has the measurement."""


REFERENCE_DDL: Final = "topic STRING, partition INT, offset BIGINT, reference BINARY"
"""Schema of the rows of ``byReference``: one row per split with its partition, its first offset and the reference."""


class DirectReads(StrEnum):
    """Policy for direct reads of segment files by tasks."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class IsolationLevel(StrEnum):
    """Isolation level of the read (Kafka's ``isolation.level``).

    ``READ_COMMITTED`` reads no records of open and aborted transactions.
    """

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class NoMatch(StrEnum):
    """Result of a starting timestamp after a partition's last record."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics by name (``subscribe``)."""

    names: tuple[str, ...]

    def covers(self, key: PartitionKey) -> bool:
        """Return whether the subscription includes a partition, whether or not the partition exists."""
        return key.topic in self.names

    def __str__(self) -> str:
        return f"subscribe={','.join(self.names)}"


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """Topics whose whole name matches a pattern. A running stream adds topics that are created later."""

    pattern: str

    def covers(self, key: PartitionKey) -> bool:
        """Return whether the subscription includes a partition, whether or not the partition exists."""
        return re.fullmatch(self.pattern, key.topic) is not None

    def __str__(self) -> str:
        return f"subscribePattern={self.pattern}"


@dataclass(frozen=True, slots=True)
class AssignedPartitions:
    """Single partitions (``assign``)."""

    partitions: tuple[PartitionKey, ...]

    def covers(self, key: PartitionKey) -> bool:
        """Return whether the subscription includes a partition, whether or not the partition exists."""
        return key in self.partitions

    def __str__(self) -> str:
        return f"assign={', '.join(map(str, self.partitions))}"


Subscription = Topics | TopicPattern | AssignedPartitions


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """All options of one DataFrame, checked. None marks options whose default differs between batch and stream."""

    bootstrap_servers: str
    client_config: Mapping[str, str] = field(repr=False)
    subscription: Subscription
    starting: Mapping[str, str]
    ending: Mapping[str, str]
    starting_no_match: NoMatch
    isolation_level: IsolationLevel
    fail_on_data_loss: bool
    limits: TriggerLimits
    min_partitions: int
    max_records_per_partition: int | None
    split_bytes: int | None
    columns: tuple[str, ...]
    filter: str | None
    include_headers: bool
    include_metadata: bool
    push_filters: bool
    direct_reads: DirectReads
    rows_per_batch: int
    transform: str | None = field(repr=False)
    transform_schema: str | None
    by_reference: bool = False
    split_partitions: bool = True
    group_id: str | None = None
    group_id_prefix: str | None = None
    decode: DecodeOptions | None = None
    max_bytes_per_second: int | None = None
    poll_timeout_ms: int | None = None
    fetch_offset_retries: int = 0
    fetch_offset_retry_interval_ms: int = 0
    stream_ending: Mapping[PartitionKey, int] = field(default_factory=dict)

    def task_client_config(self) -> Mapping[str, str]:
        """Return the client settings of tasks, whose timeouts are ``kafkaConsumer.pollTimeoutMs`` if that is set."""
        if self.poll_timeout_ms is None:
            return self.client_config
        waiting = ("request.timeout.ms", "socket.connection.setup.timeout.ms")
        return {**dict.fromkeys(waiting, str(self.poll_timeout_ms)), **self.client_config}

    def batch_range(self) -> tuple[Position, Position]:
        """Return start and end of a batch; the defaults are earliest and latest.

        Raises ``UsageError`` for a start at the latest offset, an end at the earliest offset, and
        ``streamEndingOffsets``.
        """
        if self.stream_ending:
            raise UsageError("streamEndingOffsets is for streams: give endingOffsets, or read with spark.readStream")
        start = _position(self.starting, "starting", edges=(OffsetSpec.EARLIEST,), default=OffsetSpec.EARLIEST)
        end = _position(self.ending, "ending", edges=(OffsetSpec.LATEST,), default=OffsetSpec.LATEST)
        return start, end

    def stream_start(self) -> Position:
        """Return the start of a new stream; the default is latest.

        Raises ``UsageError`` for an ending position, because a stream has none.
        """
        for name, text in self.ending.items():
            raise UsageError(f"{name}={text!r}: a stream has no end; leave it out, or read with spark.read")
        return _position(
            self.starting, "starting", edges=(OffsetSpec.EARLIEST, OffsetSpec.LATEST), default=OffsetSpec.LATEST
        )


def parse_options(values: Mapping[str, str]) -> SourceOptions:
    """Check and parse all options of a DataFrame.

    Raises ``UsageError`` for the first option that is unknown, unsupported, missing or wrong.
    """
    given = GivenOptions(values)
    given.refuse_unknown(names_of(READ_OPTIONS), _NOT_SUPPORTED, _DECIDED_BY_THE_SOURCE)
    options = SourceOptions(
        bootstrap_servers=given.bootstrap_servers(),
        client_config=_client_settings(given),
        subscription=_subscription(given),
        starting=given.present(*_STARTING),
        ending=given.present(*_ENDING),
        starting_no_match=given.choice("startingOffsetsByTimestampStrategy", NoMatch.ERROR),
        isolation_level=_isolation_level(given),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        limits=parse_trigger_limits(given),
        min_partitions=given.whole_number("minPartitions") or 1,
        max_records_per_partition=given.whole_number("maxRecordsPerPartition"),
        split_bytes=given.whole_number("splitBytes"),
        columns=_columns(given),
        filter=_filter(given),
        include_headers=given.flag("includeHeaders", default=False),
        include_metadata=given.flag("includeMetadata", default=False),
        push_filters=given.flag("pushFilters", default=False),
        direct_reads=given.choice("directReads", DirectReads.AUTO),
        rows_per_batch=given.whole_number("maxRecordsPerBatch") or DEFAULT_ROWS_PER_BATCH,
        transform=given.text("transform"),
        transform_schema=given.text("transformSchema"),
        by_reference=given.flag("byReference", default=False),
        split_partitions=given.flag("splitPartitions", default=True),
        group_id=_group_id(given),
        group_id_prefix=_group_id_prefix(given),
        max_bytes_per_second=given.whole_number("maxBytesPerSecond"),
        poll_timeout_ms=given.whole_number("kafkaConsumer.pollTimeoutMs", maximum=2**31 - 1),
        fetch_offset_retries=given.whole_number("fetchOffset.numRetries", minimum=0) or 0,
        fetch_offset_retry_interval_ms=given.whole_number("fetchOffset.retryIntervalMs", minimum=0) or 0,
        decode=parse_decode(given),
        stream_ending=_stream_ending(given),
    )
    _check_together(options, given)
    return options


_ABOUT_SPLITS: Final = ("minPartitions", "maxRecordsPerPartition", "splitBytes")


def with_whole_partitions(options: Mapping[str, str]) -> dict[str, str]:
    """Return options with ``splitPartitions=false``, unless an option defines the splits already."""
    known = {name.lower() for name in ("splitPartitions", *_ABOUT_SPLITS)}
    if any(name.lower() in known for name in options):
        return dict(options)
    return {**options, "splitPartitions": "false"}


_STARTING: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDING: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")

_NOT_SUPPORTED: Final = {
    "provider": "Spark cannot keep tables of Python sources; use CREATE TEMPORARY VIEW ... USING millrace "
    "OPTIONS (...)",
    "path": "load() takes no path; name topics by subscribe, subscribePattern or assign",
    "topic": "name topics by subscribe, subscribePattern or assign",
}

# Settings of a Kafka consumer that the source controls itself. Spark's connector refuses the first five as well.
_DECIDED_BY_THE_SOURCE: Final = {
    "auto.offset.reset": "set startingOffsets instead",
    "key.deserializer": "cast the column key instead",
    "value.deserializer": "cast the column value instead",
    "enable.auto.commit": "the query's checkpoint keeps its offsets; leave it out",
    "interceptor.classes": "the source has no interceptors; leave it out",
    # Settings of a consumer's poll loop or of a group member.
    "max.poll.records": "set maxRecordsPerBatch instead",
    "max.poll.interval.ms": "tasks do not poll; leave it out",
    "fetch.min.bytes": "set minBytesPerTrigger instead",
    "fetch.max.bytes": "set splitBytes instead",
    "fetch.max.wait.ms": "set the query's trigger instead",
    "max.partition.fetch.bytes": "set splitBytes instead",
    "session.timeout.ms": "a query is not a member of its group; leave it out",
    "heartbeat.interval.ms": "a query is not a member of its group; leave it out",
    "group.instance.id": "a query is not a member of its group; leave it out",
    # Settings of millrace's own consumer.
    "direct.reads": "set directReads instead",
    "fetch.buffer.bytes": "set splitBytes instead",
    "partition.assignment.strategy": "a query is not a member of its group; leave it out",
}


_WITHOUT_EFFECT: Final = ("auto.commit.interval.ms", "check.crcs", "client.rack", "exclude.internal.topics")
"""Settings of a Kafka consumer that change no result of a query.

A query commits no offsets by time, and verifies all checksums. Tasks read files or ask the leaders.
"""


def _client_settings(given: GivenOptions) -> dict[str, str]:
    """Return the settings for the source's clients. The clients have no consumer, so that they know only the shared
    settings.
    """
    settings = given.client_settings("bootstrap.servers", "isolation.level", "group.id")
    others: dict[str, str] = {name: settings.pop(name) for name in _WITHOUT_EFFECT if name in settings}
    if others:
        from millrace.config.client import ConsumerConfig

        try:
            checked = ConsumerConfig.load(others)
        except InvalidConfigError as error:
            raise UsageError(f"in the kafka.* options: {error.message}") from None
        if not checked.exclude_internal_topics:
            raise UsageError(
                "option kafka.exclude.internal.topics=false is not supported: subscribePattern matches no internal "
                "topics; name them in subscribe"
            )
    return settings


def _isolation_level(given: GivenOptions) -> IsolationLevel:
    """Return the isolation level. The default is ``read_committed``; Spark's Kafka connector reads uncommitted
    records.
    """
    values = {
        given.choice(name, IsolationLevel.READ_COMMITTED)
        for name in given.present("isolation.level", "kafka.isolation.level")
    }
    if len(values) > 1:
        raise UsageError("isolation.level and kafka.isolation.level differ: give one")
    return values.pop() if values else IsolationLevel.READ_COMMITTED


def _group_id(given: GivenOptions) -> str | None:
    """Return the group to which a stream commits its progress, or None."""
    groups = given.present("group.id", "kafka.group.id")
    for name, text in groups.items():
        if not text.strip():
            raise UsageError(f"{name}={text!r}: expected the name of a group")
    names = {text.strip() for text in groups.values()}
    if len(names) > 1:
        raise UsageError("group.id and kafka.group.id differ: give one")
    return names.pop() if names else None


def _group_id_prefix(given: GivenOptions) -> str | None:
    """Return the prefix of the group's name, before the query's id. ``group.id`` has priority, as in the Kafka
    connector.
    """
    prefix = given.text("groupIdPrefix")
    if prefix is not None and not prefix.strip():
        raise UsageError(f"groupIdPrefix={prefix!r}: expected the beginning of a group's name")
    return prefix and prefix.strip()


def _subscription(given: GivenOptions) -> Subscription:
    present = given.present("subscribe", "subscribePattern", "assign")
    if len(present) != 1:
        found = ", ".join(f"{name}={text!r}" for name, text in present.items()) or "none of them"
        raise UsageError(f"give exactly one of subscribe, subscribePattern and assign; found {found}")
    (name, text), *_ = present.items()
    if name == "assign":
        return AssignedPartitions(parse_assignment(name, text))
    if name == "subscribePattern":
        if not text.strip():
            raise UsageError(f"subscribePattern={text!r}: expected a regular expression")
        try:
            re.compile(text)
        except re.error as error:
            raise UsageError(f"subscribePattern={text!r}: expected a regular expression: {error}") from None
        return TopicPattern(text)
    names = tuple(dict.fromkeys(topic.strip() for topic in text.split(",")))
    if not all(names):
        raise UsageError(f"subscribe={text!r}: expected topics separated by commas")
    return Topics(names)


def _columns(given: GivenOptions) -> tuple[str, ...]:
    text = given.text("columns")
    if text is None:
        return ()
    names = tuple(name.strip().strip("`") for name in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise UsageError(f"columns={text!r}: expected names separated by commas, each once")
    return names


def _stream_ending(given: GivenOptions) -> Mapping[PartitionKey, int]:
    text = given.text("streamEndingOffsets")
    position = None if text is None else parse_offsets("streamEndingOffsets", text, edges=())
    return position.by_partition if isinstance(position, ExactOffsets) else {}


def _filter(given: GivenOptions) -> str | None:
    """Return the condition after a check of its syntax. Its columns are checked when the topics are known."""
    text = given.text("filter")
    if text is not None:
        from pyspark_millrace.filters.parsing import parse_filter

        parse_filter(text)
    return text


def _check_together(options: SourceOptions, given: GivenOptions) -> None:
    # Batch or stream is not known yet, so only the form of positions is checked here.
    every_edge = (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
    _position(options.starting, "starting", edges=every_edge, default=OffsetSpec.EARLIEST)
    _position(options.ending, "ending", edges=every_edge, default=OffsetSpec.LATEST)
    if options.columns and options.include_metadata:
        raise UsageError("columns and includeMetadata=true contradict each other: name the metadata columns in columns")
    if options.columns and given.text("includeHeaders") is not None:
        raise UsageError("columns and includeHeaders contradict each other: name headers in columns")
    for name in _BY_PARTITION:
        _check_read(given, name, options.subscription)
    if not options.split_partitions and (cut := given.present(*_ABOUT_SPLITS)):
        raise UsageError(f"splitPartitions=false and {next(iter(cut))} contradict each other: leave one out")
    if (options.transform is None) != (options.transform_schema is None):
        raise UsageError(
            "transform and transformSchema go together: give a pickled function, and the DDL of the columns it returns"
        )
    if options.by_reference and options.transform is not None:
        raise UsageError(
            "byReference=true and transform contradict each other: apply the function to the rows of read_reference"
        )


_BY_PARTITION: Final = (
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "streamEndingOffsets",
)


def _check_read(given: GivenOptions, name: str, subscription: Subscription) -> None:
    """Refuse a position for a partition that is not read, because it would be ignored."""
    text = given.text(name)
    if text is None:
        return
    parse = parse_timestamps if name.endswith("ByTimestamp") else partial(parse_offsets, edges=tuple(OffsetSpec))
    position = parse(name, text)
    named = position.by_partition if isinstance(position, (ExactOffsets, AtTimestamps)) else ()
    if elsewhere := [str(key) for key in named if not subscription.covers(key)]:
        raise UsageError(
            f"{name}={text!r} names {', '.join(elsewhere)}, which {subscription} does not read: leave it out, or "
            "correct the name"
        )


def _position(texts: Mapping[str, str], side: str, *, edges: tuple[OffsetSpec, ...], default: OffsetSpec) -> Position:
    """Return the position of one side. As in the Kafka connector, priority is: timestamp, timestamps, offsets."""
    if (text := texts.get(f"{side}Timestamp")) is not None:
        if not text.strip().isdecimal() or int(text) > NUMBER_MAX:
            raise UsageError(f"{side}Timestamp={text!r}: expected a time in ms since 1970")
        return AtTimestamp(int(text))
    if (text := texts.get(f"{side}OffsetsByTimestamp")) is not None:
        return parse_timestamps(f"{side}OffsetsByTimestamp", text)
    if (text := texts.get(f"{side}Offsets")) is not None:
        return parse_offsets(f"{side}Offsets", text, edges=edges)
    return default
