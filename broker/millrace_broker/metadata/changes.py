"""Changes to topics: checked, written to coordination as one transaction each, then carried out on the disk.

The order makes each change resumable: a topic's nodes come before its logs, and go after them, so that ``resume``
can finish at the next start whatever a crash interrupted. A creation that fails on the disk is taken back.

Everything here blocks and runs in one thread at a time (the broker's administration thread), as Kafka's controller
does. On a single broker that broker is the controller.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from millrace.config.broker import BrokerConfig
from millrace.coordination import Coordination, Create, Delete, NodeExistsError, Operation, Write, paths
from millrace.coordination.nodes import (
    ConfigNode,
    PartitionStateNode,
    SchemaNode,
    TopicNode,
    TypedTopicNode,
)
from millrace.errors import (
    InvalidPartitionsError,
    InvalidRequestError,
    SchemaError,
    StorageError,
    TopicExistsError,
)
from millrace.ids import id_text
from millrace_broker.log import LogManager
from millrace_broker.metadata import rules
from millrace_broker.metadata.catalog import TopicCatalog
from millrace_broker.metadata.topics import SchemaVersion, TopicInfo

_logger = logging.getLogger(__name__)

_FIRST_LEADER_EPOCH = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic to create. -1 stands for the broker's default; ``arrow_schema`` is empty for an opaque topic."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    arrow_schema: bytes = b""
    key_columns: tuple[str, ...] = ()


class TopicChanges:
    """Creates, alters and deletes topics. ``controller_epoch`` is stamped into partition states.

    ``on_gone`` is called with a topic whose partitions no longer answer, before its logs are deleted.
    """

    def __init__(
        self,
        config: BrokerConfig,
        coordination: Coordination,
        catalog: TopicCatalog,
        logs: LogManager,
        *,
        controller_epoch: int,
        on_gone: Callable[[TopicInfo], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._coordination = coordination
        self._catalog = catalog
        self._logs = logs
        self._controller_epoch = controller_epoch
        self._on_gone = on_gone

    def create(self, spec: TopicSpec, *, validate_only: bool = False) -> TopicInfo | None:
        """Create a topic; None when only validating.

        Raises ``InvalidTopicError``, ``TopicExistsError``, ``InvalidPartitionsError``,
        ``InvalidReplicationFactorError``, ``InvalidConfigError``, ``SchemaError``, ``StorageError``.
        """
        partitions = self._check_new(spec)
        if validate_only:
            return None
        topic_id = _new_topic_id()
        operations = self._topic_nodes(spec, topic_id, partitions)
        try:
            self._coordination.multi(operations)
        except NodeExistsError as error:
            raise TopicExistsError(f"topic {spec.name} exists already") from error
        topic = self._catalog.refresh(spec.name)
        assert topic is not None
        try:
            self._create_logs(topic)
        except Exception:
            _logger.exception("topic %s could not be created on disk and is taken back", spec.name)
            self.delete(spec.name)
            raise
        _logger.info("created topic %s (%s) with %d partitions", topic.name, id_text(topic_id), partitions)
        return topic

    def delete(self, name: str) -> TopicInfo:
        """Delete a topic with all its data. Raises ``UnknownTopicOrPartitionError``, ``StorageError``.

        After a ``StorageError`` the topic is gone for clients and its files are deleted at the next start.
        """
        topic = self._catalog.topic(name)
        self._coordination.create(paths.delete_topic_path(name))
        self._catalog.refresh(name)
        self._on_gone(topic)
        self._finish_deletion(name)
        _logger.info("deleted topic %s (%s)", name, id_text(topic.topic_id))
        return topic

    def create_partitions(self, name: str, count: int, *, validate_only: bool = False) -> TopicInfo | None:
        """Raise a topic's number of partitions to ``count``. Raises ``InvalidPartitionsError`` if that is no raise."""
        topic = self._catalog.topic(name)
        present = len(topic.partitions)
        if count <= present:
            raise InvalidPartitionsError(
                f"topic {name} has {present} partitions: {count} is no increase, and partitions cannot be taken away"
            )
        others = self._catalog.partition_count - present
        rules.check_partition_count(count, present=others, most=self._config.max_partitions)
        if validate_only:
            return None
        replicas = (self._config.broker_id,)
        new = range(present, count)
        assignment = {number: info.replicas for number, info in topic.partitions.items()} | dict.fromkeys(new, replicas)
        version = self._version(paths.topic_path(name))
        operations: list[Operation] = [
            Write(paths.topic_path(name), TopicNode(topic.topic_id, assignment).encode(), version)
        ]
        operations += self._partition_nodes(name, new, replicas)
        self._coordination.multi(operations)
        refreshed = self._catalog.refresh(name)
        assert refreshed is not None
        self._create_logs(refreshed, new)
        return refreshed

    def alter_config(
        self, name: str, values: Mapping[str, str], removals: set[str], *, validate_only: bool = False
    ) -> None:
        """Set and remove options of a topic. Raises ``InvalidConfigError``; then nothing has changed."""
        topic = self._catalog.topic(name)
        both = sorted(removals & values.keys())
        if both:
            raise InvalidRequestError(f"{', '.join(both)} of topic {name} is both set and deleted")
        rules.check_option_names(removals)
        overrides = {option: value for option, value in topic.overrides.items() if option not in removals} | dict(
            values
        )
        config = rules.effective_config(self._config.topic_defaults, overrides, is_typed=topic.is_typed)
        rules.check_compaction(name, config, is_typed=topic.is_typed, key_columns=topic.key_columns)
        enabled = self._config.remote_log_storage_system_enable
        rules.check_remote_storage(name, topic.config, config, is_system_enabled=enabled)
        if validate_only:
            return
        self._coordination.set(paths.topic_config_path(name), ConfigNode(overrides).encode())
        self._catalog.refresh(name)
        self._logs.set_config(name, config)

    def evolve_schema(
        self, name: str, arrow_schema: bytes, *, validate_only: bool = False, compatibility: str = ""
    ) -> SchemaVersion:
        """Add a version of a typed topic's schema; the present one again is no new version.

        ``validate_only`` returns the version as it would be, with id 0, and can check by another mode than the topic's.
        Raises ``IncompatibleSchemaError``, ``SchemaError``, or ``InvalidRequestError`` for an opaque topic.
        """
        from millrace.schemas import check_evolution, deserialize_schema, serialize_schema

        topic = self._catalog.topic(name)
        if not topic.is_typed:
            raise InvalidRequestError(f"topic {name} is opaque and has no schema to evolve: create a typed topic")
        present = topic.schemas[-1]
        new = deserialize_schema(arrow_schema)
        mode = (
            rules.compatibility(compatibility) if validate_only and compatibility else topic.config.schema_compatibility
        )
        check_evolution([version.schema for version in topic.schemas], new, mode, topic.key_columns)
        if new.equals(present.schema):
            return present
        if validate_only:
            return SchemaVersion(id=0, version=present.version + 1, arrow_schema=serialize_schema(new))
        schema_id, counter = self._next_schema_id()
        schema_ids = (*(version.id for version in topic.schemas), schema_id)
        node = SchemaNode(
            topic_id=topic.topic_id, schema_version=present.version + 1, arrow_schema=serialize_schema(new)
        )
        self._coordination.multi(
            [
                counter,
                Create(paths.schema_path(schema_id), node.encode()),
                Write(paths.typed_topic_path(name), TypedTopicNode(schema_ids, topic.key_columns).encode()),
            ]
        )
        refreshed = self._catalog.refresh(name)
        assert refreshed is not None
        return refreshed.schemas[-1]

    def resume(self) -> None:
        """Finish what the last run left half-done: deletions, and topics whose logs are not there yet."""
        for name in self._coordination.children(paths.DELETE_TOPICS):
            _logger.info("finishing the deletion of topic %s", name)
            self._finish_deletion(name)
        for topic in self._catalog.topics.values():
            for partition in topic.partitions:
                try:
                    self._create_log(topic, partition, is_new=False)
                except StorageError as error:
                    _logger.error("topic %s is not whole: %s", topic.name, error.message)
            self._logs.set_config(topic.name, topic.config)
        for log in self._logs.logs():
            if log.topic not in self._catalog.topics:
                _logger.warning("%s belongs to no topic of this cluster and is left alone", log.directory)

    def _check_new(self, spec: TopicSpec) -> int:
        rules.check_topic_name(spec.name)
        if spec.name in self._catalog.topics:
            raise TopicExistsError(f"topic {spec.name} exists already")
        if self._coordination.exists(paths.delete_topic_path(spec.name)) is not None:
            raise TopicExistsError(f"topic {spec.name} is being deleted: its files could not be removed yet")
        rules.check_collision(spec.name, self._catalog.topics)
        partitions = self._config.num_partitions if spec.partitions == -1 else spec.partitions
        rules.check_partition_count(partitions, present=self._catalog.partition_count, most=self._config.max_partitions)
        factor = spec.replication_factor
        rules.check_replication_factor(
            self._config.default_replication_factor if factor == -1 else factor,
            len(self._coordination.children(paths.BROKER_IDS)),
        )
        is_typed = bool(spec.arrow_schema)
        config = rules.effective_config(self._config.topic_defaults, spec.configs, is_typed=is_typed)
        rules.check_compaction(spec.name, config, is_typed=is_typed, key_columns=spec.key_columns)
        enabled = self._config.remote_log_storage_system_enable
        rules.check_remote_storage(spec.name, None, config, is_system_enabled=enabled)
        _check_schema(spec)
        return partitions

    def _topic_nodes(self, spec: TopicSpec, topic_id: uuid.UUID, partitions: int) -> list[Operation]:
        name, replicas = spec.name, (self._config.broker_id,)
        operations: list[Operation] = [
            Create(paths.topic_path(name), TopicNode(topic_id, dict.fromkeys(range(partitions), replicas)).encode()),
            Create(paths.topic_config_path(name), ConfigNode(dict(spec.configs)).encode()),
            Create(paths.partitions_path(name)),
            *self._partition_nodes(name, range(partitions), replicas),
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

    def _partition_nodes(self, name: str, partitions: range, replicas: tuple[int, ...]) -> list[Operation]:
        state = PartitionStateNode(
            controller_epoch=self._controller_epoch,
            leader=replicas[0],
            leader_epoch=_FIRST_LEADER_EPOCH,
            isr=replicas,
        ).encode()
        return [
            operation
            for partition in partitions
            for operation in (
                Create(paths.partition_path(name, partition)),
                Create(paths.partition_state_path(name, partition), state),
            )
        ]

    def _next_schema_id(self) -> tuple[int, Write]:
        """The next schema id, and the write that takes it: ids are never used again, also after deletions."""
        data, stat = self._coordination.get(paths.SCHEMAS)
        schema_id = int(data or b"0") + 1
        return schema_id, Write(paths.SCHEMAS, str(schema_id).encode(), stat.version)

    def _create_logs(self, topic: TopicInfo, partitions: Iterable[int] | None = None) -> None:
        for partition in topic.partitions if partitions is None else partitions:
            self._create_log(topic, partition, is_new=True)
        self._logs.set_config(topic.name, topic.config)

    def _create_log(self, topic: TopicInfo, partition: int, *, is_new: bool) -> None:
        if self._config.broker_id not in topic.partitions[partition].replicas:
            return
        log = self._logs.get(topic.name, partition)
        if log is None:
            self._logs.create_log(topic.name, topic.topic_id, partition, topic.config, is_new=is_new)
        elif log.topic_id != topic.topic_id:
            raise StorageError(
                f"{log.directory} holds topic id {id_text(log.topic_id)}, but {topic.name} is "
                f"{id_text(topic.topic_id)}: move that directory away"
            )

    def _finish_deletion(self, name: str) -> None:
        for log in list(self._logs.logs()):
            if log.topic == name:
                self._logs.delete_log(name, log.partition)
        operations = [Delete(path) for path in reversed(self._nodes_of(name))]
        self._coordination.multi([*operations, Delete(paths.delete_topic_path(name))])

    def _nodes_of(self, name: str) -> list[str]:
        """Every node of a topic that exists, parents first."""
        nodes = []
        if self._coordination.exists(paths.topic_path(name)) is not None:
            nodes += self._subtree(paths.topic_path(name))
        for path in (paths.topic_config_path(name), paths.typed_topic_path(name)):
            if self._coordination.exists(path) is not None:
                nodes.append(path)
        if paths.typed_topic_path(name) in nodes:
            typed = TypedTopicNode.decode(self._coordination.get(paths.typed_topic_path(name))[0])
            nodes += [paths.schema_path(schema_id) for schema_id in typed.schema_ids]
        return nodes

    def _subtree(self, path: str) -> list[str]:
        children = self._coordination.children(path)
        return [path, *(node for child in children for node in self._subtree(f"{path}/{child}"))]

    def _version(self, path: str) -> int:
        return self._coordination.get(path)[1].version


def _check_schema(spec: TopicSpec) -> None:
    if not spec.arrow_schema:
        if spec.key_columns:
            raise SchemaError(
                f"topic {spec.name}: key columns {', '.join(spec.key_columns)} were named, but no schema was given"
            )
        return
    from millrace.schemas import deserialize_schema, validate_topic_schema

    validate_topic_schema(deserialize_schema(spec.arrow_schema), spec.key_columns)


def _new_topic_id() -> uuid.UUID:
    # As Kafka's Uuid.randomUuid: a leading dash would look like an option on a command line.
    while id_text(topic_id := uuid.uuid4()).startswith("-"):
        pass
    return topic_id
