"""Access matrix: every call of every listener, with each kind of identity and ACL.

The handlers are called with contexts of chosen principals, as listeners call them. ``NEEDS`` is what Kafka documents
("Operations and Resources on Protocols"), and for calls that Kafka does not have, what the how-to page says. No case of
the matrix is written by hand: each call that has a handler must be here, and is tried with all cases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millrace.acls import (
    EVERYONE,
    AccessControlEntry,
    AclBinding,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
)
from millrace.errors import MillraceError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.fetch_response import FetchAnswer
from millrace_broker.api import HANDLERS, STREAM_HANDLERS, ClientAddress, RequestContext
from millrace_broker.api.common.access_rules import RULES
from millrace_broker.quotas import class_of
from millrace_broker.security import AclAuthorizer, AclIndex, KafkaPrincipal
from millrace_broker.security.acl_index import Entries
from millrace_broker.testing import EmbeddedBroker

from .access_cases import (
    ADMIN,
    ALICE,
    ANONYMOUS,
    ANY,
    CASES,
    CLUSTER,
    DENIED,
    MALLORY,
    TOPIC,
    Case,
    Need,
    numbers,
)
from .consumer_groups import QUICK_GROUPS
from .waiting import STALL_S


class Secured:
    """A broker with an authorizer, whose handlers are called as a listener calls them."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker.server.broker
        self._loop = broker._loop
        authorizer = self.broker.authorizer
        assert isinstance(authorizer, AclAuthorizer)
        self._store = authorizer._store

    def allow(self, *bindings: AclBinding) -> None:
        """Let these be all ACLs."""
        changes: dict[ResourcePattern, Entries] = {}
        for pattern, entry in bindings:
            changes[pattern] = changes.get(pattern, frozenset()) | {entry}
        self._store.index = AclIndex().updated(changes)

    def outcome(self, call: str, request: Any, principal: KafkaPrincipal) -> Any:
        """Return the response, or the error of the whole request."""

        async def run() -> Any:
            admitted = self.broker.admission.begin("peer", class_of(call))
            context = RequestContext(
                call, "PLAINTEXT", principal, "", ClientAddress("10.0.0.1", 1), admitted.response_lease
            )
            try:
                if call in STREAM_HANDLERS:
                    return [each async for each in STREAM_HANDLERS[call](self.broker, request, context)]
                return await HANDLERS[call](self.broker, request, context)
            except MillraceError as error:
                return error
            finally:
                admitted.end()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(STALL_S)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    options = {
        **QUICK_GROUPS,
        "authorizer.class.name": "millrace_broker.security.AclAuthorizer",
        "super.users": "User:admin; User:broker",
        "auto.create.topics.enable": "true",
    }
    with EmbeddedBroker(tmp_path_factory.mktemp("secured"), options=options) as running:
        found = Secured(running)

        def admin(call: str, request: Any) -> Any:
            return found.outcome(call, request, ADMIN)

        orders = pb.NewTopic(name="orders", num_partitions=1, replication_factor=1)
        assert not codes(admin("CreateTopics", pb.CreateTopicsRequest(topics=[orders])))
        _typed(admin)
        for kind, key in ((pb.GROUP, "workers"), (pb.TRANSACTION, "external"), (pb.SHARE, "sharers")):
            admin("FindCoordinator", pb.FindCoordinatorRequest(key_type=kind, keys=[key]))
        admin("InitProducerId", next(each.request for each in CASES if each.label == "transactional"))
        admin("OffsetCommit", next(each.request for each in CASES if each.call == "OffsetCommit"))
        joined = pb.ShareGroupHeartbeatRequest(group_id="sharers", member_id="first", subscribed_topics=["orders"])
        assert not codes(admin("ShareGroupHeartbeat", joined))
        _begin_transaction(admin)
        yield found


def _typed(admin: Callable[[str, Any], Any]) -> None:
    import pyarrow as pa

    from millrace.schemas import serialize_schema

    schema = serialize_schema(pa.schema([("n", pa.int64())]))
    typed = pb.NewTopic(name="typed", num_partitions=1, replication_factor=1, arrow_schema=schema)
    result = admin("CreateTopics", pb.CreateTopicsRequest(topics=[typed])).results[0]
    assert result.schema_id == 1, result


def _begin_transaction(admin: Callable[[str, Any], Any]) -> None:
    init = pb.InitProducerIdRequest(
        transactional_id="described", transaction_timeout_ms=600_000, producer_id=-1, producer_epoch=-1
    )
    producer = admin("InitProducerId", init)
    begun = pb.AddPartitionsToTxnRequest(
        transactional_id="described",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=numbers(),
    )
    assert not codes(admin("AddPartitionsToTxn", begun)), "the transaction must have begun"


def codes(outcome: Any) -> set[int]:
    """Return all error codes in an outcome."""
    if isinstance(outcome, MillraceError):
        return {outcome.code}
    if isinstance(outcome, list):
        return {code for each in outcome for code in codes(each)}
    if isinstance(outcome, FetchAnswer):
        return {code for each in outcome.topics for part in each.partitions for code in codes(part.result)}
    if isinstance(outcome, pb.Error):
        return {outcome.code}
    found: set[int] = set()
    for descriptor, value in outcome.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        for each in value if hasattr(value, "__len__") else [value]:
            found |= codes(each)
    return found


def is_refused(case: Case, outcome: Any) -> bool:
    refused = bool(codes(outcome) & DENIED)
    if case.shows is None or refused:
        return refused
    assert not isinstance(outcome, MillraceError), outcome
    return not case.shows(outcome)


def acl(
    need: Need,
    *,
    principal: str = "User:alice",
    host: str = "*",
    permission: AclPermission = AclPermission.ALLOW,
    pattern_type: PatternType = PatternType.LITERAL,
    name: str | None = None,
) -> AclBinding:
    operation, kind, own = need
    pattern = ResourcePattern(kind, own if name is None else name, pattern_type)
    return AclBinding(pattern, AccessControlEntry(principal, host, operation, permission))


CLOSED = [pytest.param(case, way, id=f"{case}-{place}") for case in CASES for place, way in enumerate(case.ways) if way]
WAYS = CLOSED + [
    pytest.param(case, way, id=f"{case}-implied-{place}") for case in CASES for place, way in enumerate(case.implied)
]


def test_every_call_has_a_rule_and_a_case() -> None:
    calls = set(HANDLERS) | set(STREAM_HANDLERS)
    assert calls <= set(RULES)
    assert {case.call for case in CASES} == calls


@pytest.mark.parametrize(("case", "way"), WAYS)
def test_the_right_acls_let_a_call_through(secured: Secured, case: Case, way: tuple[Need, ...]) -> None:
    for acls in (
        [acl(need) for need in way],
        [acl(need, host="10.0.0.1") for need in way],
        [acl(need, name=need[2][:3], pattern_type=PatternType.PREFIXED) for need in way],
        [acl(need, name="*" if need[1] is not CLUSTER else None) for need in way],
        [acl(need, principal=EVERYONE) for need in way],
        [acl((AclOperation.ALL, *need[1:])) for need in way],
    ):
        secured.allow(*acls)
        outcome = secured.outcome(case.call, case.request, ALICE)
        assert not is_refused(case, outcome), (acls, outcome)


@pytest.mark.parametrize(("case", "way"), CLOSED)
def test_nobody_else_gets_through(secured: Secured, case: Case, way: tuple[Need, ...]) -> None:
    own = [acl(need) for need in way]
    denials = [
        acl(need, permission=AclPermission.DENY, **fields)
        for need in way
        for fields in (
            {},
            {"host": "10.0.0.1"},
            {"principal": EVERYONE},
            {"name": need[2][:2], "pattern_type": PatternType.PREFIXED},
        )
    ]
    attempts: list[tuple[str, KafkaPrincipal, list[AclBinding]]] = [
        ("no identity", ANONYMOUS, own),
        ("wrong identity", MALLORY, own),
        ("right identity without ACLs", ALICE, []),
        ("another host", ALICE, [acl(need, host="10.0.0.2") for need in way]),
        ("another resource", ALICE, [acl(need, name=f"{need[2]}-other") for need in way if need[2] != ANY]),
        ("a longer prefix", ALICE, _longer(way)),
        *((f"all but {need}", ALICE, [acl(each) for each in way if each != need]) for need in way),
        *((f"denied by {denial}", ALICE, [*own, denial]) for denial in denials),
    ]
    for name, principal, acls in attempts:
        secured.allow(*acls)
        outcome = secured.outcome(case.call, case.request, principal)
        assert is_refused(case, outcome), (name, outcome)


def _longer(way: tuple[Need, ...]) -> list[AclBinding]:
    return [acl(need, name=f"{need[2]}-", pattern_type=PatternType.PREFIXED) for need in way if need[2] != ANY]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_super_users_may_do_everything(secured: Secured, case: Case) -> None:
    secured.allow(acl((AclOperation.ALL, TOPIC, "*"), principal=EVERYONE, permission=AclPermission.DENY))
    assert not is_refused(case, secured.outcome(case.call, case.request, ADMIN))
