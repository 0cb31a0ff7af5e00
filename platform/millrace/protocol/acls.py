"""ACLs and their filters as messages, and back."""

from __future__ import annotations

from typing import TypeVar

from millrace.acls import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from millrace.protocol import millrace_pb2 as pb

Kind = TypeVar("Kind", ResourceType, PatternType, AclOperation, AclPermission)


def kind_of(kind: type[Kind], number: int) -> Kind:
    """Return the member of an enumeration; ``UNKNOWN`` for a number that this side does not know."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


def message_of(binding: AclBinding) -> pb.Acl:
    """Convert an ACL to its message."""
    pattern, entry = binding
    return pb.Acl(
        resource_type=pattern.resource_type,
        name=pattern.name,
        pattern_type=pattern.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission=entry.permission,
    )


def read_acl(message: pb.Acl) -> AclBinding:
    """Read an ACL, which may be one that no broker can keep."""
    return AclBinding(
        ResourcePattern(
            kind_of(ResourceType, message.resource_type), message.name, kind_of(PatternType, message.pattern_type)
        ),
        AccessControlEntry(
            message.principal,
            message.host,
            kind_of(AclOperation, message.operation),
            kind_of(AclPermission, message.permission),
        ),
    )


def read_filter(message: pb.AclFilter) -> AclBindingFilter:
    """Read a filter. Numbers that are not set match all. Raises ``InvalidRequestError`` for unknown numbers."""
    wanted = AclBindingFilter(
        kind_of(ResourceType, message.resource_type or ResourceType.ANY),
        message.name if message.HasField("name") else None,
        kind_of(PatternType, message.pattern_type or PatternType.ANY),
        message.principal if message.HasField("principal") else None,
        message.host if message.HasField("host") else None,
        kind_of(AclOperation, message.operation or AclOperation.ANY),
        kind_of(AclPermission, message.permission or AclPermission.ANY),
    )
    wanted.check()
    return wanted


def filter_message(wanted: AclBindingFilter) -> pb.AclFilter:
    """Convert a filter to its message."""
    return pb.AclFilter(
        resource_type=wanted.resource_type,
        name=wanted.name,
        pattern_type=wanted.pattern_type,
        principal=wanted.principal,
        host=wanted.host,
        operation=wanted.operation,
        permission=wanted.permission,
    )
