"""Topic changes, validated and written to coordination in one transaction each.

The controller sees created and deleted topics by its watches. It then elects leaders, and has brokers create and delete
logs. Brokers see other changes by their notices (``millrace_broker.cluster``).

All methods block and run in one thread at a time (the broker's administration thread). Several brokers of a cluster may
make changes at once, so a write is conditional on the versions that were read.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from millrace.config.broker import BrokerConfig
from millrace.config.topic import KafkaValueFormat, TopicConfig
from millrace.coordination import (
    BadVersionError,
    Check,
    Coordination,
    Create,
    NodeExistsError,
    NoNodeError,
    Operation,
    Write,
    paths,
)
from millrace.coordination.nodes import ConfigNode, SchemaNode, TopicNode, TypedTopicNode
from millrace.coordination.outcomes import settle
from millrace.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    ReassignmentInProgressError,
    SchemaError,
    TopicDeletionDisabledError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from millrace.ids import id_text
from millrace.topic_names import is_topic_name
from millrace_broker.metadata import registration, topic_rules
from millrace_broker.metadata.assignment import (
    Assignment,
    BrokerRack,
    assign_more_partitions,
    assign_replicas,
    check_assignment,
)
from millrace_broker.metadata.catalog import TopicCatalog
from millrace_broker.metadata.config_nodes import alter_options, check_option_changes
from millrace_broker.metadata.config_notices import notice
from millrace_broker.metadata.option_changes import OptionChange
from millrace_broker.metadata.topics import SchemaVersion, TopicInfo

if TYPE_CHECKING:
    import pyarrow as pa

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """Topic to create, Kafka's ``NewTopic``.

    The numbers of partitions and replicas are -1 for the broker's defaults. ``arrow_schema`` is empty for an opaque
    topic. ``assignment`` sets the replicas of each partition, and the numbers must then be -1.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    arrow_schema: bytes = b""
    key_columns: tuple[str, ...] = ()
    assignment: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


class TopicChanges:
    """Creation, alteration and deletion of topics."""

    def __init__(
        self,
        config: BrokerConfig,
        coordination: Coordination,
        catalog: TopicCatalog,
        *,
        configured: Callable[[str, TopicConfig], None],
        gone: Callable[[TopicInfo], None],
    ) -> None:
        """``configured`` applies a topic's changed configuration on this broker; ``gone`` is called for deleted topics,
        which are no longer in the catalog.
        """
        self._config = config
        self._coordination = coordination
        self._catalog = catalog
        self._configured = configured
        self._gone = gone

    def create(self, spec: TopicSpec, *, validate_only: bool = False) -> TopicInfo | None:
        """Create a topic. Return None if only validating.

        Raises ``InvalidTopicError``, ``TopicExistsError``, ``InvalidPartitionsError``,
        ``InvalidReplicationFactorError``, ``InvalidReplicaAssignmentError``, ``InvalidConfigError``, ``SchemaError``,
        ``PolicyViolationError`` for too many partitions.
        """
        assignment = self._check_new(spec)
        if validate_only:
            return None
        topic_id = _new_topic_id()
        try:
            self._write(lambda: self._topic_nodes(spec, topic_id, assignment))
        except NodeExistsError as error:
            raise TopicExistsError(f"topic {spec.name} already exists") from error
        topic = self._catalog.refresh(spec.name)
        if topic is None:
            raise UnknownTopicOrPartitionError(
                f"topic {spec.name} was created, and another client deleted it immediately"
            )
        _logger.info("created topic %s (%s) with %d partitions", topic.name, id_text(topic_id), len(assignment))
        return topic

    def delete(self, name: str) -> TopicInfo:
        """Mark a topic for deletion, so that clients do not find it and the controller deletes its data.

        Raises ``UnknownTopicOrPartitionError``, and ``TopicDeletionDisabledError`` if ``delete.topic.enable`` is false.
        """
        topic = self._topic(name)
        if not self._config.delete_topic_enable:
            raise TopicDeletionDisabledError(
                f"topic {name} cannot be deleted: delete.topic.enable is false at the broker"
            )
        try:
            settle(self._coordination, [Create(paths.delete_topic_path(name))])
        except NodeExistsError:
            _logger.info("topic %s is being deleted already", name)
        self._catalog.refresh(name)
        self._gone(topic)
        _logger.info("deleted topic %s (%s)", name, id_text(topic.topic_id))
        return topic

    def create_partitions(
        self,
        name: str,
        count: int,
        *,
        assignment: Mapping[int, tuple[int, ...]] | None = None,
        validate_only: bool = False,
    ) -> TopicInfo | None:
        """Raise a topic's number of partitions to ``count``. ``assignment`` sets the replicas of the new partitions.

        Raises ``InvalidPartitionsError`` unless the count grows, ``ReassignmentInProgressError``,
        ``InvalidReplicaAssignmentError``, ``PolicyViolationError`` for too many partitions.
        """
        self._topic(name)
        path = paths.topic_path(name)
        while True:
            data, stat = self._coordination.get(path)
            node = TopicNode.decode(data)
            new = self._more_partitions(name, node, count, assignment)
            if validate_only:
                return None
            wider = TopicNode(node.topic_id, {**node.assignment, **new})
            try:
                settle(self._coordination, [Write(path, wider.encode(), stat.version)])
            except BadVersionError:
                continue  # another broker changed the topic meanwhile: read it again
            break
        topic = self._catalog.refresh(name)
        if topic is None:
            raise _deleted(name)
        return topic

    def _topic(self, name: str) -> TopicInfo:
        """Return a topic, even if this broker has not been notified of it. Raises ``UnknownTopicOrPartitionError``."""
        if name not in self._catalog.topics and is_topic_name(name):
            self._catalog.refresh(name)
        return self._catalog.topic(name)

    def _more_partitions(
        self, name: str, node: TopicNode, count: int, chosen: Mapping[int, tuple[int, ...]] | None
    ) -> Assignment:
        present = len(node.assignment)
        if count <= present:
            raise InvalidPartitionsError(
                f"topic {name} has {present} partitions, so {count} would add none: partitions can only be added"
            )
        others = self._catalog.partition_count - present
        topic_rules.check_partition_count(count, present=others, most=self._config.max_partitions)
        if node.adding or node.removing:
            raise ReassignmentInProgressError(
                f"topic {name} is being reassigned: wait until the reassignment ends, or cancel it"
            )
        brokers = self._brokers()
        if not chosen:
            return assign_more_partitions(brokers, node.assignment, count)
        if len(chosen) != count - present:
            raise InvalidReplicaAssignmentError(
                f"topic {name} gets {count - present} new partitions, but the request assigns {len(chosen)}: assign "
                "each new partition"
            )
        ids = [each.broker_id for each in brokers]
        factor = len(next(iter(node.assignment.values())))
        check_assignment(chosen, ids, first_partition=present, replication_factor=factor)
        return dict(chosen)

    def _brokers(self) -> list[BrokerRack]:
        return [BrokerRack(each.broker_id, each.rack or None) for each in registration.live_brokers(self._coordination)]

    def _write(self, operations: Callable[[], list[Operation]]) -> None:
        """Commit a transaction. Build it again if another broker raised one of its counters meanwhile."""
        while True:
            try:
                settle(self._coordination, operations())
            except BadVersionError:
                continue
            return

    def alter_config(
        self,
        name: str,
        values: Mapping[str, OptionChange],
        removals: set[str],
        *,
        replaces: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Set and remove options of a topic.

        If this raises ``InvalidTopicError``, ``UnknownTopicOrPartitionError``, ``InvalidRequestError`` or
        ``InvalidConfigError``, nothing has changed.
        """
        topic_rules.check_topic_name(name)
        check_option_changes(f"topic {name}", values, removals)
        topic_rules.check_option_names(removals)
        topic = self._catalog.written(name)
        try:
            alter_options(
                self._coordination,
                paths.topic_config_path(name),
                values,
                removals,
                partial(self._check_config, topic),
                inherited=lambda option: str(self._catalog.defaults.options().get(option, "")),
                replaces=replaces,
                checks=[Check(paths.topic_path(name))],
                validate_only=validate_only,
            )
        except NoNodeError:
            raise _deleted(name) from None
        if validate_only:
            return
        changed = self._catalog.refresh(name)
        if changed is None:
            raise _deleted(name)
        self._configured(name, changed.config)

    def _check_config(self, topic: TopicInfo, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Raise ``InvalidConfigError`` unless a topic's options may change from ``before`` to ``after``."""
        name, defaults, is_typed, key_columns = topic.name, self._catalog.defaults, topic.is_typed, topic.key_columns
        present, _ = topic_rules.usable_config(name, defaults, before, is_typed=is_typed, key_columns=key_columns)
        config = topic_rules.effective_config(name, defaults, after, is_typed=is_typed, key_columns=key_columns)
        schema = (
            topic.schemas[-1].schema if is_typed and config.kafka_value_format is not KafkaValueFormat.NONE else None
        )
        topic_rules.check_payload_format(name, config, schema, key_columns)
        enabled = self._config.remote_log_storage_system_enable
        topic_rules.check_remote_storage(name, present, config, is_system_enabled=enabled)

    def evolve_schema(
        self, name: str, arrow_schema: bytes, *, validate_only: bool = False, compatibility: str = ""
    ) -> SchemaVersion:
        """Add a version of a typed topic's schema. The current schema does not become a new version.

        ``validate_only`` returns the future version with id 0. It may check by another mode than the topic's. Raises
        ``IncompatibleSchemaError``, ``SchemaError``, or ``InvalidRequestError`` for an opaque topic.
        """
        from millrace.schemas import check_evolution, deserialize_schema, serialize_schema

        new = deserialize_schema(arrow_schema)
        while True:
            stat = self._coordination.exists(paths.typed_topic_path(name))  # first, so that the topic is as new
            topic = self._catalog.written(name)
            if stat is None or not topic.is_typed:
                raise InvalidRequestError(f"topic {name} is opaque and has no schema to evolve: create a typed topic")
            present = topic.schemas[-1]
            mode = topic.config.schema_compatibility
            if validate_only and compatibility:
                mode = topic_rules.compatibility(compatibility)
            check_evolution([version.schema for version in topic.schemas], new, mode, topic.key_columns)
            topic_rules.check_payload_format(name, topic.config, new, topic.key_columns)
            if new.equals(present.schema):
                self._catalog.refresh(name)
                return present
            version = SchemaVersion(id=0, version=present.version + 1, arrow_schema=serialize_schema(new))
            if validate_only:
                return version
            try:
                return self._add_schema(topic, version, stat.version)
            except BadVersionError:
                continue  # another broker changed it first: read it again
            except NoNodeError:
                raise _deleted(name) from None

    def _add_schema(self, topic: TopicInfo, new: SchemaVersion, read_version: int) -> SchemaVersion:
        """Write the next version of a topic's schema, if its node still has the version that was read."""
        schema_id, counter = self._next_schema_id()
        schema_ids = (*(version.id for version in topic.schemas), schema_id)
        schema = SchemaNode(topic_id=topic.topic_id, schema_version=new.version, arrow_schema=new.arrow_schema)
        typed = TypedTopicNode(schema_ids, topic.key_columns)
        operations: list[Operation] = [
            counter,
            Create(paths.schema_path(schema_id), schema.encode()),
            Write(paths.typed_topic_path(topic.name), typed.encode(), read_version),
            notice(paths.config_entity("topics", topic.name)),
        ]
        settle(self._coordination, operations)
        self._catalog.refresh(topic.name)
        return replace(new, id=schema_id)

    def _check_new(self, spec: TopicSpec) -> Assignment:
        topic_rules.check_topic_name(spec.name)
        if spec.name in self._catalog.topics:
            raise TopicExistsError(f"topic {spec.name} already exists")
        if self._coordination.exists(paths.delete_topic_path(spec.name)) is not None:
            raise TopicExistsError(f"topic {spec.name} is being deleted: its files could not be removed yet")
        topic_rules.check_collision(spec.name, self._catalog.topics)
        assignment = self._assignment(spec)
        is_typed = bool(spec.arrow_schema)
        config = topic_rules.effective_config(
            spec.name, self._catalog.defaults, spec.configs, is_typed=is_typed, key_columns=spec.key_columns
        )
        enabled = self._config.remote_log_storage_system_enable
        topic_rules.check_remote_storage(spec.name, None, config, is_system_enabled=enabled)
        schema = _checked_schema(spec)
        topic_rules.check_payload_format(spec.name, config, schema, spec.key_columns)
        return assignment

    def _assignment(self, spec: TopicSpec) -> Assignment:
        brokers = self._brokers()
        present, most = self._catalog.partition_count, self._config.max_partitions
        if spec.assignment:
            if spec.partitions != -1 or spec.replication_factor != -1:
                raise InvalidRequestError(
                    "the request assigns replicas: leave out the numbers of partitions and replicas"
                )
            check_assignment(spec.assignment, [each.broker_id for each in brokers])
            topic_rules.check_partition_count(len(spec.assignment), present=present, most=most)
            return dict(spec.assignment)
        partitions = self._config.num_partitions if spec.partitions == -1 else spec.partitions
        topic_rules.check_partition_count(partitions, present=present, most=most)
        factor = self._config.default_replication_factor if spec.replication_factor == -1 else spec.replication_factor
        topic_rules.check_replication_factor(factor, len(brokers))
        return assign_replicas(brokers, partitions, factor)

    def _topic_nodes(self, spec: TopicSpec, topic_id: uuid.UUID, assignment: Assignment) -> list[Operation]:
        name = spec.name
        operations: list[Operation] = [
            Create(paths.topic_path(name), TopicNode(topic_id, assignment).encode()),
            Create(paths.topic_config_path(name), ConfigNode(dict(spec.configs)).encode()),
            Create(paths.partitions_path(name)),
        ]
        if spec.arrow_schema:
            schema_id, counter = self._next_schema_id()
            schema = SchemaNode(topic_id=topic_id, schema_version=1, arrow_schema=spec.arrow_schema)
            operations += [
                counter,
                Create(paths.schema_path(schema_id), schema.encode()),
                Create(paths.typed_topic_path(name), TypedTopicNode((schema_id,), spec.key_columns).encode()),
            ]
        return operations

    def _next_schema_id(self) -> tuple[int, Write]:
        """Return the next schema id, and the write that takes it. Ids are never reused, even after deletions."""
        data, stat = self._coordination.get(paths.SCHEMAS)
        schema_id = int(data or b"0") + 1
        return schema_id, Write(paths.SCHEMAS, str(schema_id).encode(), stat.version)


def _deleted(name: str) -> UnknownTopicOrPartitionError:
    return UnknownTopicOrPartitionError(f"topic {name} was deleted meanwhile")


def _checked_schema(spec: TopicSpec) -> pa.Schema | None:
    """Return the schema of a topic to create, None for an opaque one. Raises ``SchemaError``."""
    if not spec.arrow_schema:
        if spec.key_columns:
            raise SchemaError(
                f"topic {spec.name}: key columns {', '.join(spec.key_columns)} were named, but no schema was given"
            )
        return None
    from millrace.schemas import deserialize_schema, validate_topic_schema

    schema = deserialize_schema(spec.arrow_schema)
    validate_topic_schema(schema, spec.key_columns)
    return schema


def _new_topic_id() -> uuid.UUID:
    # As in Kafka's Uuid.randomUuid: a leading dash would look like an option on a command line.
    while id_text(topic_id := uuid.uuid4()).startswith("-"):
        pass
    return topic_id
