"""What the nodes hold: Kafka's JSON, and ours for schemas, as typed data.

Each class encodes to the JSON that Kafka 3.9 writes at its path (``kafka.zk.ZkData``) and decodes that of any
version that names the same fields. A node that cannot be read raises ``StorageError`` naming what was expected.
"""

from __future__ import annotations

import base64
import json
import uuid
from dataclasses import dataclass
from typing import Any, Self

from millrace.errors import StorageError
from millrace.ids import id_text, parse_id


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class _JsonNode:
    """Shared decoding: whatever is wrong with a node's bytes becomes one clear error."""

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a node's bytes. Raises ``StorageError``."""
        try:
            return cls._from_json(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(f"metadata node is no {cls.__name__} ({error!r}): {data[:200]!r}") from error

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ClusterIdNode(_JsonNode):
    """``/cluster/id``."""

    cluster_id: str

    def encode(self) -> bytes:
        """The node's bytes."""
        return _dump({"version": "1", "id": self.cluster_id})

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        return cls(str(value["id"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerNode(_JsonNode):
    """``/brokers/ids/<id>`` (version 5), with one plaintext endpoint."""

    host: str
    port: int
    rack: str = ""
    timestamp_ms: int

    def encode(self) -> bytes:
        """The node's bytes."""
        value: dict[str, Any] = {
            "version": 5,
            "host": self.host,
            "port": self.port,
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
            "endpoints": [f"PLAINTEXT://{self.host}:{self.port}"],
            "jmx_port": -1,
            "timestamp": str(self.timestamp_ms),
            "features": {},
        }
        if self.rack:
            value["rack"] = self.rack
        return _dump(value)

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        return cls(
            host=value["host"], port=value["port"], rack=value.get("rack", ""), timestamp_ms=int(value["timestamp"])
        )


@dataclass(frozen=True, slots=True)
class TopicNode(_JsonNode):
    """``/brokers/topics/<topic>`` (version 3): the topic's id and each partition's replicas, preferred leader first."""

    topic_id: uuid.UUID
    assignment: dict[int, tuple[int, ...]]

    def encode(self) -> bytes:
        """The node's bytes."""
        return _dump(
            {
                "version": 3,
                "topic_id": id_text(self.topic_id),
                "partitions": {str(partition): list(replicas) for partition, replicas in self.assignment.items()},
                "adding_replicas": {},
                "removing_replicas": {},
            }
        )

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        assignment = {int(partition): tuple(replicas) for partition, replicas in value["partitions"].items()}
        return cls(parse_id(value["topic_id"]), dict(sorted(assignment.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStateNode(_JsonNode):
    """``/brokers/topics/<topic>/partitions/<partition>/state``."""

    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]

    def encode(self) -> bytes:
        """The node's bytes."""
        return _dump(
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
class ConfigNode(_JsonNode):
    """``/config/topics/<topic>``: only what differs from the broker's defaults."""

    config: dict[str, str]

    def encode(self) -> bytes:
        """The node's bytes."""
        return _dump({"version": 1, "config": self.config})

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        return cls({str(name): str(text) for name, text in value["config"].items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerNode(_JsonNode):
    """``/controller``."""

    broker_id: int
    timestamp_ms: int

    def encode(self) -> bytes:
        """The node's bytes."""
        return _dump(
            {"version": 2, "brokerid": self.broker_id, "timestamp": str(self.timestamp_ms), "kraftControllerEpoch": -1}
        )

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        return cls(broker_id=value["brokerid"], timestamp_ms=int(value["timestamp"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlockNode(_JsonNode):
    """``/latest_producer_id_block``: the last block of producer ids given to a broker, both ends included."""

    broker_id: int
    first: int
    last: int

    def encode(self) -> bytes:
        """The node's bytes."""
        return _dump(
            {"version": 1, "broker": self.broker_id, "block_start": str(self.first), "block_end": str(self.last)}
        )

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        return cls(broker_id=value["broker"], first=int(value["block_start"]), last=int(value["block_end"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaNode(_JsonNode):
    """``/millrace/schemas/<id>``: one version of a topic's schema, as an Arrow IPC schema message."""

    topic_id: uuid.UUID
    schema_version: int
    arrow_schema: bytes

    def encode(self) -> bytes:
        """The node's bytes."""
        return _dump(
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
class TypedTopicNode(_JsonNode):
    """``/millrace/topics/<topic>``: ids of the schema's versions, oldest first, and the key columns."""

    schema_ids: tuple[int, ...]
    key_columns: tuple[str, ...]

    def encode(self) -> bytes:
        """The node's bytes."""
        return _dump({"version": 1, "schema_ids": list(self.schema_ids), "key_columns": list(self.key_columns)})

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        return cls(tuple(value["schema_ids"]), tuple(value["key_columns"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadSchemaNode(_JsonNode):
    """``/millrace/payload_schemas/<id>``: a schema of payloads in opaque topics.

    ``references`` are (name in the text, subject, version), ``subjects`` are (subject, version): as the Confluent
    registry has them.
    """

    kind: str
    text: str
    references: tuple[tuple[str, str, int], ...] = ()
    subjects: tuple[tuple[str, int], ...] = ()

    def has_same_schema(self, other: PayloadSchemaNode) -> bool:
        """Whether both say the same of payloads, whatever their subjects."""
        return (self.kind, self.text, self.references) == (other.kind, other.text, other.references)

    def encode(self) -> bytes:
        """The node's bytes."""
        return _dump(
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
