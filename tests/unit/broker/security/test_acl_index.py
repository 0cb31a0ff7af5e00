"""Tests of decisions by the ACL index.

The expected decisions come from Kafka's rules, applied to all ACLs one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.acls import (
    EVERYONE,
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from millrace.errors import InvalidRequestError
from millrace_broker.security import AclIndex
from millrace_broker.security.acl_index import Entries, canonical_host

TOPIC, GROUP, USER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.USER
READ, WRITE, DESCRIBE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.ALL
ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED

NAMES = ("a", "ab", "abc", "b")
HOSTS = ("10.0.0.1", "10.0.0.2")
PRINCIPALS = ("User:alice", "User:bob")

patterns = st.builds(
    ResourcePattern,
    st.sampled_from((TOPIC, GROUP)),
    st.sampled_from((*NAMES, "*")),
    st.sampled_from((LITERAL, PREFIXED)),
)
entries = st.builds(
    AccessControlEntry,
    st.sampled_from((*PRINCIPALS, EVERYONE)),
    st.sampled_from((*HOSTS, "*")),
    st.sampled_from([each for each in AclOperation if each > AclOperation.ANY]),
    st.sampled_from((ALLOW, DENY)),
)
bindings = st.lists(st.builds(AclBinding, patterns, entries), max_size=12)


def index_of(acls: Iterable[AclBinding]) -> AclIndex:
    changes: dict[ResourcePattern, Entries] = {}
    for pattern, entry in acls:
        changes[pattern] = changes.get(pattern, frozenset()) | {entry}
    return AclIndex().updated(changes)


def acl(
    operation: AclOperation = READ,
    name: str = "orders",
    *,
    pattern_type: PatternType = LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    permission: AclPermission = ALLOW,
) -> AclBinding:
    return AclBinding(
        ResourcePattern(TOPIC, name, pattern_type), AccessControlEntry(principal, host, operation, permission)
    )


def is_allowed(
    acls: Iterable[AclBinding],
    operation: AclOperation = READ,
    name: str = "orders",
    principal: str = "User:alice",
    host: str = "10.0.0.1",
) -> bool:
    allowed, denied = index_of(acls).bits(principal, host, TOPIC, name)
    return bool(allowed & ~denied & (1 << operation))


def kafka_allows(
    acls: Iterable[AclBinding], principal: str, host: str, operation: AclOperation, kind: ResourceType, name: str
) -> bool:
    """Decide as ``AclAuthorizer.authorizeAction`` does, by a look at each ACL."""
    matching = [
        entry
        for pattern, entry in acls
        if pattern.resource_type is kind
        and pattern.matches(name)
        and entry.principal in (principal, EVERYONE)
        and entry.host in (host, "*")
    ]
    implying = {
        DESCRIBE: (DESCRIBE, READ, WRITE, AclOperation.DELETE, AclOperation.ALTER),
        AclOperation.DESCRIBE_CONFIGS: (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS),
    }.get(operation, (operation,))
    if any(each.permission is DENY and each.operation in (operation, ALL) for each in matching):
        return False
    return any(each.permission is ALLOW and each.operation in (*implying, ALL) for each in matching)


@given(
    acls=bindings,
    principal=st.sampled_from(PRINCIPALS),
    host=st.sampled_from(HOSTS),
    operation=st.sampled_from([each for each in AclOperation if each > ALL]),
    name=st.sampled_from((*NAMES, "abcd", "")),
)
def test_the_index_decides_as_kafka(
    acls: list[AclBinding], principal: str, host: str, operation: AclOperation, name: str
) -> None:
    allowed, denied = index_of(acls).bits(principal, host, TOPIC, name)
    decided = bool(allowed & ~denied & (1 << operation))
    assert decided is kafka_allows(acls, principal, host, operation, TOPIC, name)
    assert index_of(acls).has_any(TOPIC, name) is any(
        pattern.resource_type is TOPIC and pattern.matches(name) for pattern, _ in acls
    )


@given(acls=bindings, changes=st.lists(st.tuples(patterns, st.frozensets(entries, max_size=3)), max_size=6))
def test_an_index_that_was_changed_decides_as_one_that_was_built_at_once(
    acls: list[AclBinding], changes: list[tuple[ResourcePattern, Entries]]
) -> None:
    changed = before = index_of(acls)
    kept = dict(before.acls)
    for pattern, new in changes:
        changed = changed.updated({pattern: new})
    built = AclIndex().updated(changed.acls)
    for principal in PRINCIPALS:
        for name in (*NAMES, "abcd"):
            assert changed.bits(principal, HOSTS[0], TOPIC, name) == built.bits(principal, HOSTS[0], TOPIC, name)
            assert changed.has_any(TOPIC, name) is built.has_any(TOPIC, name)
    assert before.acls == kept, "an index is never changed"


@given(acls=bindings, principal=st.sampled_from(PRINCIPALS), by_default=st.booleans())
def test_a_right_to_some_resource_is_one_that_a_resource_of_the_type_has(
    acls: list[AclBinding], principal: str, by_default: bool
) -> None:
    index = index_of(acls)
    somewhere = index.is_allowed_somewhere(principal, HOSTS[0], TOPIC, WRITE, by_default=False)
    # Names that no denial of the test's patterns covers apart from those of shorter prefixes.
    allowed = [
        name
        for name in (*NAMES, "a.", "ab.", "abc.", "b.", "*.", "z")
        if kafka_allows(acls, principal, HOSTS[0], WRITE, TOPIC, name)
    ]
    if allowed:
        assert somewhere
    is_all_denied = not kafka_allows(
        [*acls, acl(WRITE, "*", principal=EVERYONE)], principal, HOSTS[0], WRITE, TOPIC, "\0"
    )
    assert index.is_allowed_somewhere(principal, HOSTS[0], TOPIC, WRITE, by_default=True) is not is_all_denied


@pytest.mark.parametrize("operation", [READ, WRITE, AclOperation.DELETE, AclOperation.ALTER])
def test_operations_imply_describe_but_their_denial_does_not(operation: AclOperation) -> None:
    assert is_allowed([acl(operation)], DESCRIBE)
    assert not is_allowed([acl(DESCRIBE)], operation)
    assert is_allowed([acl(operation, permission=DENY), acl(DESCRIBE)], DESCRIBE)
    assert not is_allowed([acl(operation), acl(DESCRIBE, permission=DENY)], DESCRIBE)


def test_alter_configs_implies_describe_configs() -> None:
    assert is_allowed([acl(AclOperation.ALTER_CONFIGS)], AclOperation.DESCRIBE_CONFIGS)
    assert not is_allowed([acl(AclOperation.ALTER)], AclOperation.DESCRIBE_CONFIGS)


def test_a_denial_wins_whatever_its_pattern_and_host() -> None:
    for denial in (
        acl(ALL, permission=DENY),
        acl(READ, "*", permission=DENY),
        acl(READ, "ord", pattern_type=PREFIXED, permission=DENY),
        acl(READ, host="10.0.0.1", permission=DENY),
        acl(READ, principal=EVERYONE, permission=DENY),
    ):
        assert is_allowed([acl(ALL)])
        assert not is_allowed([acl(ALL), denial])


def test_a_prefix_is_not_for_shorter_names_and_a_literal_for_no_longer_ones() -> None:
    assert is_allowed([acl(name="ord", pattern_type=PREFIXED)], name="ord")
    assert not is_allowed([acl(name="orders", pattern_type=PREFIXED)], name="order")
    assert not is_allowed([acl(name="ord")], name="orders")


def test_no_other_host_and_no_other_principal_is_allowed() -> None:
    assert not is_allowed([acl(host="10.0.0.2")])
    assert not is_allowed([acl(principal="User:alic")])
    assert not is_allowed([acl(principal="Group:alice")])


@pytest.mark.parametrize(
    ("host", "canonical"),
    [
        ("10.0.0.5", "10.0.0.5"),
        ("::ffff:10.0.0.5", "10.0.0.5"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("*", "*"),
        ("db.example", "db.example"),
    ],
)
def test_an_address_has_one_form(host: str, canonical: str) -> None:
    assert canonical_host(host) == canonical


def test_a_denial_of_an_ipv4_address_is_for_a_client_of_a_socket_of_both_families() -> None:
    denial = acl(host="10.0.0.1", permission=DENY)
    assert not is_allowed([acl(), denial], host=canonical_host("::ffff:10.0.0.1"))


FOUND = [
    acl(READ),
    acl(WRITE, host="10.0.0.1"),
    acl(READ, "ord", pattern_type=PREFIXED),
    acl(READ, "*"),
    acl(READ, "other"),
]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, FOUND),
        ({"name": "orders"}, FOUND[:2]),
        ({"name": "orders", "pattern_type": PatternType.MATCH}, FOUND[:4]),
        ({"name": "ord", "pattern_type": PREFIXED}, FOUND[2:3]),
        ({"name": "orders", "pattern_type": PREFIXED}, []),
        ({"pattern_type": PREFIXED}, FOUND[2:3]),
        ({"resource_type": GROUP}, []),
        ({"host": "10.0.0.1"}, FOUND[1:2]),
        ({"operation": WRITE}, FOUND[1:2]),
        ({"principal": "User:bob"}, []),
        ({"permission": DENY}, []),
        ({"resource_type": TOPIC, "name": "orders", "pattern_type": LITERAL, "operation": READ}, FOUND[:1]),
    ],
)
def test_a_filter_finds_what_kafkas_finds(fields: dict[str, Any], found: list[AclBinding]) -> None:
    assert index_of(FOUND).find(AclBindingFilter(**fields)) == sorted(found)


@pytest.mark.parametrize(
    ("binding", "problem"),
    [
        (acl(name=""), "without a name"),
        (acl(name="a/b"), "no ZooKeeper node"),
        (acl(principal="alice"), "expected Type:name"),
        (acl(principal="user:alice"), "no client has the type user, .* use User:alice"),
        (acl(principal="Group:admins", permission=DENY), "no client has the type Group"),
        (acl(name="*", pattern_type=PREFIXED, permission=DENY), r"use a literal ACL on '\*'"),
        (acl(name="orders*"), "no topic has this name, .* Use a prefixed ACL"),
        (acl(name="or ders", pattern_type=PREFIXED), "no topic has this name"),
        (acl()._replace(pattern=ResourcePattern(GROUP, "*", PREFIXED)), r"use a literal ACL on '\*'"),
        (acl()._replace(pattern=ResourcePattern(USER, "bob")), "no principal has this name, .* use User:bob"),
        (acl()._replace(pattern=ResourcePattern(USER, "user:bob")), "use User:bob"),
        (acl()._replace(pattern=ResourcePattern(USER, "bo", PREFIXED)), "use User:bo"),
        (acl(AclOperation.ANY), "name one operation"),
        (acl(permission=AclPermission.ANY), "Allow or Deny"),
        (acl(host=""), "has no host"),
        (acl(host="10.0.0.0/8"), "'10.0.0.0/8' .* is no IP address, and no connection would have it"),
        (acl(host="shop.example"), "neither names nor ranges"),
        (acl(pattern_type=PatternType.MATCH), "use Literal or Prefixed"),
        (acl()._replace(pattern=ResourcePattern(ResourceType.CLUSTER, "mine")), "only name of a cluster"),
        (acl()._replace(pattern=ResourcePattern(ResourceType.ANY, "x")), "name one type"),
    ],
)
def test_an_acl_that_cannot_be_kept_is_refused_with_the_reason(binding: AclBinding, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        binding.check()


@pytest.mark.parametrize(
    "pattern",
    [
        ResourcePattern(USER, "User:bob"),
        ResourcePattern(USER, "*"),
        ResourcePattern(USER, "User:bo", PREFIXED),
        ResourcePattern(USER, "Us", PREFIXED),
    ],
)
def test_an_acl_on_a_user_names_the_principal(pattern: ResourcePattern) -> None:
    acl()._replace(pattern=pattern).check()
