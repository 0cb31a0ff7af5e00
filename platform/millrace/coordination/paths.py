"""Where things are kept: Kafka's ZooKeeper paths, and ours under ``/millrace``.

The same names serve the embedded store and a ZooKeeper ensemble, so that Kafka's own tools and habits apply.
What the nodes hold is in ``millrace.coordination.nodes`` and in ``docs/formats.md``.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

CLUSTER_ID: Final = "/cluster/id"
BROKER_IDS: Final = "/brokers/ids"
BROKER_SEQUENCE: Final = "/brokers/seqid"
TOPICS: Final = "/brokers/topics"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
CONFIGS: Final = "/config"
TOPIC_CONFIGS: Final = "/config/topics"
GROUP_CONFIGS: Final = "/config/groups"
CONFIG_CHANGES: Final = "/config/changes"
CONFIG_CHANGE: Final = f"{CONFIG_CHANGES}/config_change_"
DELETE_TOPICS: Final = "/admin/delete_topics"
REASSIGN_PARTITIONS: Final = "/admin/reassign_partitions"
PREFERRED_ELECTION: Final = "/admin/preferred_replica_election"
ISR_CHANGES: Final = "/isr_change_notification"
ISR_CHANGE: Final = f"{ISR_CHANGES}/isr_change_"
LOG_DIR_EVENTS: Final = "/log_dir_event_notification"
LOG_DIR_EVENT: Final = f"{LOG_DIR_EVENTS}/log_dir_event_"
FEATURE: Final = "/feature"
PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"
SCHEMAS: Final = "/millrace/schemas"
TYPED_TOPICS: Final = "/millrace/topics"
PAYLOAD_SCHEMAS: Final = "/millrace/payload_schemas"

ROOTS: Final = (
    "/cluster",
    BROKER_IDS,
    BROKER_SEQUENCE,
    TOPICS,
    TOPIC_CONFIGS,
    GROUP_CONFIGS,
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
"""Persistent nodes that every broker makes sure of when it starts."""


def broker_path(broker_id: int) -> str:
    """Ephemeral registration of a broker."""
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    """Partition assignment of a topic."""
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    """Parent of a topic's partitions."""
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    """Parent of a partition's state."""
    return f"{TOPICS}/{topic}/partitions/{partition}"


def partition_state_path(topic: str, partition: int) -> str:
    """Leader, epoch and in-sync replicas of a partition."""
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def sequence_of(path: str) -> int:
    """Number of a sequential node, by its path or name."""
    return int(path[-10:])


def sanitized(name: str) -> str:
    """A user's or client's name as part of a path: as Kafka's ``Sanitizer`` writes it (percent-encoded UTF-8)."""
    return quote(name, safe="").replace("~", "%7E")


def config_entity(*parts: str) -> str:
    """Whose configuration: ``config_entity("users", "alice", "clients", "app")``, names as they are."""
    return "/".join(sanitized(part) if index % 2 else part for index, part in enumerate(parts))


def config_path(entity: str) -> str:
    """Configuration of what ``config_entity`` names."""
    return f"{CONFIGS}/{entity}"


def topic_config_path(topic: str) -> str:
    """Configuration that a topic overrides."""
    return f"{TOPIC_CONFIGS}/{topic}"


def group_config_path(group_id: str) -> str:
    """Configuration that a group overrides. Its id may have any characters, so it is written as hexadecimal UTF-8."""
    return f"{GROUP_CONFIGS}/{group_id.encode().hex()}"


def delete_topic_path(topic: str) -> str:
    """Mark that a topic is to be deleted; there until its last file is gone."""
    return f"{DELETE_TOPICS}/{topic}"


def schema_path(schema_id: int) -> str:
    """One version of a typed topic's schema."""
    return f"{SCHEMAS}/{schema_id}"


def typed_topic_path(topic: str) -> str:
    """A typed topic's schema versions and key columns."""
    return f"{TYPED_TOPICS}/{topic}"


def payload_schema_path(schema_id: int) -> str:
    """A schema of payloads, by the id that they name."""
    return f"{PAYLOAD_SCHEMAS}/{schema_id}"
