"""Admin client: topics, schemas, configuration and ranges of logs."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from millrace.clients.acl_operations import AclOperations
from millrace.clients.cluster_operations import ClusterOperations
from millrace.clients.connections import Connections, backoff_s
from millrace.clients.epoch_ends import epoch_ends
from millrace.clients.groups.operations import GroupOperations
from millrace.clients.leaders import MOVED, LeaderCall, ask_leaders, await_leader_epochs
from millrace.clients.metadata import MetadataCache
from millrace.clients.model import (
    ClusterDescription,
    ConfigSynonym,
    ConfigValue,
    LocatedRange,
    OffsetAndTimestamp,
    TopicDescription,
    TopicPartition,
    TopicSchema,
)
from millrace.clients.offsets import isolation_number, list_offsets
from millrace.clients.payload_schemas import PayloadSchemaOperations
from millrace.clients.quota_operations import QuotaOperations
from millrace.clients.ranges import located_range
from millrace.clients.record_deletion import delete_records
from millrace.clients.transactions.operations import TransactionOperations
from millrace.clients.transport import PendingCall, unary
from millrace.config.client import ClientConfig, Isolation
from millrace.errors import MillraceError, UnknownServerError, UsageError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import error_in
from millrace.records import scan_headers
from millrace.schemas import deserialize_schema, parse_schema, serialize_schema, validate_topic_schema

_READ_CHUNK = unary(lambda stub: stub.ReadRangeChunk)
_RESOURCES = {
    "topic": pb.TOPIC,
    "broker": pb.BROKER,
    "broker-logger": pb.BROKER_LOGGER,
    "group": pb.GROUP_RESOURCE,
}
_OF_BROKERS = ("broker", "broker-logger")
"""Resources that a broker itself describes and alters."""


class Admin(
    GroupOperations,
    TransactionOperations,
    PayloadSchemaOperations,
    ClusterOperations,
    AclOperations,
    QuotaOperations,
):
    """Admin client for topics, groups, transactions, ACLs, quotas and the cluster (Kafka's ``Admin``). Thread safe.

    ``config`` is ``bootstrap.servers`` or a mapping of ``ClientConfig``'s options. Close the client when done, or use
    it in ``with``.
    """

    def __init__(self, config: str | Mapping[str, Any]) -> None:
        self._config = ClientConfig.of(config)
        self._connections = Connections(self._config)
        self._metadata = MetadataCache(self._connections)

    # --- topics ----------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        assignment: Mapping[int, Sequence[int]] | None = None,
        schema: Any = None,
        key_columns: Sequence[str] = (),
        configs: Mapping[str, Any] | None = None,
        validate_only: bool = False,
    ) -> TopicDescription | None:
        """Create a topic, typed if a ``schema`` is given (anything that ``parse_schema`` takes).

        -1 means the broker's default. ``assignment`` maps partitions to brokers instead. Returns the created topic, or
        ``None`` with ``validate_only``, which only checks.

        Raises ``TopicExistsError``, ``InvalidTopicError``, ``InvalidPartitionsError``,
        ``InvalidReplicationFactorError``, ``InvalidReplicaAssignmentError``, ``InvalidConfigError``, ``SchemaError``.
        """
        arrow_schema = b""
        if schema is not None:
            parsed = parse_schema(schema)
            validate_topic_schema(parsed, key_columns)
            arrow_schema = serialize_schema(parsed)
        elif key_columns:
            raise UsageError("key columns belong to a typed topic: give a schema, or no key columns")
        topic = pb.NewTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs={option: _option_text(value) for option, value in (configs or {}).items()},
            arrow_schema=arrow_schema,
            key_columns=key_columns,
            assignment=_assignment(assignment),
        )
        request = pb.CreateTopicsRequest(
            topics=[topic], timeout_ms=self._config.request_timeout_ms, validate_only=validate_only
        )
        response = self._connections.call(lambda stub: stub.CreateTopics, request, changes=f"create topic {name}")
        _raise_errors(response.results)
        return None if validate_only else self._metadata.topic(name, fresh=True)

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics with all their records; raises the first error after trying all of them."""
        wanted = list(names)
        request = pb.DeleteTopicsRequest(names=wanted, timeout_ms=self._config.request_timeout_ms)
        response = self._connections.call(
            lambda stub: stub.DeleteTopics, request, changes=f"delete {', '.join(wanted)}"
        )
        self._metadata.forget(wanted)
        _raise_errors(response.results)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records; raises ``UnknownTopicOrPartitionError``."""
        self.delete_topics([name])

    def list_topics(self, *, include_internal: bool = False) -> list[TopicDescription]:
        """Describe all topics, sorted by name."""
        topics = [topic for topic in self._metadata.fetch() if include_internal or not topic.is_internal]
        return sorted(topics, key=lambda topic: topic.name)

    def describe_topic(self, name: str) -> TopicDescription:
        """Describe a topic; raises ``UnknownTopicOrPartitionError``."""
        return self._metadata.topic(name, fresh=True)

    def describe_cluster(self) -> ClusterDescription:
        """Return the cluster's id and brokers."""
        return self._metadata.cluster()

    def broker_version(self) -> str:
        """Return the software version of a broker; also the cheapest check that a broker answers."""
        response = self._connections.call(
            lambda stub: stub.ApiVersions, pb.ApiVersionsRequest(client_software_name="millrace")
        )
        return response.software_version

    def create_partitions(
        self,
        name: str,
        total: int,
        *,
        assignment: Mapping[int, Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Raise a topic's number of partitions to ``total``; raises ``InvalidPartitionsError``.

        ``assignment`` maps new partitions to brokers. Records stay in their partitions, so the records of a key may
        be in two partitions from then on.
        """
        request = pb.CreatePartitionsRequest(
            topics=[pb.CreatePartitionsRequest.TopicCount(name=name, count=total, assignment=_assignment(assignment))],
            timeout_ms=self._config.request_timeout_ms,
            validate_only=validate_only,
        )
        response = self._connections.call(
            lambda stub: stub.CreatePartitions, request, changes=f"add partitions to {name}"
        )
        self._metadata.forget(name)
        _raise_errors(response.results)

    # --- schemas ---------------------------------------------------------------------------------------------

    def evolve_schema(self, topic: str, schema: Any) -> TopicSchema:
        """Create a new version of a typed topic's schema, if the topic's ``schema.compatibility`` allows it.

        Raises ``IncompatibleSchemaError`` with column, change and mode.
        """
        request = pb.EvolveSchemaRequest(topic=topic, arrow_schema=serialize_schema(parse_schema(schema)))
        response = self._connections.call(
            lambda stub: stub.EvolveSchema, request, changes=f"change the schema of {topic}"
        )
        self._metadata.forget(topic)
        return _topic_schema(response.schema)

    def check_schema(self, topic: str, schema: Any, *, compatibility: str = "") -> TopicSchema:
        """Check ``evolve_schema`` without a change; returns the resulting version, with id 0.

        An unchanged schema is returned as it is. ``compatibility`` checks by another mode than the topic's. Raises
        ``IncompatibleSchemaError``, and ``InvalidConfigError`` for an unknown mode.
        """
        request = pb.EvolveSchemaRequest(
            topic=topic,
            arrow_schema=serialize_schema(parse_schema(schema)),
            validate_only=True,
            compatibility=compatibility,
        )
        return _topic_schema(self._connections.call(lambda stub: stub.EvolveSchema, request).schema)

    def topic_schemas(self, topic: str) -> list[TopicSchema]:
        """Return all versions of a topic's schema, oldest first; none for an opaque topic."""
        response = self._connections.call(lambda stub: stub.GetSchemas, pb.GetSchemasRequest(topic=topic))
        return sorted(map(_topic_schema, response.schemas), key=lambda schema: schema.version)

    # --- configuration ---------------------------------------------------------------------------------------

    def describe_configs(self, name: str, *, resource: str = "topic") -> dict[str, ConfigValue]:
        """Return all options of a topic, of a broker by its id (``resource="broker"``), or of a group (``"group"``).

        The broker name ``""`` returns the dynamic options of all brokers. ``"broker-logger"`` returns the levels of a
        broker's loggers.
        """
        wanted = pb.ConfigResource(type=_resource_type(resource), name=str(name))
        response = self._connections.call(
            lambda stub: stub.DescribeConfigs,
            pb.DescribeConfigsRequest(resources=[wanted]),
            address=self._broker_address(str(name)) if resource in _OF_BROKERS else None,
        )
        _raise_errors(response.results)
        return {
            entry.name: ConfigValue(
                value=entry.value,
                source=entry.source,
                is_sensitive=entry.is_sensitive,
                documentation=entry.documentation,
                synonyms=tuple(
                    ConfigSynonym(name=each.name, value=each.value, source=each.source) for each in entry.synonyms
                ),
            )
            for result in response.results
            for entry in result.entries
        }

    def _broker_address(self, name: str) -> str | None:
        """Return a broker's own address; None lets any broker report that the name is unknown."""
        if not name.isdigit():
            return None
        self._metadata.cluster()
        return self._metadata.address_of(int(name))

    def alter_configs(
        self,
        name: str,
        configs: Mapping[str, Any] | None = None,
        *,
        delete: Iterable[str] = (),
        append: Mapping[str, Any] | None = None,
        subtract: Mapping[str, Any] | None = None,
        resource: str = "topic",
        validate_only: bool = False,
    ) -> None:
        """Set options and reset others to their defaults; raises ``InvalidConfigError`` and then changes nothing.

        ``append`` and ``subtract`` add elements to lists and remove elements from them (KIP-339). Some broker options
        are dynamic: of one broker by its id, of all by ``""`` (``resource="broker"``). ``resource="broker-logger"``
        changes the levels of a broker's loggers.
        """
        alteration = pb.AlterConfigsRequest.Alteration(
            resource=pb.ConfigResource(type=_resource_type(resource), name=str(name)),
            set={option: _option_text(value) for option, value in (configs or {}).items()},
            delete=list(delete),
            append={option: _option_text(value) for option, value in (append or {}).items()},
            subtract={option: _option_text(value) for option, value in (subtract or {}).items()},
        )
        request = pb.AlterConfigsRequest(alterations=[alteration], validate_only=validate_only)
        # The call is idempotent, so retries are safe: an element is in a list once. A broker validates its own options.
        response = self._connections.call(
            lambda stub: stub.AlterConfigs,
            request,
            address=self._broker_address(str(name)) if resource in _OF_BROKERS else None,
        )
        _raise_errors(response.results)

    # --- logs ------------------------------------------------------------------------------------------------

    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, str | int | datetime],
        *,
        isolation_level: str = Isolation.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Look up offsets: ``"earliest"``, ``"latest"``, ``"max-timestamp"``, or the first at or after a time.

        A time is in ms or a ``datetime`` with zone. The offset is -1 if no record is that new.
        """
        return list_offsets(self._connections, self._metadata, wanted, isolation_level=isolation_level)

    def epoch_ends(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Look up the offset (exclusive) at which a leader epoch ends in each partition's log (KIP-320).

        An epoch without records ends at the end of the previous one, and the last epoch ends at the end of the log.
        None means that the log does not know the epoch. A reader beyond the returned offset has read records that the
        log lost.
        """
        return epoch_ends(self._connections, self._metadata, wanted)

    def await_leader_epochs(self, epochs: Mapping[TopicPartition, int]) -> None:
        """Fetch metadata until the leader epoch of each partition is at least the given one (KIP-320).

        A reader that stored leader epochs calls this method when a leader answers with an older epoch. The method
        returns after ``default.api.timeout.ms`` in any case.
        """
        await_leader_epochs(self._connections, self._metadata, epochs)

    def delete_records(self, before: Mapping[TopicPartition, int | str]) -> dict[TopicPartition, int]:
        """Delete the records of partitions before an offset; ``"latest"`` (or -1) deletes all of them.

        Returns the new log start offsets; an offset before the log start changes nothing. Raises the first error
        after all partitions were tried: ``OffsetOutOfRangeError`` for an offset above the high watermark,
        ``PolicyViolationError`` for a topic that is only compacted.
        """
        starts, failed = delete_records(
            self._connections, self._metadata, before, timeout_ms=self._config.request_timeout_ms
        )
        for error in failed.values():
            raise error
        return starts

    def locate_range(
        self,
        topic: str,
        partition: int,
        start_offset: int,
        end_offset: int = -1,
        *,
        split_bytes: int = 0,
        topic_id: uuid.UUID | None = None,
        isolation_level: str = Isolation.READ_UNCOMMITTED,
    ) -> LocatedRange:
        """Find the extents of segment files that hold a range of offsets, split to about ``split_bytes`` (0: no
        split).

        ``end_offset`` is exclusive; -1 means the high watermark (or last stable offset). With ``topic_id``, a topic
        that was created again raises ``InconsistentTopicIdError``. With read_committed the result includes the
        aborted transactions that overlap the range. Raises ``OffsetOutOfRangeError``.
        """
        request = pb.LocateRangeRequest(
            topic=topic,
            topic_id=topic_id.bytes if topic_id else b"",
            partition=partition,
            start_offset=start_offset,
            end_offset=end_offset,
            split_bytes=split_bytes,
            isolation_level=isolation_number(isolation_level),
        )
        wanted = TopicPartition(topic, partition)
        call = LeaderCall(
            lambda stub: stub.LocateRange,
            lambda partitions: request,
            lambda response, partitions: {wanted: located_range(response)},
        )
        located = ask_leaders(self._connections, self._metadata, [wanted], call)[wanted]
        if isinstance(located, MillraceError):
            raise located
        return located

    def read_range(
        self,
        topic: str,
        partition: int,
        start_offset: int,
        end_offset: int,
        *,
        topic_id: uuid.UUID | None = None,
        isolation_level: str = Isolation.READ_UNCOMMITTED,
    ) -> Iterator[bytes]:
        """Stream the batches of a range as chunks of whole batches; the first and last batch may exceed the range.

        With read_committed the range must end before the last stable offset. The stream still contains the records of
        aborted transactions; ``locate_range`` lists those transactions.

        If the connection breaks, the stream continues after the last received batch. Without progress for
        ``socket.connection.setup.timeout.ms`` it raises ``BrokerUnavailableError``.
        """
        attempt = 0
        position = start_offset
        while position < end_offset:
            request = pb.ReadRangeRequest(
                topic=topic,
                topic_id=topic_id.bytes if topic_id else b"",
                partition=partition,
                start_offset=position,
                end_offset=end_offset,
                isolation_level=isolation_number(isolation_level),
            )
            try:
                for records in self._read_at_leader(request):
                    attempt = 0
                    yield records
                    position = max(position, _next_offset(records))
                return
            except MOVED:
                if self._waited_too_long(attempt):
                    raise
                self._metadata.forget(topic)
                self._connections.wait(backoff_s(self._config, attempt))
                attempt += 1

    def _read_at_leader(self, request: pb.ReadRangeRequest) -> Iterator[bytes]:
        address = self._metadata.leader_address(TopicPartition(request.topic, request.partition))
        pending: PendingCall[pb.ReadRangeResponse] | None = self._begin_chunk(request, address)
        try:
            while pending is not None:
                records = pending.result().records
                position = _next_offset(records)
                pending = None
                if request.start_offset < position < request.end_offset:
                    following = pb.ReadRangeRequest()
                    following.CopyFrom(request)
                    following.start_offset = position
                    request, pending = following, self._begin_chunk(following, address)
                yield records  # while the broker reads the next chunk
        finally:
            if pending is not None:
                pending.cancel()

    def _begin_chunk(self, request: pb.ReadRangeRequest, address: str) -> PendingCall[pb.ReadRangeResponse]:
        timeout_s = self._config.request_timeout_ms / 1000
        return self._connections.begin(_READ_CHUNK, request, address=address, timeout_s=timeout_s, cancellable=True)

    def _waited_too_long(self, attempt: int) -> bool:
        waited_ms = sum(
            min(self._config.retry_backoff_ms * (1 << min(step, 30)), self._config.retry_backoff_max_ms)
            for step in range(attempt)
        )
        return waited_ms >= self._config.socket_connection_setup_timeout_ms

    # --- life ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections. May be called twice."""
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _next_offset(records: bytes) -> int:
    last = 0
    for _, header in scan_headers(records):
        last = header.next_offset
    return last


def _resource_type(resource: str) -> pb.ConfigResourceType.ValueType:
    if resource not in _RESOURCES:
        raise UsageError(f"resource {resource!r}: it is topic, broker, broker-logger or group")
    return _RESOURCES[resource]


def _option_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _assignment(replicas: Mapping[int, Sequence[int]] | None) -> list[pb.PartitionReplicas]:
    return [pb.PartitionReplicas(partition=number, replicas=each) for number, each in (replicas or {}).items()]


def _topic_schema(schema: pb.Schema) -> TopicSchema:
    return TopicSchema(id=schema.id, version=schema.version, schema=deserialize_schema(schema.arrow_schema))


def _raise_errors(results: Iterable[Any]) -> None:
    errors = [error for result in results if (error := error_in(result.error)) is not None]
    if errors:
        if isinstance(errors[0], UnknownServerError) and not errors[0].message:
            raise UnknownServerError("the broker failed: its log has the reason")
        raise errors[0]
