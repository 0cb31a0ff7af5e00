"""Kafka's ZooKeeper paths, and millrace's paths under ``/millrace``.

The embedded store and a ZooKeeper ensemble use the same paths, so Kafka's tools work with both. The contents of the
nodes are in ``millrace.coordination.nodes`` and in ``docs/formats.md``.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from millrace.acls import PatternType, ResourcePattern, ResourceType

CLUSTER_ID: Final = "/cluster/id"
BROKER_IDS: Final = "/brokers/ids"
BROKER_SEQUENCE: Final = "/brokers/seqid"
TOPICS: Final = "/brokers/topics"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
CONFIGS: Final = "/config"
TOPIC_CONFIGS: Final = "/config/topics"
GROUP_CONFIGS: Final = "/config/groups"
CLIENT_METRICS_CONFIGS: Final = "/config/client-metrics"
CONFIG_CHANGES: Final = "/config/changes"
CONFIG_CHANGE: Final = f"{CONFIG_CHANGES}/config_change_"
DELETE_TOPICS: Final = "/admin/delete_topics"
REASSIGN_PARTITIONS: Final = "/admin/reassign_partitions"
PREFERRED_ELECTION: Final = "/admin/preferred_replica_election"
ISR_CHANGES: Final = "/isr_change_notification"
LOG_DIR_EVENTS: Final = "/log_dir_event_notification"
LOG_DIR_EVENT: Final = f"{LOG_DIR_EVENTS}/log_dir_event_"
PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"
ACLS: Final = "/kafka-acl"
"""Literal patterns, which older brokers know too. Other ones are below ``EXTENDED_ACLS``."""
EXTENDED_ACLS: Final = "/kafka-acl-extended"
ACL_CHANGES: Final = "/kafka-acl-changes"
ACL_CHANGE: Final = f"{ACL_CHANGES}/acl_changes_"
EXTENDED_ACL_CHANGES: Final = "/kafka-acl-extended-changes"
EXTENDED_ACL_CHANGE: Final = f"{EXTENDED_ACL_CHANGES}/acl_changes_"
DELEGATION_TOKENS: Final = "/delegation_token/tokens"
DELEGATION_TOKEN_CHANGES: Final = "/delegation_token/token_changes"
DELEGATION_TOKEN_CHANGE: Final = f"{DELEGATION_TOKEN_CHANGES}/token_change_"
SCHEMAS: Final = "/millrace/schemas"
TYPED_TOPICS: Final = "/millrace/topics"
PAYLOAD_SCHEMAS: Final = "/millrace/payload_schemas"
SCRAM_SEEDS: Final = "/millrace/scram_seeds"
MIGRATION: Final = "/millrace/migration"
"""Exists while the metadata of a single broker is being copied; its data is the cluster's id."""

ROOTS: Final = (
    "/cluster",
    BROKER_IDS,
    BROKER_SEQUENCE,
    TOPICS,
    TOPIC_CONFIGS,
    GROUP_CONFIGS,
    CLIENT_METRICS_CONFIGS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    ISR_CHANGES,
    LOG_DIR_EVENTS,
    *(f"{CONFIGS}/{entity_type}" for entity_type in ("brokers", "clients", "ips", "users")),
    PRODUCER_ID_BLOCK,
    SCHEMAS,
    TYPED_TOPICS,
    PAYLOAD_SCHEMAS,
)
"""Persistent nodes that every broker creates at its start if missing."""


def broker_path(broker_id: int) -> str:
    """Return the path of a broker's ephemeral registration."""
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    """Return the path of a topic's partition assignment."""
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    """Return the path of the parent of a topic's partitions."""
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    """Return the path of the parent of a partition's state."""
    return f"{TOPICS}/{topic}/partitions/{partition}"


def partition_state_path(topic: str, partition: int) -> str:
    """Return the path of a partition's leader, epoch and in-sync replicas."""
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def sequence_of(path: str) -> int:
    """Return the number of a sequential node, from its path or name."""
    return int(path[-10:])


def sanitized(name: str) -> str:
    """Encode a user's or client's name for a path, like Kafka's ``Sanitizer`` (percent-encoded UTF-8)."""
    return quote(name, safe="").replace("~", "%7E")


def config_entity(*parts: str) -> str:
    """Return the entity of a configuration: ``config_entity("users", "alice", "clients", "app")``, with plain names."""
    return "/".join(sanitized(part) if index % 2 else part for index, part in enumerate(parts))


def config_path(entity: str) -> str:
    """Return the path of the configuration of a ``config_entity``."""
    return f"{CONFIGS}/{entity}"


def topic_config_path(topic: str) -> str:
    """Return the path of a topic's configuration."""
    return f"{TOPIC_CONFIGS}/{topic}"


def group_config_path(group_id: str) -> str:
    """Return the path of a group's configuration, with its id as hexadecimal UTF-8, because ids may have any
    characters.
    """
    return f"{GROUP_CONFIGS}/{group_id.encode().hex()}"


def client_metrics_path(name: str) -> str:
    """Return the path of a client metrics subscription's configuration."""
    return config_path(config_entity("client-metrics", name))


def delete_topic_path(topic: str) -> str:
    """Return the path that marks a topic for deletion; the node exists until its last file is deleted."""
    return f"{DELETE_TOPICS}/{topic}"


def schema_path(schema_id: int) -> str:
    """Return the path of a version of a typed topic's schema."""
    return f"{SCHEMAS}/{schema_id}"


def typed_topic_path(topic: str) -> str:
    """Return the path of a typed topic's schema versions and key columns."""
    return f"{TYPED_TOPICS}/{topic}"


def payload_schema_path(schema_id: int) -> str:
    """Return the path of a payload schema by its id."""
    return f"{PAYLOAD_SCHEMAS}/{schema_id}"


def acl_type_path(pattern_type: PatternType, resource_type: ResourceType) -> str:
    """Return the path of the parent of the ACLs of a resource type."""
    if pattern_type is PatternType.LITERAL:
        return f"{ACLS}/{resource_type.title}"
    return f"{EXTENDED_ACLS}/{pattern_type.name.lower()}/{resource_type.title}"


def acl_path(pattern: ResourcePattern) -> str:
    """Return the path of the ACLs of a resource pattern."""
    return f"{acl_type_path(pattern.pattern_type, pattern.resource_type)}/{pattern.name}"


def delegation_token_path(token_id: str) -> str:
    """Return the path of a delegation token."""
    return f"{DELEGATION_TOKENS}/{token_id}"


def scram_seed_path(mechanism: str, user: str) -> str:
    """Return the path that says that a broker has seen its configured credential of a user in the metadata."""
    return f"{SCRAM_SEEDS}/{mechanism}/{sanitized(user)}"
