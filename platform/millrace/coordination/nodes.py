"""Node contents as typed data: Kafka's JSON, and millrace's for schemas.

Each class encodes to the JSON that Kafka 3.9 writes at its path (``kafka.zk.ZkData``). It decodes the JSON of any
version with the same fields. A node that cannot be read raises ``StorageError`` with the expected class. ``notices``
has the nodes with which administrators, brokers and the controller notify each other.
"""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from millrace.coordination.json_node import JsonNode, dump_json
from millrace.errors import StorageError
from millrace.ids import id_text, parse_id


@dataclass(frozen=True, slots=True)
class ClusterIdNode(JsonNode):
    """``/cluster/id``."""

    cluster_id: str

    def encode(self) -> bytes:
        """Encode the node."""
        return dump_json({"version": "1", "id": self.cluster_id})

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        return cls(str(value["id"]))


class Endpoint(NamedTuple):
    """Address of a broker's listener."""

    listener: str
    protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"

    @classmethod
    def parse(cls, text: str, protocols: dict[str, str]) -> Endpoint:
        """Parse ``LISTENER://host:port``; a listener that ``protocols`` does not contain uses its name as protocol."""
        listener, _, address = text.partition("://")
        host, _, port = address.rpartition(":")
        if ":" in host:
            host = host.removeprefix("[").removesuffix("]")
        return cls(listener, protocols.get(listener, listener), host, int(port))


class VersionRange(NamedTuple):
    """Versions of a feature that a broker supports."""

    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerNode(JsonNode):
    """``/brokers/ids/<id>`` (version 5; 1 to 4 are read).

    ``host`` and ``port`` are those of the first plaintext endpoint, or ("", -1) without one. If ``endpoints`` is
    missing, they form the only endpoint.
    """

    host: str
    port: int
    rack: str = ""
    timestamp_ms: int
    endpoints: tuple[Endpoint, ...] = ()
    features: dict[str, VersionRange] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.endpoints:
            object.__setattr__(self, "endpoints", (Endpoint("PLAINTEXT", "PLAINTEXT", self.host, self.port),))

    @classmethod
    def at(
        cls,
        endpoints: tuple[Endpoint, ...],
        *,
        rack: str = "",
        timestamp_ms: int,
        features: dict[str, VersionRange] | None = None,
    ) -> BrokerNode:
        """Create a broker node with at least one endpoint."""
        plain = next((each for each in endpoints if each.protocol == "PLAINTEXT"), Endpoint("", "", "", -1))
        return cls(
            host=plain.host,
            port=plain.port,
            rack=rack,
            timestamp_ms=timestamp_ms,
            endpoints=endpoints,
            features=features or {},
        )

    def encode(self) -> bytes:
        """Encode the node."""
        value: dict[str, Any] = {
            "version": 5,
            "host": self.host if self.port >= 0 else None,
            "port": self.port,
            "listener_security_protocol_map": {each.listener: each.protocol for each in self.endpoints},
            "endpoints": [str(each) for each in self.endpoints],
            "jmx_port": -1,
            "timestamp": str(self.timestamp_ms),
            "features": {name: versions._asdict() for name, versions in self.features.items()},
        }
        if self.rack:
            value["rack"] = self.rack
        return dump_json(value)

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        protocols = value.get("listener_security_protocol_map") or {}
        features = value.get("features") or {}
        return cls(
            host=value["host"] or "",
            port=value["port"],
            rack=value.get("rack") or "",
            timestamp_ms=int(value["timestamp"]),
            endpoints=tuple(Endpoint.parse(text, protocols) for text in value.get("endpoints", ())),
            features={name: VersionRange(each["min_version"], each["max_version"]) for name, each in features.items()},
        )


Replicas = dict[int, tuple[int, ...]]
"""Broker ids by partition."""


@dataclass(frozen=True, slots=True)
class TopicNode(JsonNode):
    """``/brokers/topics/<topic>`` (version 3), the topic's id and replicas.

    ``assignment`` holds the replicas of each partition, the preferred leader first. ``adding`` and ``removing`` hold
    the replicas that a reassignment adds and removes, by partition (KIP-455). Nodes without a topic id, from Kafka
    before 2.8, are not read.
    """

    topic_id: uuid.UUID
    assignment: Replicas
    adding: Replicas = field(default_factory=dict)
    removing: Replicas = field(default_factory=dict)

    def encode(self) -> bytes:
        """Encode the node."""
        return dump_json(
            {
                "version": 3,
                "topic_id": id_text(self.topic_id),
                "partitions": _replicas_json(self.assignment),
                "adding_replicas": _replicas_json(self.adding),
                "removing_replicas": _replicas_json(self.removing),
            }
        )

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        return cls(
            parse_id(value["topic_id"]),
            _replicas(value["partitions"]),
            _replicas(value.get("adding_replicas") or {}),
            _replicas(value.get("removing_replicas") or {}),
        )


def _replicas_json(replicas: Replicas) -> dict[str, list[int]]:
    return {str(partition): list(brokers) for partition, brokers in replicas.items()}


def _replicas(value: dict[str, list[int]]) -> Replicas:
    return dict(sorted((int(partition), tuple(brokers)) for partition, brokers in value.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStateNode(JsonNode):
    """``/brokers/topics/<topic>/partitions/<partition>/state``."""

    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]

    def encode(self) -> bytes:
        """Encode the node."""
        return dump_json(
            {
                "controller_epoch": self.controller_epoch,
                "leader": self.leader,
                "version": 1,
                "leader_epoch": self.leader_epoch,
                "isr": list(self.isr),
            }
        )

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        return cls(
            controller_epoch=value["controller_epoch"],
            leader=value["leader"],
            leader_epoch=value["leader_epoch"],
            isr=tuple(value["isr"]),
        )


@dataclass(frozen=True, slots=True)
class ConfigNode(JsonNode):
    """``/config/<entity type>/<entity>``: options that differ from the defaults."""

    config: dict[str, str]

    def encode(self) -> bytes:
        """Encode the node."""
        return dump_json({"version": 1, "config": self.config})

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        return cls({str(name): str(text) for name, text in value["config"].items()})


def encode_epoch(epoch: int) -> bytes:
    """Encode ``/controller_epoch``."""
    return str(epoch).encode()


def decode_epoch(data: bytes) -> int:
    """Read ``/controller_epoch``. Raises ``StorageError``."""
    try:
        return int(data)
    except ValueError as error:
        raise StorageError(f"metadata node is not a controller epoch, a decimal number: {data[:200]!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerNode(JsonNode):
    """``/controller``."""

    broker_id: int
    timestamp_ms: int

    def encode(self) -> bytes:
        """Encode the node."""
        return dump_json(
            {"version": 2, "brokerid": self.broker_id, "timestamp": str(self.timestamp_ms), "kraftControllerEpoch": -1}
        )

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        return cls(broker_id=value["brokerid"], timestamp_ms=int(value["timestamp"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlockNode(JsonNode):
    """``/latest_producer_id_block``: the last allocated block of producer ids, both ends included."""

    broker_id: int
    first: int
    last: int

    def encode(self) -> bytes:
        """Encode the node."""
        return dump_json(
            {"version": 1, "broker": self.broker_id, "block_start": str(self.first), "block_end": str(self.last)}
        )

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        return cls(broker_id=value["broker"], first=int(value["block_start"]), last=int(value["block_end"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaNode(JsonNode):
    """``/millrace/schemas/<id>``, one version of a topic's schema.

    ``arrow_schema`` is an Arrow IPC schema message.
    """

    topic_id: uuid.UUID
    schema_version: int
    arrow_schema: bytes

    def encode(self) -> bytes:
        """Encode the node."""
        return dump_json(
            {
                "version": 1,
                "topic_id": id_text(self.topic_id),
                "schema_version": self.schema_version,
                "arrow_schema": base64.b64encode(self.arrow_schema).decode(),
            }
        )

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        return cls(
            topic_id=parse_id(value["topic_id"]),
            schema_version=value["schema_version"],
            arrow_schema=base64.b64decode(value["arrow_schema"], validate=True),
        )


@dataclass(frozen=True, slots=True)
class TypedTopicNode(JsonNode):
    """``/millrace/topics/<topic>``: ids of the schema's versions, oldest first, and the key columns."""

    schema_ids: tuple[int, ...]
    key_columns: tuple[str, ...]

    def encode(self) -> bytes:
        """Encode the node."""
        return dump_json({"version": 1, "schema_ids": list(self.schema_ids), "key_columns": list(self.key_columns)})

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        return cls(tuple(value["schema_ids"]), tuple(value["key_columns"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadSchemaNode(JsonNode):
    """``/millrace/payload_schemas/<id>``: a payload schema for opaque topics.

    ``references`` are (name in the text, subject, version) and ``subjects`` are (subject, version), as in the
    Confluent registry.
    """

    kind: str
    text: str
    references: tuple[tuple[str, str, int], ...] = ()
    subjects: tuple[tuple[str, int], ...] = ()

    def has_same_schema(self, other: PayloadSchemaNode) -> bool:
        """Return whether both nodes have the same schema, regardless of their subjects."""
        return (self.kind, self.text, self.references) == (other.kind, other.text, other.references)

    def encode(self) -> bytes:
        """Encode the node."""
        return dump_json(
            {
                "version": 1,
                "kind": self.kind,
                "schema": self.text,
                "references": [list(each) for each in self.references],
                "subjects": [list(each) for each in self.subjects],
            }
        )

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        return cls(
            kind=value["kind"],
            text=value["schema"],
            references=tuple((name, subject, version) for name, subject, version in value["references"]),
            subjects=tuple((subject, version) for subject, version in value["subjects"]),
        )
