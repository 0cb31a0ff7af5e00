"""Topic options: Kafka's names, meanings and defaults (Kafka 3.9, "Topic Configs")."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Final, Self

from pydantic import Field, field_validator, model_validator

from millrace.config.base import Config
from millrace.config.integers import INT_MAX, LONG_MAX, LONG_MIN, Int32, Int64

_LIKE_TOTAL = -2
"""Local retention equal to the total retention."""
_LZ4_LEVEL_DEFAULT: Final = 9
_LZ4_LEVEL_MAX: Final = 12
_THROTTLED: Final = re.compile(r"\d+:\d+(,\d+:\d+)*")

COMPACT: Final = "compact"
DELETE: Final = "delete"


class CompressionType(StrEnum):
    """Stored compression: the producer's, or one for all batches."""

    PRODUCER = "producer"
    UNCOMPRESSED = "uncompressed"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class MessageTimestampType(StrEnum):
    """Source of a record's timestamp: producer or broker."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class SchemaCompatibility(StrEnum):
    """Allowed changes of a typed topic's schema (Confluent's compatibility modes).

    ``millrace.schemas.compatibility`` defines each mode.
    """

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_backward(self) -> bool:
        """True if readers with the new version must read older records."""
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def is_forward(self) -> bool:
        """True if readers with an older version must read new records."""
        return self.startswith(("FORWARD", "FULL"))

    @property
    def is_transitive(self) -> bool:
        """True if the new version is checked against every older version, not only the last."""
        return self.endswith("_TRANSITIVE")


class KafkaValueFormat(StrEnum):
    """Format of the values that Kafka clients exchange with a typed topic."""

    NONE = "none"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    RAW = "raw"


class KafkaKeyFormat(StrEnum):
    """Format of the keys that Kafka clients exchange with a typed topic."""

    BINARY = "binary"
    STRING = "string"
    JSON = "json"
    IGNORE = "ignore"


class Framing(StrEnum):
    """Prefix before a payload."""

    NONE = "none"
    CONFLUENT = "confluent"


class TopicConfig(Config):
    """Configuration of one topic. The broker provides the defaults."""

    segment_bytes: int = Field(2**30, ge=14, le=INT_MAX, description="Largest size of a segment file, in bytes.")
    segment_ms: int = Field(
        604_800_000, ge=1, le=LONG_MAX, description="Age at which a segment is rolled even if it is not full."
    )
    segment_jitter_ms: Int64 = Field(0, description="Largest random reduction of segment.ms.")
    segment_index_bytes: int = Field(
        10 * 2**20, ge=4, le=INT_MAX, description="Largest size of the offset index of a segment, in bytes."
    )
    index_interval_bytes: Int32 = Field(4096, description="Bytes of records between two entries of the offset index.")
    max_message_bytes: Int32 = Field(
        16 * 2**20, description="Largest record batch accepted, in bytes. Kafka's default is 1048588."
    )
    compression_type: CompressionType = Field(
        CompressionType.PRODUCER,
        description="Compression of stored batches. The value producer keeps the compression of the producer.",
    )
    compression_gzip_level: int = Field(
        -1, ge=-1, le=9, description="Level of gzip for compression.type=gzip: 1 to 9, or -1 for gzip's default."
    )
    compression_lz4_level: int = Field(
        _LZ4_LEVEL_DEFAULT,
        ge=1,
        le=17,
        description="Level of lz4 for compression.type=lz4: 1 to 17. As in Kafka, 9 is lz4's fast mode. Levels above "
        "12 equal 12. Columnar batches have no levels.",
    )
    compression_zstd_level: int = Field(
        3,
        ge=-131_072,
        le=22,
        description="Level of zstd for compression.type=zstd: -131072 to 22. Columnar batches have no levels.",
    )
    message_timestamp_type: MessageTimestampType = Field(
        MessageTimestampType.CREATE_TIME,
        description="Whether records have the time of the producer (CreateTime) or of the broker (LogAppendTime).",
    )
    message_timestamp_before_max_ms: Int64 = Field(
        LONG_MAX, description="How far a record's timestamp may lie before the broker's time."
    )
    message_timestamp_after_max_ms: Int64 = Field(
        LONG_MAX,
        description="How far a record's timestamp may lie after the broker's time. The default of Kafka 4 is 3600000.",
    )
    flush_messages: int = Field(
        LONG_MAX, ge=1, le=LONG_MAX, description="Number of records after which the log is fsynced."
    )
    flush_ms: Int64 = Field(LONG_MAX, description="Time after which the log is fsynced.")
    flush_before_ack: bool = Field(
        False,
        description="Whether records are fsynced before they are acknowledged and read. Kafka has no such option.",
    )
    retention_ms: int = Field(
        604_800_000, ge=-1, le=LONG_MAX, description="Age at which a segment is deleted; -1 never."
    )
    retention_bytes: int = Field(
        -1, ge=LONG_MIN, le=LONG_MAX, description="Size over which old segments are deleted; -1 none."
    )
    file_delete_delay_ms: Int64 = Field(
        60_000, description="Time between the removal of a segment from the log and the deletion of its file."
    )
    preallocate: bool = Field(
        False, description="Whether Kafka allocates the file of a segment at its creation. It has no effect here."
    )
    cleanup_policy: str = Field(
        DELETE,
        description="Policy for old records: delete, compact (the last record of each key stays), or both. Empty: all "
        "records stay, until a client deletes them.",
    )
    min_cleanable_dirty_ratio: float = Field(
        0.5, ge=0, le=1, description="Smallest dirty ratio at which a log is cleaned."
    )
    min_compaction_lag_ms: Int64 = Field(0, description="Time for which compaction keeps every record.")
    max_compaction_lag_ms: int = Field(
        LONG_MAX,
        ge=1,
        le=LONG_MAX,
        description="Time after which a record is compacted, whatever the dirty ratio is.",
    )
    delete_retention_ms: Int64 = Field(86_400_000, description="Time for which compaction keeps tombstones.")
    min_insync_replicas: int = Field(
        1, ge=1, le=INT_MAX, description="Smallest ISR with which a write with acks=all succeeds."
    )
    unclean_leader_election_enable: bool = Field(
        False,
        description="Whether a replica outside the ISR can become leader if no other replica is left. Records can be "
        "lost.",
    )
    leader_replication_throttled_replicas: str = Field(
        "", description="Throttled replicas on the side of the leader: partition:broker,..., or * for all."
    )
    follower_replication_throttled_replicas: str = Field(
        "", description="Throttled replicas on the side of the follower: partition:broker,..., or * for all."
    )
    schema_compatibility: SchemaCompatibility = Field(
        SchemaCompatibility.FULL, description="Allowed changes of the schema of a typed topic."
    )
    kafka_value_format: KafkaValueFormat = Field(
        KafkaValueFormat.NONE,
        description="Format of values of Kafka clients in a typed topic: json, avro, protobuf, raw (the bytes of the "
        "one value column), or none, which refuses Kafka clients. Opaque topics ignore it.",
    )
    kafka_value_framing: Framing = Field(
        Framing.NONE,
        description="Prefix of values of Kafka clients in a typed topic: none, or confluent (a zero byte and the id of "
        "the value's schema).",
    )
    kafka_value_schema_id: Int32 = Field(
        0,
        description="Id of the payload schema for values of Kafka clients in a typed topic. 0: the schema that the "
        "topic's columns give.",
    )
    kafka_value_message: str = Field(
        "",
        description="Name of the message in the schema of kafka.value.schema.id, for kafka.value.format=protobuf. "
        "Empty: the only one.",
    )
    kafka_key_format: KafkaKeyFormat = Field(
        KafkaKeyFormat.BINARY,
        description="Format of keys of Kafka clients in a typed topic: binary (the bytes of Kafka's serializers), "
        "string (the text of the one key column), json (an object of the key columns), or ignore.",
    )
    remote_storage_enable: bool = Field(False, description="Whether sealed segments are copied to the remote store.")
    local_retention_ms: int = Field(
        _LIKE_TOTAL,
        ge=_LIKE_TOTAL,
        le=LONG_MAX,
        description="Age at which a copied segment is deleted from the broker's disk; -2: retention.ms.",
    )
    local_retention_bytes: int = Field(
        _LIKE_TOTAL,
        ge=_LIKE_TOTAL,
        le=LONG_MAX,
        description="Size over which copied segments are deleted from the broker's disk; -2: retention.bytes.",
    )
    remote_log_copy_disable: bool = Field(
        False, description="Whether the broker stops copying to the remote store. Records there can still be read."
    )
    remote_log_delete_on_disable: bool = Field(
        False, description="Whether disabling remote.storage.enable deletes the records in the remote store."
    )

    @property
    def compression_level(self) -> int | None:
        """Level of ``compression.type`` for batches of rows. ``None`` is the codec's default."""
        if self.compression_type is CompressionType.GZIP:
            return self.compression_gzip_level
        if self.compression_type is CompressionType.ZSTD:
            return self.compression_zstd_level
        if self.compression_type is CompressionType.LZ4 and self.compression_lz4_level != _LZ4_LEVEL_DEFAULT:
            return min(self.compression_lz4_level, _LZ4_LEVEL_MAX)
        return None

    @property
    def is_copied(self) -> bool:
        """True if sealed segments are copied to the remote store and leave the disk only after that."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def disk_retention_ms(self) -> int:
        """Age at which a segment leaves the broker's disk; -1 for none."""
        has_own = self.is_copied and self.local_retention_ms != _LIKE_TOTAL
        return self.local_retention_ms if has_own else self.retention_ms

    @property
    def disk_retention_bytes(self) -> int:
        """Size above which segments leave the broker's disk; -1 for none."""
        has_own = self.is_copied and self.local_retention_bytes != _LIKE_TOTAL
        return self.local_retention_bytes if has_own else self.retention_bytes

    @property
    def is_compacted(self) -> bool:
        """True if compaction keeps only the last record of each key."""
        return COMPACT in self.cleanup_policy.split(",")

    @property
    def is_deleted(self) -> bool:
        """True if retention by time and size deletes segments."""
        return DELETE in self.cleanup_policy.split(",")

    @property
    def syncs_before_ack(self) -> bool:
        """True if every record is on the disk before it is acknowledged, also by ``flush.messages=1``."""
        return self.flush_before_ack or self.flush_messages == 1

    @property
    def roll_ms(self) -> int:
        """Age at which a segment is rolled; compaction, which leaves the last one alone, may need it earlier."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @model_validator(mode="before")
    @classmethod
    def _trim(cls, values: Any) -> Any:
        """Remove the spaces around each value, as Kafka does."""
        if not isinstance(values, dict):
            return values
        return {name: value.strip() if isinstance(value, str) else value for name, value in values.items()}

    @field_validator("leader_replication_throttled_replicas", "follower_replication_throttled_replicas")
    @classmethod
    def _check_throttled(cls, value: str) -> str:
        value = ",".join(filter(None, map(str.strip, value.split(","))))  # Kafka takes empty elements
        if value not in ("", "*") and not _THROTTLED.fullmatch(value):
            raise ValueError("expected partition:broker,partition:broker,... or *")
        return value

    @field_validator("compression_gzip_level")
    @classmethod
    def _check_gzip_level(cls, value: int) -> int:
        if value == 0:
            raise ValueError("expected 1 to 9, or -1")
        return value

    @field_validator("cleanup_policy")
    @classmethod
    def _check_policy(cls, value: str) -> str:
        policies = [part.strip() for part in value.split(",")] if value else []
        if not set(policies) <= {COMPACT, DELETE}:
            raise ValueError("expected delete, compact, compact,delete or no policy")
        return ",".join(dict.fromkeys(policies))

    @model_validator(mode="after")
    def _check_lags(self) -> Self:
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise ValueError(
                f"min.compaction.lag.ms={self.min_compaction_lag_ms} is above "
                f"max.compaction.lag.ms={self.max_compaction_lag_ms}"
            )
        return self

    @model_validator(mode="after")
    def _check_payloads(self) -> Self:
        value_format = self.kafka_value_format
        has_schema = value_format not in (KafkaValueFormat.NONE, KafkaValueFormat.RAW)
        if self.kafka_value_framing is not Framing.NONE and not (has_schema and self.kafka_value_schema_id):
            raise ValueError(
                f"kafka.value.framing={self.kafka_value_framing} needs kafka.value.format=json, avro or protobuf, and "
                "kafka.value.schema.id, which is the id before the values that Kafka consumers get"
            )
        if self.kafka_value_schema_id and not has_schema:
            raise ValueError(
                f"kafka.value.schema.id={self.kafka_value_schema_id} needs kafka.value.format=json, avro or protobuf"
            )
        if self.kafka_value_message and not (value_format is KafkaValueFormat.PROTOBUF and self.kafka_value_schema_id):
            raise ValueError(
                f"kafka.value.message={self.kafka_value_message} needs kafka.value.format=protobuf and "
                "kafka.value.schema.id"
            )
        return self

    @model_validator(mode="after")
    def _check_remote_storage(self) -> Self:
        if not self.remote_storage_enable:
            return self
        if self.is_compacted:
            raise ValueError(
                f"remote.storage.enable=true with cleanup.policy={self.cleanup_policy}: "
                "remote storage is not supported for compacted topics"
            )
        for unit in ("ms", "bytes"):
            local, total = getattr(self, f"local_retention_{unit}"), getattr(self, f"retention_{unit}")
            if local != _LIKE_TOTAL and total >= 0 and not 0 <= local <= total:
                raise ValueError(f"local.retention.{unit}={local} is above retention.{unit}={total}")
            if self.remote_log_copy_disable and local not in (_LIKE_TOTAL, total):
                raise ValueError(
                    f"local.retention.{unit}={local} with remote.log.copy.disable=true: segments "
                    f"without a copy are kept for retention.{unit}; set -2"
                )
        return self
