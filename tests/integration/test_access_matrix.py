"""Access matrix of every millrace call.

Each call is made with each kind of identity and ACL. The handlers are called with contexts of chosen principals, as
listeners call them. Each call that has a handler must be in ``CASES``, and is tried with all kinds of ACLs.
``test_kafka_access_matrix`` does the same for Kafka's calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millrace.acls import EVERYONE, AclOperation, AclPermission
from millrace.errors import MillraceError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api import HANDLERS, STREAM_HANDLERS
from millrace_broker.api.common.access_rules import RULES
from millrace_broker.testing import EmbeddedBroker

from .access_broker import OPTIONS, Secured, acl, codes, insufficient, sufficient
from .access_cases import ADMIN, ALICE, CASES, TOPIC, Case, Need, numbers
from .waiting import AN_HOUR_MS, eventually


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with EmbeddedBroker(tmp_path_factory.mktemp("secured"), options=OPTIONS) as running:
        yield prepared(running)


def prepared(broker: EmbeddedBroker) -> Secured:
    """Make what the cases ask for."""
    found = Secured(broker)
    admin = found.by_admin
    found.create_orders()
    _typed(admin)
    for kind, key in ((pb.GROUP, "workers"), (pb.TRANSACTION, "external"), (pb.SHARE, "sharers")):
        admin("FindCoordinator", pb.FindCoordinatorRequest(key_type=kind, keys=[key]))
    admin("InitProducerId", next(each.request for each in CASES if each.label == "transactional"))
    admin("OffsetCommit", next(each.request for each in CASES if each.call == "OffsetCommit"))
    joined = pb.ShareGroupHeartbeatRequest(group_id="sharers", member_id="first", subscribed_topics=["orders"])
    assert not codes(admin("ShareGroupHeartbeat", joined))
    reset = next(each.request for each in CASES if each.call == "AlterShareGroupOffsets")
    eventually(lambda: not codes(admin("AlterShareGroupOffsets", reset)), "the share group to be loaded")
    _begin_transaction(admin)
    return found


def _typed(admin: Callable[[str, Any], Any]) -> None:
    import pyarrow as pa

    from millrace.schemas import serialize_schema

    schema = serialize_schema(pa.schema([("n", pa.int64())]))
    typed = pb.NewTopic(name="typed", num_partitions=1, replication_factor=1, arrow_schema=schema)
    result = admin("CreateTopics", pb.CreateTopicsRequest(topics=[typed], timeout_ms=AN_HOUR_MS)).results[0]
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


def is_refused(case: Case, outcome: Any) -> bool:
    refused = bool(codes(outcome) & case.denied)
    if case.shows is None or refused:
        return refused
    assert not isinstance(outcome, MillraceError), outcome
    return not case.shows(outcome)


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
    for acls in sufficient(way):
        secured.allow(*acls)
        outcome = secured.outcome(case.call, case.request, ALICE)
        assert not is_refused(case, outcome), (acls, outcome)


@pytest.mark.parametrize(("case", "way"), CLOSED)
def test_nobody_else_gets_through(secured: Secured, case: Case, way: tuple[Need, ...]) -> None:
    for name, principal, acls in insufficient(way):
        secured.allow(*acls)
        outcome = secured.outcome(case.call, case.request, principal)
        assert is_refused(case, outcome), (name, outcome)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_super_users_may_do_everything(secured: Secured, case: Case) -> None:
    secured.allow(acl((AclOperation.ALL, TOPIC, "*"), principal=EVERYONE, permission=AclPermission.DENY))
    assert not is_refused(case, secured.outcome(case.call, case.request, ADMIN))
