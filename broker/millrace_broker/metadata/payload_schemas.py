"""Payload schemas of opaque topics, by the ids in payloads (Confluent's framing).

The broker stores schemas and does not parse them; the client that registers a schema has parsed it.

Invariants
* The schema of an id never changes, because records in logs name the id. A schema can only be deleted as a whole.
* A version of a subject belongs to one id. Every schema in memory was written to coordination first.
* Any thread may read. Changes block, in the administration thread, and are atomic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from millrace.coordination import (
    BadVersionError,
    Coordination,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Operation,
    Write,
    paths,
)
from millrace.coordination.nodes import PayloadSchemaNode
from millrace.coordination.outcomes import settle
from millrace.errors import SchemaError, UnknownSchemaError
from millrace_broker.metadata.config_notices import notice

ENTITY_TYPE: Final = "millrace"
"""Entity type of the configuration whose changes other brokers are notified of."""
_NAME: Final = "payload_schemas"
_ENTITY: Final = f"{ENTITY_TYPE}/{_NAME}"
KINDS: Final = ("AVRO", "JSON", "PROTOBUF")
TEXT_BYTES_MAX: Final = 512 * 1024
"""A ZooKeeper node holds 1 MiB."""


class PayloadSchemas:
    """Payload schemas by id."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination: Final = coordination
        self.reload_all()

    def reload(self, name: str) -> None:
        """Read all schemas if ``name`` is their entity."""
        if name == _NAME:
            self.reload_all()

    def reload_all(self) -> None:
        """Read all schemas."""
        ids = [int(name) for name in self._coordination.children(paths.PAYLOAD_SCHEMAS)]
        found = self._coordination.get_many([paths.payload_schema_path(schema_id) for schema_id in ids])
        self._nodes: Mapping[int, PayloadSchemaNode] = {
            schema_id: PayloadSchemaNode.decode(node[0])
            for schema_id, node in zip(ids, found, strict=True)
            if node is not None
        }

    @property
    def schemas(self) -> Mapping[int, PayloadSchemaNode]:
        """All schemas by id, in no order."""
        return MappingProxyType(self._nodes)

    def register(
        self, wanted: Sequence[tuple[int, PayloadSchemaNode]], *, validate_only: bool = False
    ) -> list[tuple[int, PayloadSchemaNode]]:
        """Register schemas. Id 0 stands for the id of an equal schema, or the next free id.

        Registering the same schema again under its id adds its new subjects. Raises ``SchemaError`` if an id or a
        subject's version has another schema.
        """
        while True:
            try:
                return self._register(wanted, validate_only=validate_only)
            except (BadVersionError, NodeExistsError, NoNodeError):
                self.reload_all()  # another broker changed them, and its notification has not arrived

    def _register(
        self, wanted: Sequence[tuple[int, PayloadSchemaNode]], *, validate_only: bool
    ) -> list[tuple[int, PayloadSchemaNode]]:
        nodes = dict(self._nodes)
        versions = {subject: schema_id for schema_id, node in nodes.items() for subject in node.subjects}
        registered = []
        for schema_id, node in wanted:
            _check(schema_id, node)
            number = schema_id or _id_of(node, nodes)
            present = nodes.get(number)
            if present is not None and not present.has_same_schema(node):
                raise SchemaError(
                    f"id {number} has another schema ({present.kind}), and the schema of an id cannot change: "
                    "choose another id, or delete it if no record names it"
                )
            for subject, version in node.subjects:
                if versions.setdefault((subject, version), number) != number:
                    raise SchemaError(
                        f"version {version} of subject {subject} has id {versions[subject, version]}, not {number}: "
                        "choose another version"
                    )
            known = present.subjects if present is not None else ()
            nodes[number] = replace(node, subjects=tuple(dict.fromkeys((*known, *node.subjects))))
            registered.append(number)
        if not validate_only:
            self._write(nodes)
        return [(number, nodes[number]) for number in registered]

    def delete(self, ids: Iterable[int]) -> None:
        """Delete schemas. Raises ``UnknownSchemaError``; then no schema is deleted."""
        gone = set(ids)
        for schema_id in sorted(gone - self._nodes.keys()):
            raise unknown(schema_id)
        deletions = [Delete(paths.payload_schema_path(schema_id)) for schema_id in sorted(gone)]
        settle(self._coordination, [*deletions, notice(_ENTITY)])
        self._nodes = {schema_id: node for schema_id, node in self._nodes.items() if schema_id not in gone}

    def _write(self, nodes: Mapping[int, PayloadSchemaNode]) -> None:
        operations: list[Operation] = []
        for schema_id, node in nodes.items():
            path = paths.payload_schema_path(schema_id)
            if schema_id not in self._nodes:
                operations.append(Create(path, node.encode()))
            elif self._nodes[schema_id] != node:
                operations.append(Write(path, node.encode(), self._version(schema_id)))
        if operations:
            settle(self._coordination, [*operations, notice(_ENTITY)])
        self._nodes = nodes

    def _version(self, schema_id: int) -> int:
        """Return the node version of a schema. Raises ``BadVersionError`` if the node differs from memory."""
        path = paths.payload_schema_path(schema_id)
        data, stat = self._coordination.get(path)
        if PayloadSchemaNode.decode(data) != self._nodes[schema_id]:
            raise BadVersionError(f"{path} was changed by another broker")
        return stat.version


def unknown(schema_id: int) -> UnknownSchemaError:
    """Build the error for an id that is not registered."""
    return UnknownSchemaError(
        f"no payload schema has id {schema_id}: register it with 'millrace schemas import --id {schema_id} FILE'"
    )


def _check(schema_id: int, node: PayloadSchemaNode) -> None:
    if schema_id < 0:
        raise SchemaError(f"id {schema_id}: an id is a whole number from 1, or 0 for the next free one")
    if node.kind not in KINDS:
        raise SchemaError(f"kind {node.kind!r} of schema {schema_id}: expected one of {', '.join(KINDS)}")
    size = len(node.text.encode())
    if not 0 < size <= TEXT_BYTES_MAX:
        raise SchemaError(f"the text of schema {schema_id} has {size} bytes: expected 1 to {TEXT_BYTES_MAX}")


def _id_of(node: PayloadSchemaNode, nodes: Mapping[int, PayloadSchemaNode]) -> int:
    for schema_id, other in nodes.items():
        if other.has_same_schema(node):
            return schema_id
    return max(nodes, default=0) + 1
