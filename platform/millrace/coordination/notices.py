"""Nodes that notify administrators, brokers and the controller of requests and changes.

As in ``nodes``, the classes write the JSON of Kafka 3.9 (``kafka.zk.ZkData``) and read that of other versions with
the same fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from millrace.coordination.json_node import JsonNode, dump_json

TopicPartition = tuple[str, int]
"""A topic and a partition of it."""


def _partitions(value: dict[str, Any]) -> tuple[TopicPartition, ...]:
    return tuple((str(each["topic"]), int(each["partition"])) for each in value["partitions"])


@dataclass(frozen=True, slots=True)
class ReassignmentNode(JsonNode):
    """``/admin/reassign_partitions``: target replicas of partitions, preferred leader first."""

    replicas: dict[TopicPartition, tuple[int, ...]]

    def encode(self) -> bytes:
        """Encode the node."""
        partitions = [
            {"topic": topic, "partition": partition, "replicas": list(brokers)}
            for (topic, partition), brokers in self.replicas.items()
        ]
        return dump_json({"version": 1, "partitions": partitions})

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        replicas = [tuple(int(broker) for broker in each["replicas"]) for each in value["partitions"]]
        return cls(dict(zip(_partitions(value), replicas, strict=True)))


@dataclass(frozen=True, slots=True)
class PreferredElectionNode(JsonNode):
    """``/admin/preferred_replica_election``: partitions for a preferred leader election."""

    partitions: tuple[TopicPartition, ...]

    def encode(self) -> bytes:
        """Encode the node."""
        partitions = [{"topic": topic, "partition": partition} for topic, partition in self.partitions]
        return dump_json({"version": 1, "partitions": partitions})

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        return cls(_partitions(value))


@dataclass(frozen=True, slots=True)
class LogDirEventNode(JsonNode):
    """``/log_dir_event_notification/log_dir_event_<number>``: a broker has lost a log directory (event 1)."""

    broker_id: int

    def encode(self) -> bytes:
        """Encode the node."""
        return dump_json({"version": 1, "broker": self.broker_id, "event": 1})

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        return cls(value["broker"])


@dataclass(frozen=True, slots=True)
class ConfigChangeNode(JsonNode):
    """``/config/changes/config_change_<number>``: the entity with a changed configuration, in
    ``paths.config_entity``'s form.

    Version 1, with separate type and entity, is read as in Kafka.
    """

    entity_path: str

    def encode(self) -> bytes:
        """Encode the node."""
        return dump_json({"version": 2, "entity_path": self.entity_path})

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        match value["version"]:
            case 1:
                return cls(f"{value['entity_type']}/{value['entity_name']}")
            case 2:
                return cls(str(value["entity_path"]))
            case version:
                raise ValueError(f"version {version} is not supported: expected 1 or 2")
