"""Decisions of ACLs in memory, by principal, resource and host.

The work of a decision does not depend on the number of ACLs. A principal's literal patterns are found by name, and its
prefixes by each length that one of them has. The operations that an entry allows or denies, with the implied ones, are
bits of a number.

Invariants

- An index is never changed. A change of ACLs makes another index, which shares all parts that stay the same.
- A denial takes precedence over each permission, whatever their patterns and hosts.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from millrace.acls import (
    EVERYONE,
    IMPLIED_BY,
    WILDCARD,
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
    ResourceType,
)

Entries = frozenset[AccessControlEntry]


class Bits(NamedTuple):
    """Allowed and denied operations, as bits by the operations' numbers."""

    allowed: int
    denied: int


_NO_BITS: Final = Bits(0, 0)
_ALL_BITS: Final = sum(1 << each for each in AclOperation)
_ANYONE: Final = ""
"""Key of the patterns that have an ACL of any principal."""

Hosts = Mapping[str, Bits]
"""Bits of a principal on a pattern, by the host's address, or ``*``."""


class _Patterns(NamedTuple):
    """Patterns of one resource type with entries of one principal."""

    literal: Mapping[str, Hosts]
    prefixed: Mapping[str, Hosts]
    lengths: tuple[int, ...]
    """Lengths of the prefixes, each once."""

    def matching(self, name: str) -> Iterator[Hosts]:
        """Yield the hosts of the patterns that match a resource."""
        for literal in (name, WILDCARD):
            if (found := self.literal.get(literal)) is not None:
                yield found
        for length in self.lengths:
            if (found := self.prefixed.get(name[:length])) is not None:
                yield found


_NO_PATTERNS: Final = _Patterns({}, {}, ())
_Key = tuple[ResourceType, str]


class AclIndex:
    """All ACLs of a cluster, in the form that decisions use."""

    def __init__(
        self,
        acls: Mapping[ResourcePattern, Entries] | None = None,
        _patterns: Mapping[_Key, _Patterns] | None = None,
    ) -> None:
        """Begin without ACLs. ``updated`` returns an index with some."""
        self.acls: Final[Mapping[ResourcePattern, Entries]] = acls or {}
        self._patterns: Final[Mapping[_Key, _Patterns]] = _patterns or {}

    def updated(self, changes: Mapping[ResourcePattern, Entries]) -> AclIndex:
        """Return the index with other entries of some patterns. A pattern without entries is removed."""
        acls, touched = dict(self.acls), dict[_Key, dict[ResourcePattern, Hosts]]()
        for pattern, entries in changes.items():
            before = acls.pop(pattern, frozenset())
            if entries:
                acls[pattern] = entries
            hosts = _hosts_by_principal(entries)
            for principal in {each.principal for each in before | entries} | {_ANYONE}:
                touched.setdefault((pattern.resource_type, principal), {})[pattern] = hosts.get(principal, {})
        patterns = dict(self._patterns)
        for key, changed in touched.items():
            patterns[key] = _with(patterns.get(key, _NO_PATTERNS), changed)
            if not (patterns[key].literal or patterns[key].prefixed):
                del patterns[key]
        return AclIndex(acls, patterns)

    def bits(self, principal: str, host: str, resource_type: ResourceType, name: str) -> Bits:
        """Return what the ACLs allow and deny to a principal on a resource."""
        allowed = denied = 0
        for who in (principal, EVERYONE):
            patterns = self._patterns.get((resource_type, who))
            if patterns is None:
                continue
            for hosts in patterns.matching(name):
                for address in (host, WILDCARD):
                    found = hosts.get(address)
                    if found is not None:
                        allowed |= found.allowed
                        denied |= found.denied
        return Bits(allowed, denied)

    def has_any(self, resource_type: ResourceType, name: str) -> bool:
        """Return whether any ACL is for the resource."""
        patterns = self._patterns.get((resource_type, _ANYONE), _NO_PATTERNS)
        return next(patterns.matching(name), None) is not None

    def is_allowed_somewhere(
        self, principal: str, host: str, resource_type: ResourceType, operation: AclOperation, *, by_default: bool
    ) -> bool:
        """Return whether some resource of a type, existing or not, is allowed (KIP-679).

        ``by_default`` says that a resource without ACLs is allowed. Source: ``Authorizer.authorizeByResourceType``.
        """
        bit = 1 << operation
        denied = [
            (kind, name) for kind, name, found in self._entries_of(principal, host, resource_type) if found.denied & bit
        ]
        names = {name for kind, name in denied if kind is PatternType.LITERAL}
        prefixes = {name for kind, name in denied if kind is PatternType.PREFIXED}
        if WILDCARD in names or by_default:
            return WILDCARD not in names
        lengths = set(map(len, prefixes))
        for kind, name, found in self._entries_of(principal, host, resource_type):
            is_denied = kind is PatternType.LITERAL and name in names
            is_denied |= name != WILDCARD and any(name[:length] in prefixes for length in lengths)
            if found.allowed & bit and not is_denied:
                return True
        return False

    def _entries_of(
        self, principal: str, host: str, resource_type: ResourceType
    ) -> Iterator[tuple[PatternType, str, Bits]]:
        """Yield the patterns of a type that have entries for a principal at a host."""
        for who in (principal, EVERYONE):
            patterns = self._patterns.get((resource_type, who), _NO_PATTERNS)
            for kind, by_name in ((PatternType.LITERAL, patterns.literal), (PatternType.PREFIXED, patterns.prefixed)):
                for name, hosts in by_name.items():
                    for address in (host, WILDCARD):
                        if (found := hosts.get(address)) is not None:
                            yield kind, name, found

    def find(self, wanted: AclBindingFilter) -> list[AclBinding]:
        """Return the ACLs that match a filter, sorted."""
        exact = ResourcePattern(wanted.resource_type, wanted.name or "", wanted.pattern_type)
        is_exact = wanted.pattern_type in (PatternType.LITERAL, PatternType.PREFIXED) and exact in self.acls
        patterns: Iterable[ResourcePattern] = (exact,) if is_exact else self.acls
        return sorted(
            binding
            for pattern in patterns
            if wanted.matches_pattern(pattern)
            for entry in self.acls[pattern]
            if wanted.matches(binding := AclBinding(pattern, entry))
        )


def _hosts_by_principal(entries: Entries) -> dict[str, dict[str, Bits]]:
    found: dict[str, dict[str, Bits]] = {_ANYONE: {WILDCARD: _NO_BITS}} if entries else {}
    for entry in entries:
        hosts = found.setdefault(entry.principal, {})
        host = canonical_host(entry.host)
        allowed, denied = hosts.get(host, _NO_BITS)
        if entry.permission is AclPermission.ALLOW:
            allowed |= _allowed_by(entry.operation)
        elif entry.permission is AclPermission.DENY:
            denied |= _ALL_BITS if entry.operation is AclOperation.ALL else 1 << entry.operation
        hosts[host] = Bits(allowed, denied)
    return found


def _allowed_by(operation: AclOperation) -> int:
    """Return the bits of an allowed operation and of those that it implies."""
    if operation is AclOperation.ALL:
        return _ALL_BITS
    implied = sum(1 << each for each, sources in IMPLIED_BY.items() if operation in sources)
    return 1 << operation | implied


def _with(patterns: _Patterns, changed: Mapping[ResourcePattern, Hosts]) -> _Patterns:
    literal, prefixed = dict(patterns.literal), dict(patterns.prefixed)
    for pattern, hosts in changed.items():
        by_name = prefixed if pattern.pattern_type is PatternType.PREFIXED else literal
        by_name.pop(pattern.name, None)
        if hosts:
            by_name[pattern.name] = hosts
    return _Patterns(literal, prefixed, tuple(sorted(set(map(len, prefixed)))))


def canonical_host(host: str) -> str:
    """Return the one form of an address that an ACL and a connection share; ``*`` and names as they are.

    A socket for both families shows an IPv4 client as ``::ffff:10.0.0.5``. Without this, a denial of 10.0.0.5 would not
    be for it.
    """
    if ":" not in host:
        return host
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
