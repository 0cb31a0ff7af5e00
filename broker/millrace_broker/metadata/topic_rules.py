"""Rules for topic names, partition counts and topic options. Pure.

The name rules are those of Kafka's ``Topic.validate`` and ``hasCollision``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from millrace.config.topic import CompressionType, KafkaValueFormat, SchemaCompatibility, TopicConfig
from millrace.coordinator_records import INTERNAL_TOPICS
from millrace.errors import (
    EnvironmentProblemError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    PolicyViolationError,
    SchemaError,
)
from millrace.topic_names import NAME_LENGTH_MAX, has_topic_characters

if TYPE_CHECKING:
    import pyarrow as pa

PARTITIONS_PER_TOPIC_MAX: Final = 10_000
"""Limit of one request to the controller, as in Kafka (``MAX_PARTITIONS_PER_BATCH``)."""

_ROWS_ONLY: Final = (CompressionType.GZIP, CompressionType.SNAPPY)
_LOCAL_RETENTION: Final = ("local.retention.ms", "local.retention.bytes")
_YIELDING: Final = (
    *_LOCAL_RETENTION,
    "max.compaction.lag.ms",
    "min.compaction.lag.ms",
    "compression.type",
    "cleanup.policy",
)
"""Options that may contradict a topic, and whose own defaults never do."""


def check_topic_name(name: str) -> None:
    """Raise ``InvalidTopicError`` unless ``name`` is 1 to 249 of ``[a-zA-Z0-9._-]``, and not ``.`` or ``..``."""
    if not name:
        raise InvalidTopicError("the empty topic name is invalid: use 1 to 249 of the characters a-z A-Z 0-9 . _ -")
    if name in (".", ".."):
        raise InvalidTopicError(
            f"the topic name {name!r} is invalid, because . and .. are directories: choose another name"
        )
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidTopicError(
            f"the topic name {name[:40]}... is invalid: it has {len(name)} characters, more than {NAME_LENGTH_MAX}"
        )
    if not has_topic_characters(name):
        raise InvalidTopicError(f"the topic name {name!r} is invalid: use only the characters a-z A-Z 0-9 . _ -")


def check_collision(name: str, existing: Iterable[str]) -> None:
    """Raise ``InvalidTopicError`` if ``name`` differs from another topic's only in ``.`` and ``_``.

    Metric names have no dots, so such topics could not be distinguished there.
    """
    folded = name.replace(".", "_")
    for other in existing:
        if other != name and other.replace(".", "_") == folded:
            raise InvalidTopicError(f"topic {name} collides with {other}: names must differ in more than . and _")


def check_partition_count(count: int, *, present: int, most: int) -> None:
    """Raise ``InvalidPartitionsError`` for a count below 1 or above the limit of the broker.

    Raise ``PolicyViolationError`` for a count above the limit of a topic.

    ``present`` is the number of the broker's other partitions; ``most`` is its ``max.partitions``.
    """
    if count < 1:
        raise InvalidPartitionsError(f"{count} partitions: a topic has at least 1")
    if count > PARTITIONS_PER_TOPIC_MAX:
        raise PolicyViolationError(f"{count} partitions: a topic has at most {PARTITIONS_PER_TOPIC_MAX}")
    if present + count > most:
        raise InvalidPartitionsError(
            f"{count} partitions beside {present} others exceed max.partitions={most}: raise it, or delete topics"
        )


def check_replication_factor(factor: int, brokers: int) -> None:
    """Raise ``InvalidReplicationFactorError`` unless there are as many live brokers as replicas."""
    if not 1 <= factor <= brokers:
        raise InvalidReplicationFactorError(
            f"replication factor {factor}: expected between 1 and {brokers}, the number of live brokers"
        )


def check_not_internal(name: str) -> None:
    """Raise ``InvalidTopicError`` for an internal topic."""
    if name in INTERNAL_TOPICS:
        raise InvalidTopicError(f"{name} is an internal topic: it cannot be written to, changed or deleted")


def check_option_names(names: Iterable[str]) -> None:
    """Raise ``InvalidConfigError`` if one of ``names`` is no topic option."""
    unknown = sorted(set(names) - set(TopicConfig.option_names()))
    if unknown:
        raise InvalidConfigError(
            f"unknown topic option {', '.join(unknown)}: the options are {', '.join(TopicConfig.option_names())}"
        )


def compatibility(text: str) -> SchemaCompatibility:
    """Parse a mode of ``schema.compatibility``. Raises ``InvalidConfigError``."""
    try:
        return SchemaCompatibility(text.upper())
    except ValueError:
        raise InvalidConfigError(
            f"schema.compatibility={text}: expected one of {', '.join(SchemaCompatibility)}"
        ) from None


def check_payload_format(name: str, config: TopicConfig, schema: pa.Schema | None, key_columns: Sequence[str]) -> None:
    """Raise ``InvalidConfigError`` unless records of Kafka clients can have the topic's format.

    ``schema`` is None for an opaque topic. A registered payload schema is not looked up.
    """
    if config.kafka_value_format is KafkaValueFormat.NONE:
        return
    if schema is None:
        raise InvalidConfigError(
            f"kafka.value.format={config.kafka_value_format}: topic {name} is opaque, and keeps the values of Kafka "
            "clients as they are; create it with a schema to have them in columns"
        )
    from millrace.payloads import check_format
    from millrace_broker.metadata.record_codecs import payload_format_of

    try:
        check_format(schema, key_columns, payload_format_of(config))
    except (SchemaError, EnvironmentProblemError) as error:
        raise InvalidConfigError(
            f"kafka.value.format={config.kafka_value_format}, kafka.key.format={config.kafka_key_format}: topic {name} "
            f"cannot have it: {error.message}"
        ) from error


def check_remote_storage(name: str, before: TopicConfig | None, after: TopicConfig, *, is_system_enabled: bool) -> None:
    """Raise ``InvalidConfigError`` for invalid tiering options of a topic (Kafka's ``LogConfig.validate``).

    ``before`` is its earlier configuration; None for a new topic.
    """
    if after.remote_storage_enable and not is_system_enabled:
        raise InvalidConfigError(
            f"remote.storage.enable=true: topic {name} cannot have remote storage, which is disabled in the broker; "
            "set remote.log.storage.system.enable=true and remote.log.storage.uri there"
        )
    is_disabled = before is not None and before.remote_storage_enable and not after.remote_storage_enable
    if is_disabled and not after.remote_log_delete_on_disable:
        raise InvalidConfigError(
            f"remote.storage.enable=false: topic {name} has segments in the remote store only. To delete them, set "
            "remote.log.delete.on.disable=true with it; to keep them and copy no more, set remote.storage.enable=true "
            "and remote.log.copy.disable=true"
        )


def effective_config(
    name: str, defaults: TopicConfig, overrides: Mapping[str, str], *, is_typed: bool, key_columns: Sequence[str]
) -> TopicConfig:
    """Return a topic's configuration: the broker's defaults with the topic's overrides.

    Raises ``InvalidConfigError``, which names an unknown option or a wrong value.
    """
    check_option_names(overrides)
    config = TopicConfig.load({**defaults.options(), **overrides})
    if is_typed and config.compression_type in _ROWS_ONLY:
        raise InvalidConfigError(
            f"compression.type={config.compression_type}: a typed topic's batches are columnar, which takes "
            "producer, uncompressed, lz4 or zstd"
        )
    if config.is_compacted and is_typed and not key_columns:
        raise InvalidConfigError(
            f"cleanup.policy={config.cleanup_policy}: topic {name} is typed and has no key columns to compact by; "
            "name some when creating it, or use cleanup.policy=delete"
        )
    return config


def usable_config(
    name: str, defaults: TopicConfig, overrides: Mapping[str, str], *, is_typed: bool, key_columns: Sequence[str]
) -> tuple[TopicConfig, dict[str, str]]:
    """Return the configuration of an existing topic, and the errors of the options that it leaves out.

    Broker defaults may have changed since the topic was validated. A default that contradicts the topic is replaced by
    the option's own default. A topic's own ``local.retention.*`` above an inherited ``retention.*`` is too.

    Raises ``InvalidConfigError`` if the topic's own options are invalid.
    """
    load = partial(effective_config, name, defaults, is_typed=is_typed, key_columns=key_columns)
    try:
        return load(overrides), {}
    except InvalidConfigError:
        yielding = [option for option in _YIELDING if option in _LOCAL_RETENTION or option not in overrides]
    wanted, builtin = {**defaults.options(), **overrides}, TopicConfig.load({}).options()
    usable = {**overrides, **{option: builtin[option] for option in yielding}}
    try:
        config = load(usable)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"topic {name}: {error.message}") from None
    left_out: dict[str, str] = {}
    for option in yielding:
        try:
            config = load({**usable, option: wanted[option]})
        except InvalidConfigError as error:
            left_out[option] = error.message
        else:
            usable[option] = wanted[option]
    return config, left_out
