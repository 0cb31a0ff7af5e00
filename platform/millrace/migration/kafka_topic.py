"""Reader of a Kafka topic, by confluent-kafka.

Spark's Kafka source is not used, because a copy keeps the order within each partition and learns the new offset of
each record. So one process reads a partition. Also, confluent-kafka needs no JARs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from millrace.errors import EnvironmentProblemError, UsageError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_SECONDS_MAX: Final = 30
_POLL_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaRecord:
    """A record to write, with its offset in Kafka."""

    partition: int
    old_offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int | None


@dataclass(slots=True)
class Fetched:
    """Records by partition, and the ends that were reached.

    ``ends`` has the end offsets of partitions without further records for now.
    """

    records: dict[int, list[KafkaRecord]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of records."""
        return sum(len(each) for each in self.records.values())


class KafkaTopic:
    """A topic of a Kafka cluster, as a context manager. Reads committed records only."""

    def __init__(self, bootstrap_servers: str, topic: str, options: Mapping[str, str] | None = None) -> None:
        """Connect; ``options`` are librdkafka's (``security.protocol`` and the like).

        Raises ``EnvironmentProblemError`` if confluent-kafka is missing or no broker answers, ``UsageError`` for
        wrong options.
        """
        try:
            import confluent_kafka
            from confluent_kafka import admin
        except ImportError:
            raise EnvironmentProblemError(
                "Kafka is read by confluent-kafka, which is not installed: pip install 'millrace[kafka]'"
            ) from None
        self._kafka: Any = confluent_kafka
        self.topic = topic
        self.bootstrap_servers = bootstrap_servers
        settings: dict[str, Any] = {"log_level": 0, **(options or {}), "bootstrap.servers": bootstrap_servers}
        reading = {
            "group.id": f"millrace-copy-{topic}",  # required by the client, but no offset is ever committed to it
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
        }
        try:
            self.admin: Any = admin.AdminClient(settings)
            self._consumer: Any = confluent_kafka.Consumer(settings | reading)
        except (confluent_kafka.KafkaException, ValueError, TypeError) as error:
            raise UsageError(f"options of Kafka's client: {_text(error)}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def describe(self) -> tuple[str, int]:
        """Return the cluster's id and the number of partitions. Raises ``UsageError`` if the topic does not exist."""
        try:
            # List all topics, because brokers may create a topic that is requested by name.
            found = self.admin.list_topics(timeout=_SECONDS_MAX)
        except self._kafka.KafkaException as error:
            raise EnvironmentProblemError(
                f"no Kafka broker answers at {self.bootstrap_servers} ({_text(error)}): correct the address or options"
            ) from error
        topic = found.topics.get(self.topic)
        if topic is None or not topic.partitions:
            raise UsageError(f"Kafka has no topic {self.topic}: correct the name")
        return str(found.cluster_id), len(topic.partitions)

    def configs(self) -> dict[str, str]:
        """Return the options that are set on the topic itself."""
        from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType

        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        found = self.admin.describe_configs([resource])[resource].result(_SECONDS_MAX)
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {name: entry.value for name, entry in found.items() if entry.source == own and entry.value is not None}

    def first_offset(self, partition: int) -> int:
        """Return the oldest offset of a partition in Kafka."""
        low, _ = self._consumer.get_watermark_offsets(
            self._kafka.TopicPartition(self.topic, partition), timeout=_SECONDS_MAX
        )
        return int(low)

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets on."""
        self._consumer.assign(
            [self._kafka.TopicPartition(self.topic, partition, offset) for partition, offset in offsets.items()]
        )

    def fetch(self, records_max: int) -> Fetched:
        """Return some of the next records; none after half a second without any.

        Raises ``EnvironmentProblemError`` for errors from Kafka.
        """
        fetched = Fetched()
        for message in self._consumer.consume(records_max, timeout=_POLL_SECONDS):
            error = message.error()
            if error is None:
                fetched.records.setdefault(message.partition(), []).append(self._record(message))
            elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                fetched.ends[message.partition()] = message.offset()
            elif not error.retriable():
                raise EnvironmentProblemError(f"Kafka's {self.topic}-{message.partition()}: {error.str()}")
        return fetched

    def group_offsets(self, group: str) -> Iterator[tuple[int, int, str]]:
        """Yield a consumer group's committed offsets of the topic: partition, offset, metadata.

        Raises ``EnvironmentProblemError`` if Kafka returns an error, for example while it loads the group's offsets.
        """
        wanted = [self._kafka.ConsumerGroupTopicPartitions(group)]
        (found,) = self.admin.list_consumer_group_offsets(wanted).values()
        for place in found.result(_SECONDS_MAX).topic_partitions:
            if place.error is not None:
                raise EnvironmentProblemError(
                    f"Kafka returns no committed offset of group {group} for "
                    f"{place.topic}-{place.partition}: {place.error.str()}; run the job again"
                )
            if place.topic == self.topic and place.offset >= 0:
                yield place.partition, place.offset, place.metadata or ""

    def groups(self) -> list[str]:
        """Return the names of all consumer groups of the cluster."""
        return sorted(group.group_id for group in self.admin.list_consumer_groups().result(_SECONDS_MAX).valid)

    def _record(self, message: Any) -> KafkaRecord:
        kind, timestamp_ms = message.timestamp()
        return KafkaRecord(
            partition=message.partition(),
            old_offset=message.offset(),
            key=message.key(),
            value=message.value(),
            headers=tuple(message.headers() or ()),
            timestamp_ms=None if kind == self._kafka.TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        )


def _text(error: Exception) -> str:
    """Return the message of a ``KafkaException``."""
    inner = error.args[0] if error.args else error
    return str(inner.str() if hasattr(inner, "str") else inner)
