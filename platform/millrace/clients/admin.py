"""Admin client: topics, schemas and configuration. ``*_operations`` and ``operations`` have the other calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from millrace.clients.acl_operations import AclOperations
from millrace.clients.cluster_operations import ClusterOperations
from millrace.clients.connections import Connections
from millrace.clients.groups.operations import GroupOperations
from millrace.clients.log_operations import LogOperations
from millrace.clients.metadata import MetadataCache
from millrace.clients.model import (
    ClusterDescription,
    ConfigSynonym,
    ConfigValue,
    TopicDescription,
    TopicSchema,
)
from millrace.clients.payload_schemas import PayloadSchemaOperations
from millrace.clients.quota_operations import QuotaOperations
from millrace.clients.request_numbers import numbers_checked
from millrace.clients.scram_credentials import ScramOperations
from millrace.clients.transactions.operations import TransactionOperations
from millrace.config.client import ClientConfig
from millrace.errors import UnknownServerError, UsageError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import error_in
from millrace.schemas import deserialize_schema, parse_schema, serialize_schema, validate_topic_schema

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
    LogOperations,
    TransactionOperations,
    PayloadSchemaOperations,
    ClusterOperations,
    AclOperations,
    QuotaOperations,
    ScramOperations,
):
    """Administration client of a cluster (Kafka's ``Admin``). Thread safe.

    It has operations on topics, groups, transactions, ACLs, quotas, SCRAM credentials and the cluster. ``config`` is
    ``bootstrap.servers`` or a mapping of ``ClientConfig``'s options. Close the client when done, or use it in ``with``.
    """

    def __init__(self, config: str | Mapping[str, Any]) -> None:
        self._config = ClientConfig.of(config)
        self._connections = Connections(self._config)
        self._metadata = MetadataCache(self._connections)

    # --- topics ----------------------------------------------------------------------------------------------

    @numbers_checked()
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
        ``InvalidReplicationFactorError``, ``InvalidReplicaAssignmentError``, ``InvalidConfigError``, ``SchemaError``,
        ``PolicyViolationError`` for too many partitions, and ``UsageError`` for a number that no request can hold.
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

    def find_topics(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        """Describe those of these topics that exist, with one call."""
        wanted = list(dict.fromkeys(names))
        found = self._metadata.find(wanted)[0] if wanted else []
        return {topic.name: topic for topic in found}

    def describe_cluster(self) -> ClusterDescription:
        """Return the cluster's id and brokers."""
        return self._metadata.cluster()

    def broker_version(self) -> str:
        """Return the software version of a broker; also the cheapest check that a broker answers."""
        response = self._connections.call(
            lambda stub: stub.ApiVersions, pb.ApiVersionsRequest(client_software_name="millrace")
        )
        return response.software_version

    @numbers_checked()
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
        if not (name.isascii() and name.isdecimal()):
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
