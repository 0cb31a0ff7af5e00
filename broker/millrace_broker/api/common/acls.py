"""Conversion of ACLs to messages, and back."""

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
from millrace.errors import SecurityDisabledError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.broker import Broker
from millrace_broker.security import Authorizer

Kind = TypeVar("Kind", ResourceType, PatternType, AclOperation, AclPermission)


def authorizer_of(broker: Broker) -> Authorizer:
    """Return the authorizer. Raises ``SecurityDisabledError`` if the broker has none."""
    if broker.authorizer is None:
        raise SecurityDisabledError("this broker has no ACLs, because it has no authorizer: set authorizer.class.name")
    return broker.authorizer


def kind_of(kind: type[Kind], number: int) -> Kind:
    """Return the member of an enumeration; ``UNKNOWN`` for a number that this broker does not know."""
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
