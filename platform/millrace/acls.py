"""Access control lists: Kafka's resources, operations, patterns, entries and filters.

Kafka's classes are ``AclBinding``, ``ResourcePattern``, ``AccessControlEntry`` and ``AclBindingFilter``
(``org.apache.kafka.common.acl``). The numbers of the enumerations are those of Kafka's protocol.
"""

from __future__ import annotations

import ipaddress
from enum import IntEnum
from typing import Final, NamedTuple, Self

from millrace.errors import InvalidRequestError
from millrace.topic_names import is_topic_name_part


class _Named(IntEnum):
    """Enumeration with Kafka's names, such as ``TransactionalId``, beside its numbers."""

    @property
    def title(self) -> str:
        """Kafka's name, as in its ZooKeeper nodes."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse a name in any case, with or without separators. Raises ``InvalidRequestError``."""
        wanted = text.replace("_", "").replace("-", "").casefold()
        for each in cls:
            if each.title.casefold() == wanted:
                return each
        known = ", ".join(each.title for each in cls if each.name not in ("UNKNOWN", "ANY"))
        raise InvalidRequestError(f"{text!r} is none of {known}")


class ResourceType(_Named):
    """Kind of a resource."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Named):
    """Kind of a resource pattern. ``ANY`` and ``MATCH`` are of filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(_Named):
    """Operation on a resource."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class AclPermission(_Named):
    """Permission of an ACL entry, which allows or denies (Kafka's ``AclPermissionType``)."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"
"""Name of the only resource of the type ``CLUSTER``."""
WILDCARD: Final = "*"
"""Name of a literal pattern of every resource of a type, and host of an entry for every host."""
_USER: Final = "User"
"""Type of the principals of all clients."""
EVERYONE: Final = "User:*"
"""Principal of an entry for every principal."""

_R, _W, _C, _D, _A, _S = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
)
_CONFIGS: Final = (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)
SUPPORTED_OPERATIONS: Final[dict[ResourceType, tuple[AclOperation, ...]]] = {
    ResourceType.TOPIC: (_R, _W, _C, _D, _A, _S, *_CONFIGS),
    ResourceType.GROUP: (_R, _D, _S, *_CONFIGS),
    ResourceType.CLUSTER: (_C, _A, _S, AclOperation.CLUSTER_ACTION, *_CONFIGS, AclOperation.IDEMPOTENT_WRITE),
    ResourceType.TRANSACTIONAL_ID: (_W, _S),
    ResourceType.DELEGATION_TOKEN: (_S,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}
"""Operations that calls ask for, by the type of the resource. Kafka: ``AclEntry.supportedOperations``."""

IMPLIED_BY: Final[dict[AclOperation, tuple[AclOperation, ...]]] = {
    AclOperation.DESCRIBE: (_R, _W, _D, _A),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.ALTER_CONFIGS,),
}
"""Operations whose permission also allows the key. A denial implies no other one."""


class ResourcePattern(NamedTuple):
    """Resources that an ACL applies to (Kafka's ``ResourcePattern``).

    The pattern is one name, a prefix of names, or ``*`` for all resources of the type.
    """

    resource_type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL

    def __str__(self) -> str:
        return f"{self.resource_type.title}:{self.pattern_type.name}:{self.name}"

    def matches(self, name: str) -> bool:
        """Return whether the resource with the name is one of the pattern's."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)


class AccessControlEntry(NamedTuple):
    """Permission of a principal on a host. The principal has Kafka's form, ``User:alice``."""

    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission

    def __str__(self) -> str:
        return f"{self.principal} has {self.permission.title} permission for {self.operation.title} from {self.host}"


class AclBinding(NamedTuple):
    """One ACL: an entry on a resource pattern."""

    pattern: ResourcePattern
    entry: AccessControlEntry

    def __str__(self) -> str:
        return f"{self.entry} on {self.pattern}"

    def check(self) -> None:
        """Raise ``InvalidRequestError`` for an ACL that no broker can keep."""
        pattern, entry = self.pattern, self.entry
        if pattern.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
            raise InvalidRequestError(f"an ACL on resource type {pattern.resource_type.title}: name one type")
        if pattern.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
            raise InvalidRequestError(f"an ACL with pattern type {pattern.pattern_type.title}: use Literal or Prefixed")
        if not pattern.name:
            raise InvalidRequestError(f"an ACL on a {pattern.resource_type.title} without a name: name it, or give *")
        if "/" in pattern.name or pattern.name in (".", ".."):
            raise InvalidRequestError(
                f"an ACL on {pattern.name!r}: no ZooKeeper node can have this name. Use a prefixed ACL on the part "
                "before the '/'"
            )
        _check_possible(pattern)
        if pattern.resource_type is ResourceType.CLUSTER and pattern.name != CLUSTER_NAME:
            raise InvalidRequestError(
                f"an ACL on cluster {pattern.name!r}: the only name of a cluster is {CLUSTER_NAME}"
            )
        _check_principal(entry.principal)
        if entry.operation in (AclOperation.UNKNOWN, AclOperation.ANY):
            raise InvalidRequestError(f"an ACL for operation {entry.operation.title}: name one operation, or All")
        if entry.permission not in (AclPermission.ALLOW, AclPermission.DENY):
            raise InvalidRequestError(f"an ACL with permission {entry.permission.title}: it is Allow or Deny")
        if not entry.host:
            raise InvalidRequestError(f"the ACL of {entry.principal} has no host: give an address, or * for all hosts")
        if entry.host != WILDCARD and not _is_address(entry.host):
            raise InvalidRequestError(
                f"the host {entry.host!r} of an ACL of {entry.principal} is no IP address, and no connection would "
                "have it: give one address, or * for all hosts. There are neither names nor ranges of addresses"
            )


def _check_principal(principal: str) -> None:
    kind, colon, name = principal.partition(":")
    if not (kind and colon and name):
        raise InvalidRequestError(f"principal {principal!r}: expected Type:name, as User:alice")
    if kind != _USER:
        raise InvalidRequestError(
            f"principal {principal!r}: no client has the type {kind}, so the ACL would never apply. Every client is a "
            f"User (in this case): use {_USER}:{name}"
        )


def _check_possible(pattern: ResourcePattern) -> None:
    """Raise ``InvalidRequestError`` for a pattern that matches no possible name."""
    if pattern.pattern_type is PatternType.PREFIXED and pattern.name == WILDCARD:
        raise InvalidRequestError(
            f"a prefixed ACL on {WILDCARD!r} would apply only to names that begin with {WILDCARD}: use a literal ACL "
            f"on {WILDCARD!r} for all names"
        )
    if pattern.resource_type is ResourceType.USER:
        _check_user(pattern)
    is_topic = pattern.resource_type is ResourceType.TOPIC and pattern.name != WILDCARD
    if is_topic and not is_topic_name_part(pattern.name):
        raise InvalidRequestError(
            f"an ACL on topic {pattern.name!r}: no topic has this name, so the ACL would never apply. Names have 1 to "
            f"249 of the characters a-z A-Z 0-9 . _ -. Use a prefixed ACL for a part, and {WILDCARD!r} for all topics"
        )


def _check_user(pattern: ResourcePattern) -> None:
    """Raise ``InvalidRequestError`` for a pattern of users that matches no principal."""
    start = f"{_USER}:"
    is_prefix = pattern.pattern_type is PatternType.PREFIXED and start.startswith(pattern.name)
    if pattern.name != WILDCARD and not pattern.name.startswith(start) and not is_prefix:
        raise InvalidRequestError(
            f"an ACL on user {pattern.name!r}: no principal has this name, so the ACL would never apply. Every client "
            f"is a {_USER} (in this case): use {start}{pattern.name.rpartition(':')[2]}"
        )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class AclBindingFilter(NamedTuple):
    """Filter of ACLs. A field that is None, or ``ANY``, matches all."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY

    @classmethod
    def of(cls, binding: AclBinding) -> AclBindingFilter:
        """Return the filter of exactly this ACL."""
        pattern, entry = binding
        return cls(pattern.resource_type, pattern.name, pattern.pattern_type, *entry)

    def matches_pattern(self, pattern: ResourcePattern) -> bool:
        """Return whether ACLs on the pattern can match."""
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        return pattern.matches(self.name) if self.pattern_type is PatternType.MATCH else pattern.name == self.name

    def matches(self, binding: AclBinding) -> bool:
        """Return whether an ACL matches."""
        entry = binding.entry
        return (
            self.matches_pattern(binding.pattern)
            and self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (AclOperation.ANY, entry.operation)
            and self.permission in (AclPermission.ANY, entry.permission)
        )

    def check(self) -> None:
        """Raise ``InvalidRequestError`` for a filter that has an unknown element."""
        for each in (self.resource_type, self.pattern_type, self.operation, self.permission):
            if each.name == "UNKNOWN":
                raise InvalidRequestError(f"the filter has an unknown {type(each).__name__}: leave it out to match all")
