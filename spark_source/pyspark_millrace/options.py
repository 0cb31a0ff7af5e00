"""The options of ``format("millrace")``: names and meanings of Spark's Kafka connector, and a few of our own.

Every option is checked when the DataFrame is made, before anything starts: an unknown name, a value of a wrong form
and a combination that makes no sense raise ``UsageError`` with the option, the value and what would be accepted.
An option of the Kafka connector that is not supported is refused with the reason, never ignored. Names are not
case-sensitive, as everywhere in Spark. The table of all options is in ``docs/spark.md``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from millrace.errors import UsageError
from pyspark_millrace.positions import (
    AtTimestamp,
    Edge,
    PartitionKey,
    Position,
    parse_assignment,
    parse_offsets,
    parse_timestamps,
)

DEFAULT_ROWS_PER_BATCH: Final = 50_000
"""Most rows of an Arrow batch handed to Spark; docs/design/0006-spark-source.md has the measurement."""

_T = TypeVar("_T")


class DirectReads(StrEnum):
    """Whether tasks read segment files themselves."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class IsolationLevel(StrEnum):
    """Whether records of transactions that are open or were aborted are read."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class NoMatch(StrEnum):
    """What a starting timestamp after a partition's last record means."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Topics:
    """A list of topics, by name."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """Every topic whose whole name matches; topics made later join a running stream."""

    pattern: str


@dataclass(frozen=True, slots=True)
class AssignedPartitions:
    """Chosen partitions and no others."""

    partitions: tuple[PartitionKey, ...]


Subscription = Topics | TopicPattern | AssignedPartitions


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """All options of one DataFrame, checked. ``None`` where batch and stream differ in their default."""

    bootstrap_servers: str
    client_config: Mapping[str, str]
    subscription: Subscription
    starting: Mapping[str, str]
    ending: Mapping[str, str]
    starting_no_match: NoMatch
    isolation_level: IsolationLevel
    fail_on_data_loss: bool
    max_offsets_per_trigger: int | None
    min_partitions: int
    max_records_per_partition: int | None
    split_bytes: int | None
    columns: tuple[str, ...]
    include_headers: bool
    include_metadata: bool
    direct_reads: DirectReads
    rows_per_batch: int
    transform: str | None = field(repr=False)
    transform_schema: str | None
    group_id: str | None = None

    def batch_range(self) -> tuple[Position, Position]:
        """Start and end of a batch read: by default everything that is retained.

        Raises ``UsageError`` for a start at the latest or an end at the earliest offset.
        """
        start = _position(self.starting, "starting", edges=(Edge.EARLIEST,), default=Edge.EARLIEST)
        end = _position(self.ending, "ending", edges=(Edge.LATEST,), default=Edge.LATEST)
        return start, end

    def stream_start(self) -> Position:
        """Where a new stream starts: by default at the latest offsets.

        Raises ``UsageError`` when an end is given, which a stream has not.
        """
        for name, text in self.ending.items():
            raise UsageError(f"{name}={text!r}: a stream has no end; leave it out, or read with spark.read")
        return _position(self.starting, "starting", edges=(Edge.EARLIEST, Edge.LATEST), default=Edge.LATEST)


def parse_options(values: Mapping[str, str]) -> SourceOptions:
    """Check all options of a DataFrame and give them types.

    Raises ``UsageError`` for the first option that is unknown, unsupported, missing or wrong.
    """
    given = _Given(values)
    given.refuse_unknown()
    options = SourceOptions(
        bootstrap_servers=_bootstrap_servers(given),
        client_config=given.client_settings(),
        subscription=_subscription(given),
        starting=given.present(*_STARTING),
        ending=given.present(*_ENDING),
        starting_no_match=given.choice("startingOffsetsByTimestampStrategy", NoMatch.ERROR),
        isolation_level=_isolation_level(given),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        max_offsets_per_trigger=given.whole_number("maxOffsetsPerTrigger"),
        min_partitions=given.whole_number("minPartitions") or 1,
        max_records_per_partition=given.whole_number("maxRecordsPerPartition"),
        split_bytes=given.whole_number("splitBytes"),
        columns=_columns(given),
        include_headers=given.flag("includeHeaders", default=False),
        include_metadata=given.flag("includeMetadata", default=False),
        direct_reads=given.choice("directReads", DirectReads.AUTO),
        rows_per_batch=given.whole_number("maxRecordsPerBatch") or DEFAULT_ROWS_PER_BATCH,
        transform=given.text("transform"),
        transform_schema=given.text("transformSchema"),
        group_id=_group_id(given),
    )
    _check_together(options, given)
    return options


_STARTING: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDING: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")

_OPTIONS: Final = (
    "bootstrap.servers", "kafka.bootstrap.servers", "subscribe", "subscribePattern", "assign",
    *_STARTING, *_ENDING, "startingOffsetsByTimestampStrategy", "failOnDataLoss", "maxOffsetsPerTrigger",
    "minPartitions", "maxRecordsPerPartition", "splitBytes", "columns", "includeHeaders", "includeMetadata",
    "directReads", "maxRecordsPerBatch", "transform", "transformSchema", "isolation.level", "kafka.isolation.level",
    "group.id", "kafka.group.id",
)  # fmt: skip
"""Every supported option by its name as documented; client settings come as ``kafka.<name>`` besides."""

_NOT_SUPPORTED: Final = {
    "minOffsetsPerTrigger": "a batch starts as soon as there are records; use a trigger interval",
    "maxTriggerDelay": "it belongs to minOffsetsPerTrigger, which is not supported",
    "maxBytesPerTrigger": "limit by records, with maxOffsetsPerTrigger",
    "groupIdPrefix": "no group is made up; group.id names the one that a stream commits its progress to",
    "kafkaConsumer.pollTimeoutMs": "tasks do not poll; kafka.request.timeout.ms limits a request",
    "fetchOffset.numRetries": "requests are repeated until kafka.request.timeout.ms",
    "fetchOffset.retryIntervalMs": "kafka.retry.backoff.ms is the pause between two tries",
    "path": "load() takes no path; name topics by subscribe, subscribePattern or assign",
    "topic": "name topics by subscribe, subscribePattern or assign",
}

# What a Kafka consumer takes and Spark's connector refuses as well, because the source decides it itself.
_DECIDED_BY_THE_SOURCE: Final = {
    "auto.offset.reset": "startingOffsets",
    "key.deserializer": "a cast of the key column",
    "value.deserializer": "a cast of the value column",
    "enable.auto.commit": "the query's checkpoint",
    "interceptor.classes": "nothing",
}


class _Given:
    """The options as Spark passes them, looked up without regard to case; readers name what they expected."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in values.items()}

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def present(self, *names: str) -> dict[str, str]:
        return {name: text for name in names if (text := self.text(name)) is not None}

    def flag(self, name: str, *, default: bool) -> bool:
        def parse(text: str) -> bool:
            return {"true": True, "false": False}[text.lower()]

        return self._parsed(name, parse, default, "true or false")

    def whole_number(self, name: str) -> int | None:
        def parse(text: str) -> int | None:
            if not text.isdecimal() or not 0 < int(text) < 2**63:
                raise ValueError(text)
            return int(text)

        return self._parsed(name, parse, None, "a whole number from 1")

    def choice(self, name: str, default: _Choice) -> _Choice:
        return self._parsed(
            name, lambda text: type(default)(text.lower()), default, "one of " + ", ".join(type(default))
        )

    def _parsed(self, name: str, parse: Callable[[str], _T], default: _T, form: str) -> _T:
        text = self.text(name)
        if text is None:
            return default
        try:
            return parse(text.strip())
        except (ValueError, KeyError):
            raise UsageError(f"{name}={text!r}: expected {form}") from None

    def client_settings(self) -> dict[str, str]:
        """The ``kafka.*`` settings without their prefix, for the client; the client checks their values."""
        return {
            name.removeprefix("kafka."): value
            for name, value in self._values.items()
            if name.startswith("kafka.")
            and name not in ("kafka.bootstrap.servers", "kafka.isolation.level", "kafka.group.id")
        }

    def refuse_unknown(self) -> None:
        supported = {name.lower() for name in _OPTIONS}
        not_supported = {name.lower(): reason for name, reason in _NOT_SUPPORTED.items()}
        for name, value in self._values.items():
            setting = name.removeprefix("kafka.")
            if name in supported:
                continue
            if name in not_supported:
                raise UsageError(f"option {name}={value!r} is not supported: {not_supported[name]}")
            if name != setting and setting in _DECIDED_BY_THE_SOURCE:
                instead = _DECIDED_BY_THE_SOURCE[setting]
                raise UsageError(f"option {name}={value!r} is not supported: it is decided by {instead}")
            if name == setting:
                raise UsageError(f"unknown option {name}={value!r}: {_suggestion(name)}")


_Choice = TypeVar("_Choice", bound=StrEnum)


def _suggestion(name: str) -> str:
    by_lower = {option.lower(): option for option in _OPTIONS}
    near = [by_lower[match] for match in difflib.get_close_matches(name, by_lower, n=3, cutoff=0.6)]
    return f"did you mean {' or '.join(near)}?" if near else f"the options are {', '.join(_OPTIONS)}"


def _bootstrap_servers(given: _Given) -> str:
    values = given.present("kafka.bootstrap.servers", "bootstrap.servers")
    servers = set(values.values())
    if not servers:
        raise UsageError("kafka.bootstrap.servers is required: the brokers as host:port[,host:port]")
    if len(servers) > 1:
        raise UsageError(f"kafka.bootstrap.servers and bootstrap.servers differ ({values}): give one")
    address = servers.pop().strip()
    for server in address.split(","):
        host, colon, port = server.strip().rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
            raise UsageError(f"kafka.bootstrap.servers={address!r}: expected host:port[,host:port]")
    return address


def _isolation_level(given: _Given) -> IsolationLevel:
    """Committed records by default: Kafka's connector reads those of open and aborted transactions as well."""
    values = {
        given.choice(name, IsolationLevel.READ_COMMITTED)
        for name in given.present("isolation.level", "kafka.isolation.level")
    }
    if len(values) > 1:
        raise UsageError("isolation.level and kafka.isolation.level differ: give one")
    return values.pop() if values else IsolationLevel.READ_COMMITTED


def _group_id(given: _Given) -> str | None:
    """The group that a stream commits its progress to; none without the option."""
    groups = {text.strip() for text in given.present("group.id", "kafka.group.id").values()}
    if len(groups) > 1:
        raise UsageError("group.id and kafka.group.id differ: give one")
    if groups == {""}:
        raise UsageError("group.id='': expected the name of a group")
    return groups.pop() if groups else None


def _subscription(given: _Given) -> Subscription:
    present = given.present("subscribe", "subscribePattern", "assign")
    if len(present) != 1:
        found = ", ".join(f"{name}={text!r}" for name, text in present.items()) or "none of them"
        raise UsageError(f"exactly one of subscribe, subscribePattern and assign says what to read; found {found}")
    (name, text), *_ = present.items()
    if name == "assign":
        return AssignedPartitions(parse_assignment(name, text))
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise UsageError(f"subscribePattern={text!r}: expected a regular expression: {error}") from None
        return TopicPattern(text)
    names = tuple(dict.fromkeys(topic.strip() for topic in text.split(",")))
    if not all(names):
        raise UsageError(f"subscribe={text!r}: expected topics separated by commas")
    return Topics(names)


def _columns(given: _Given) -> tuple[str, ...]:
    text = given.text("columns")
    if text is None:
        return ()
    names = tuple(name.strip().strip("`") for name in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise UsageError(f"columns={text!r}: expected names separated by commas, each once")
    return names


def _check_together(options: SourceOptions, given: _Given) -> None:
    # Whether batch or stream is not known yet, so positions are only checked for their form here.
    every_edge = (Edge.EARLIEST, Edge.LATEST)
    _position(options.starting, "starting", edges=every_edge, default=Edge.EARLIEST)
    _position(options.ending, "ending", edges=every_edge, default=Edge.LATEST)
    if options.columns and options.include_metadata:
        raise UsageError("columns and includeMetadata=true contradict each other: name the metadata columns in columns")
    if options.columns and given.text("includeHeaders") is not None:
        raise UsageError("columns and includeHeaders contradict each other: name headers in columns")
    if (options.transform is None) != (options.transform_schema is None):
        raise UsageError("transform and transformSchema go together: a pickled function and the DDL of what it yields")


def _position(texts: Mapping[str, str], side: str, *, edges: tuple[Edge, ...], default: Edge) -> Position:
    """The position of one side. As in the Kafka connector a timestamp wins over timestamps, and these over offsets."""
    if (text := texts.get(f"{side}Timestamp")) is not None:
        if not text.strip().isdecimal():
            raise UsageError(f"{side}Timestamp={text!r}: expected a time in ms since 1970")
        return AtTimestamp(int(text))
    if (text := texts.get(f"{side}OffsetsByTimestamp")) is not None:
        return parse_timestamps(f"{side}OffsetsByTimestamp", text)
    if (text := texts.get(f"{side}Offsets")) is not None:
        return parse_offsets(f"{side}Offsets", text, edges=edges)
    return default
