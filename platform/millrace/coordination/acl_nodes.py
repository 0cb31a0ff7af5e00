"""Nodes of ACLs and of notices of their changes.

Their JSON is that of Kafka 3.9 (``AclEntry``, ``ZkData``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from millrace.acls import AccessControlEntry, AclOperation, AclPermission, PatternType, ResourcePattern, ResourceType
from millrace.coordination.json_node import JsonNode, dump_json
from millrace.errors import InvalidRequestError, StorageError


@dataclass(frozen=True, slots=True)
class AclNode(JsonNode):
    """``/kafka-acl/<type>/<name>`` and ``/kafka-acl-extended/prefixed/<type>/<name>``: entries of a pattern."""

    entries: frozenset[AccessControlEntry]

    def encode(self) -> bytes:
        """Encode the node."""
        acls = [
            {
                "principal": each.principal,
                "permissionType": each.permission.title,
                "operation": each.operation.title,
                "host": each.host,
            }
            for each in sorted(self.entries)
        ]
        return dump_json({"version": 1, "acls": acls})

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        if value["version"] != 1:
            raise ValueError(f"version {value['version']} is not supported: expected 1")
        try:
            return cls(
                frozenset(
                    AccessControlEntry(
                        str(each["principal"]),
                        str(each["host"]),
                        AclOperation.of(each["operation"]),
                        AclPermission.of(each["permissionType"]),
                    )
                    for each in value["acls"]
                )
            )
        except InvalidRequestError as error:
            raise ValueError(error.message) from error


@dataclass(frozen=True, slots=True)
class AclChangeNode:
    """``/kafka-acl-changes/acl_changes_<number>``: the literal pattern that has changed, ``Topic:orders``."""

    pattern: ResourcePattern

    def encode(self) -> bytes:
        """Encode the node."""
        return f"{self.pattern.resource_type.title}:{self.pattern.name}".encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a node. Raises ``StorageError``."""
        resource_type, colon, name = data.decode(errors="replace").partition(":")
        if not (colon and name):
            raise StorageError(f"metadata node is not a valid {cls.__name__}: {data[:200]!r}")
        return cls(_pattern(resource_type, name, PatternType.LITERAL))


@dataclass(frozen=True, slots=True)
class ExtendedAclChangeNode(JsonNode):
    """``/kafka-acl-extended-changes/acl_changes_<number>``: the pattern that has changed."""

    pattern: ResourcePattern

    def encode(self) -> bytes:
        """Encode the node."""
        pattern = self.pattern
        return dump_json(
            {
                "version": 1,
                "resourceType": pattern.resource_type.name,
                "name": pattern.name,
                "patternType": pattern.pattern_type.name,
            }
        )

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        if value["version"] != 1:
            raise ValueError(f"version {value['version']} is not supported: expected 1")
        try:
            pattern_type = PatternType.of(value["patternType"])
        except InvalidRequestError as error:
            raise ValueError(error.message) from error
        return cls(_pattern(value["resourceType"], str(value["name"]), pattern_type))


def _pattern(resource_type: str, name: str, pattern_type: PatternType) -> ResourcePattern:
    try:
        return ResourcePattern(ResourceType.of(resource_type), name, pattern_type)
    except InvalidRequestError as error:
        raise StorageError(
            f"a notice of changed ACLs names a resource type that is unknown: {error.message}"
        ) from error
