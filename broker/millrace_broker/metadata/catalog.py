"""The topics as one broker knows them, Kafka's ``MetadataCache``.

The topics are an immutable snapshot, which is replaced when a topic changes. Reads take no lock and may happen in any
thread. A reader that needs consistent facts keeps one ``TopicInfo``.

Invariants:

* A topic is in the snapshot from the creation of its nodes until it is marked for deletion.
* The leader of a partition comes only from UpdateMetadata. The rest of a topic (id, options, schemas) is read from its
  nodes when the topic is first named, and after each change. A change is written to the nodes first.
* UpdateMetadata requests are applied in the order of arrival; those of an older controller are not.
* Only one thread changes the snapshot (the broker's administration thread, or its start).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from millrace.config.topic import TopicConfig
from millrace.coordination import Coordination, NoNodeError, paths
from millrace.coordination.nodes import SchemaNode, TopicNode, TypedTopicNode
from millrace.errors import InvalidConfigError, UnknownTopicOrPartitionError
from millrace.topic_names import is_topic_name
from millrace_broker.decisions import LEADER_DURING_DELETE, LeaderAndIsrState, UpdateMetadataRequest, by_topic
from millrace_broker.metadata.config_nodes import read_config
from millrace_broker.metadata.topic_nodes import readable_topic
from millrace_broker.metadata.topic_rules import effective_config, usable_config
from millrace_broker.metadata.topics import LEADER_NONE, PartitionInfo, SchemaVersion, TopicInfo

_logger = logging.getLogger(__name__)

_Partitions = dict[int, PartitionInfo]
_NO_ID: Final = uuid.UUID(int=0)


class TopicCatalog:
    """Topics by name and by id, and their schemas by id."""

    def __init__(self, coordination: Coordination, defaults: TopicConfig) -> None:
        self._coordination = coordination
        self._defaults = defaults
        self._revision = 0
        self._topics: Mapping[str, TopicInfo] = {}
        self._by_id: Mapping[uuid.UUID, TopicInfo] = {}
        self._schemas: Mapping[int, SchemaVersion] = {}
        self._leaders: Final[dict[uuid.UUID, _Partitions]] = {}
        """The last UpdateMetadata of each partition, by the topic's id."""

    @property
    def revision(self) -> int:
        """Number that grows with each change of topics."""
        return self._revision

    @property
    def topics(self) -> Mapping[str, TopicInfo]:
        """All topics by name, sorted."""
        return MappingProxyType(self._topics)

    @property
    def schemas(self) -> Mapping[int, SchemaVersion]:
        """All schema versions of all topics, by id."""
        return MappingProxyType(self._schemas)

    @property
    def partition_count(self) -> int:
        """Number of partitions of all topics."""
        return sum(len(topic.partitions) for topic in self._topics.values())

    @property
    def defaults(self) -> TopicConfig:
        """Default options of topics."""
        return self._defaults

    def check_defaults(self, defaults: TopicConfig) -> None:
        """Raise ``InvalidConfigError`` if a topic that can have the present default options cannot have these."""
        if defaults == self._defaults:
            return
        for topic in self._topics.values():
            refusal = _refusal(topic, defaults)
            if refusal and not _refusal(topic, self._defaults):
                raise InvalidConfigError(f"topic {topic.name} cannot have this default: {refusal}; set its own")

    def set_defaults(self, defaults: TopicConfig) -> list[TopicInfo]:
        """Set the default options. Return the topics whose configuration changed."""
        self._defaults = defaults
        changed = {}
        for topic in self._topics.values():
            config = self._config(topic.name, topic.overrides, bool(topic.schemas), topic.key_columns)
            if config != topic.config:
                changed[topic.name] = replace(topic, config=config)
        self._swap({**self._topics, **changed})
        return list(changed.values())

    def topic(self, name: str) -> TopicInfo:
        """Return the topic of that name. Raises ``UnknownTopicOrPartitionError``."""
        return _found(name, self._topics.get(name))

    def written(self, name: str) -> TopicInfo:
        """Read the topic from coordination, even if this broker has not been notified of it.

        Raises ``UnknownTopicOrPartitionError``.
        """
        return _found(name, self._read(name) if is_topic_name(name) else None)

    def topic_of_id(self, topic_id: uuid.UUID) -> TopicInfo | None:
        """Return the topic with that id, or None."""
        return self._by_id.get(topic_id)

    def load(self) -> None:
        """Read every topic."""
        self._swap({name: info for name in self._coordination.children(paths.TOPICS) if (info := self._read(name))})

    def refresh(self, name: str) -> TopicInfo | None:
        """Read one topic again. Return None if it is deleted or marked for deletion."""
        info = self._read(name)
        topics = {other: known for other, known in self._topics.items() if other != name}
        if info is not None:
            topics[name] = info
        self._swap(topics)
        return info

    def update_metadata(self, request: UpdateMetadataRequest) -> list[str]:
        """Apply an UpdateMetadata; returns the topics that it names."""
        topics = dict(self._topics)
        named = by_topic(request.partitions)
        unknown: dict[str, uuid.UUID] = {}
        for name, states in named.items():
            topic_id = request.topic_ids.get(name)
            if topic_id is None or any(state.leadership.leader == LEADER_DURING_DELETE for state in states.values()):
                topics.pop(name, None)
                self._leaders.pop(topic_id or _NO_ID, None)
                continue
            partitions = self._leaders.setdefault(topic_id, {})
            partitions.update({number: _partition_info(number, state) for number, state in states.items()})
            present = topics.get(name)
            if present is not None and present.topic_id == topic_id:
                topics[name] = replace(present, partitions={**present.partitions, **partitions})
            else:
                unknown[name] = topic_id
        for name, info in self._read_announced(unknown).items():
            if info is not None and info.topic_id == unknown[name]:
                topics[name] = info
        self._swap(topics)
        return list(named)

    def refresh_unknown(self, topic_ids: Mapping[str, uuid.UUID]) -> dict[str, TopicInfo]:
        """Read the topics with these ids from their nodes unless they are known, as far as they exist.

        Returns the topics that are not in the snapshot because they are marked for deletion. Such a topic still needs
        its replicas while it is being reassigned.
        """
        unknown = {
            name: topic_id
            for name, topic_id in topic_ids.items()
            if (present := self._topics.get(name)) is None or present.topic_id != topic_id
        }
        marked: dict[str, TopicInfo] = {}
        if not unknown:
            return marked
        found = self._read_announced(unknown)
        topics = {name: info for name, info in self._topics.items() if name not in found}
        for name, info in found.items():
            if info is not None:
                topics[name] = info
            elif (hidden := self._read_nodes(name)) is not None and hidden.topic_id == unknown[name]:
                marked[name] = hidden
        self._swap(topics)
        return marked

    def _swap(self, topics: Mapping[str, TopicInfo]) -> None:
        self._revision += 1
        self._topics = dict(sorted(topics.items()))
        self._by_id = {info.topic_id: info for info in topics.values()}
        self._schemas = {version.id: version for info in topics.values() for version in info.schemas}

    def _read_announced(self, topic_ids: Mapping[str, uuid.UUID]) -> dict[str, TopicInfo | None]:
        """Read topics that the controller has seen with these ids.

        This broker's ZooKeeper server may lag behind the controller's server, so topics that are not there are read
        again after a sync.
        """
        found = {name: self._read(name) for name in topic_ids}
        late = [name for name, info in found.items() if info is None or info.topic_id != topic_ids[name]]
        if late:
            self._coordination.sync()
            found |= {name: self._read(name) for name in late}
        return found

    def _read(self, name: str) -> TopicInfo | None:
        is_marked = self._coordination.exists(paths.delete_topic_path(name)) is not None
        return None if is_marked else self._read_nodes(name)

    def _read_nodes(self, name: str) -> TopicInfo | None:
        """Read a topic, even if it is marked for deletion. Return None without a readable node."""
        coordination = self._coordination
        try:
            topic = readable_topic(name, coordination.get(paths.topic_path(name))[0])
        except NoNodeError:
            return None
        if topic is None:
            return None
        schemas, key_columns = self._read_schemas(name)
        overrides = read_config(coordination, paths.topic_config_path(name))
        return TopicInfo(
            name=name,
            topic_id=topic.topic_id,
            partitions=self._partitions(topic),
            overrides=overrides,
            config=self._config(name, overrides, bool(schemas), key_columns),
            schemas=schemas,
            key_columns=key_columns,
            read_schema=_read_schema(schemas),
        )

    def _config(
        self, name: str, overrides: Mapping[str, str], is_typed: bool, key_columns: tuple[str, ...]
    ) -> TopicConfig:
        config, left_out = usable_config(name, self._defaults, overrides, is_typed=is_typed, key_columns=key_columns)
        for option, error in left_out.items():
            _logger.error("%s is ignored for topic %s, and its own default applies: %s", option, name, error)
        return config

    def _partitions(self, topic: TopicNode) -> _Partitions:
        """Return the partitions by number, with the leaders of the last UpdateMetadata."""
        known = self._leaders.get(topic.topic_id, {})
        return {number: known.get(number) or _unled(number, replicas) for number, replicas in topic.assignment.items()}

    def _read_schemas(self, name: str) -> tuple[tuple[SchemaVersion, ...], tuple[str, ...]]:
        try:
            typed = TypedTopicNode.decode(self._coordination.get(paths.typed_topic_path(name))[0])
        except NoNodeError:
            return (), ()
        nodes = [(i, SchemaNode.decode(self._coordination.get(paths.schema_path(i))[0])) for i in typed.schema_ids]
        versions = tuple(
            SchemaVersion(id=schema_id, version=node.schema_version, arrow_schema=node.arrow_schema)
            for schema_id, node in nodes
        )
        return versions, typed.key_columns


def _found(name: str, topic: TopicInfo | None) -> TopicInfo:
    if topic is None:
        raise UnknownTopicOrPartitionError(f"topic {name} does not exist: create it, or see 'millrace topics list'")
    return topic


def _refusal(topic: TopicInfo, defaults: TopicConfig) -> str:
    """Return why a topic cannot have these default options, or an empty text."""
    try:
        effective_config(topic.name, defaults, topic.overrides, is_typed=topic.is_typed, key_columns=topic.key_columns)
    except InvalidConfigError as error:
        return error.message
    return ""


def _partition_info(number: int, state: LeaderAndIsrState) -> PartitionInfo:
    leadership = state.leadership
    return PartitionInfo(
        partition=number,
        leader=leadership.leader,
        leader_epoch=leadership.leader_epoch,
        replicas=state.assignment.replicas,
        isr=leadership.isr,
        failed=state.failed,
    )


def _unled(number: int, replicas: Iterable[int]) -> PartitionInfo:
    return PartitionInfo(partition=number, leader=LEADER_NONE, leader_epoch=-1, replicas=tuple(replicas), isr=())


def _read_schema(versions: tuple[SchemaVersion, ...]) -> bytes:
    if len(versions) < 2:
        return b""
    from millrace.schemas import read_schema, serialize_schema

    found = read_schema([version.schema for version in versions])
    return b"" if found.equals(versions[-1].schema) else serialize_schema(found)
