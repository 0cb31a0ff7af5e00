"""Tests of the audit's rows in memory.

The tests cover selection, aggregation, the bound, and reads of the audit topic itself.
"""

from __future__ import annotations

from typing import Any

import pytest

from millrace.acls import AclOperation, ResourceType
from millrace.config.broker import BrokerConfig
from millrace_broker.api.common.request_context import ClientAddress, RequestContext
from millrace_broker.audit import AuditQueue, Selection
from millrace_broker.audit.queue import OWN_INTERVAL_S
from millrace_broker.security import KafkaPrincipal

READ, WRITE, DESCRIBE, ALTER = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.ALTER
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
AUTHORIZER = {"authorizer.class.name": "millrace_broker.security.AclAuthorizer"}


class Recorded:
    """A queue on a clock of its own."""

    def __init__(self, max_rows: int = 100, **options: str) -> None:
        self.now_ms = 1_000_000
        named = {f"audit.{name.replace('_', '.')}": value for name, value in options.items()}
        config = BrokerConfig.load({"audit.decisions": "all", **AUTHORIZER, **named})
        self.queue = AuditQueue(
            Selection(config),
            max_rows=max_rows,
            now_ms=lambda: self.now_ms,
            monotonic=lambda: self.now_ms / 1000,
        )

    def decide(
        self,
        operation: AclOperation = READ,
        resource_type: ResourceType = TOPIC,
        name: str = "orders",
        *,
        is_allowed: bool = True,
        principal: str = "alice",
        client_id: str = "app",
        call: str = "Fetch",
    ) -> None:
        lease: Any = None
        address = ClientAddress("10.0.0.1", 5000)
        context = RequestContext(call, "SSL", KafkaPrincipal("User", principal), client_id, address, lease)
        self.queue.record(context, operation, resource_type, name, is_allowed=is_allowed)

    def resources(self) -> list[str]:
        return [row.resource for row in self.queue.drain()]


def test_a_row_has_the_time_principal_host_operation_and_resource() -> None:
    recorded = Recorded()
    recorded.decide(is_allowed=False)
    (row,) = recorded.queue.drain()
    assert row._asdict() == {
        "time_ms": 1_000_000,
        "last_time_ms": 1_000_000,
        "principal": "User:alice",
        "host": "10.0.0.1",
        "listener": "SSL",
        "client_id": "app",
        "call": "Fetch",
        "operation": "READ",
        "resource_type": "TOPIC",
        "resource": "orders",
        "allowed": False,
        "decisions": 1,
    }
    assert recorded.queue.drain() == []


def test_failed_logins_are_rows_with_the_user_unless_the_principal_is_excluded() -> None:
    lease: Any = None
    address = ClientAddress("10.0.0.1", 5000)
    context = RequestContext("SaslAuthenticate", "SASL_SSL", KafkaPrincipal("User", "nobody"), "app", address, lease)
    recorded = Recorded(decisions="denied")
    for user in ("alice", "", "alice"):
        recorded.queue.record_refused_login(context, user)
    rows = recorded.queue.drain()
    assert [(row.operation, row.resource_type, row.resource, row.decisions) for row in rows] == [
        ("AUTHENTICATE", "USER", "alice", 2),
        ("AUTHENTICATE", "USER", "", 1),
    ]
    assert not any(row.allowed for row in rows)
    excluded = Recorded(exclude_principals="User:nobody")
    excluded.queue.record_refused_login(context, "alice")
    assert not excluded.queue.drain()


def test_equal_decisions_of_an_interval_are_one_row_and_others_are_not() -> None:
    recorded = Recorded()
    for _ in range(3):
        recorded.decide()
        recorded.now_ms += 10
    recorded.decide(is_allowed=False)
    recorded.decide(principal="bob")
    recorded.decide(client_id="other")
    rows = recorded.queue.drain()
    assert [row.decisions for row in rows] == [3, 1, 1, 1]
    assert (rows[0].time_ms, rows[0].last_time_ms) == (1_000_000, 1_000_020)
    recorded.decide()
    assert [row.decisions for row in recorded.queue.drain()] == [1]


def test_long_names_of_clients_are_cut() -> None:
    recorded = Recorded()
    recorded.decide(principal="p" * 1000, client_id="c" * 1000, name="n" * 1000)
    (row,) = recorded.queue.drain()
    assert (len(row.principal), len(row.client_id), len(row.resource)) == (256, 256, 256)


def test_decisions_beyond_the_bound_are_counted_and_known_rows_still_grow() -> None:
    recorded = Recorded(max_rows=2)
    for name in ("a", "b", "c", "d", "a"):
        recorded.decide(name=name)
    assert recorded.queue.dropped == 2
    assert recorded.queue.recorded == 3
    assert [(row.resource, row.decisions) for row in recorded.queue.drain()] == [("a", 2), ("b", 1)]
    recorded.decide(name="c")
    assert recorded.resources() == ["c"]


@pytest.mark.parametrize(
    ("decisions", "expected"),
    [
        ("denied", ["denied"]),
        ("admin", ["altered", "denied"]),
        ("writes", ["altered", "written", "denied"]),
        ("all", ["altered", "written", "described", "denied"]),
    ],
)
def test_the_option_selects_decisions(decisions: str, expected: list[str]) -> None:
    recorded = Recorded(decisions=decisions)
    recorded.decide(ALTER, CLUSTER, "altered")
    recorded.decide(WRITE, name="written")
    recorded.decide(DESCRIBE, name="described")
    recorded.decide(AclOperation.CLUSTER_ACTION, CLUSTER, "a broker's call")
    recorded.decide(name="denied", is_allowed=False)
    assert recorded.resources() == expected


def test_principals_and_topics_can_be_left_out_but_not_the_audit() -> None:
    recorded = Recorded(exclude_principals="User:etl; User:metrics", exclude_topics="noise, tmp-*, __audit, __*")
    recorded.decide(principal="etl")
    for name in ("noise", "tmp-1", "noise-2", "__audit"):
        recorded.decide(name=name)
    recorded.decide(READ, GROUP, "noise")
    assert recorded.resources() == ["noise-2", "__audit", "noise"]


@pytest.mark.parametrize("decisions", ["denied", "all"])
def test_reading_the_audit_is_recorded_once_for_each_client_and_call(decisions: str) -> None:
    recorded = Recorded(decisions=decisions)
    for _ in range(5):
        recorded.decide(name="__audit")
        recorded.decide(READ, GROUP, "readers", call="OffsetCommit")
        assert len(recorded.queue.drain()) <= 2
        recorded.now_ms += 1000
    recorded.decide(name="__audit")
    recorded.decide(READ, GROUP, "readers", call="OffsetCommit")
    assert recorded.queue.drain() == [], "each row would be a record for its reader, for ever"
    recorded.decide(name="__audit", principal="bob")
    recorded.decide(name="__audit", is_allowed=False)
    assert recorded.resources() == ["__audit", "__audit"]
    recorded.now_ms += round(OWN_INTERVAL_S * 1000)
    recorded.queue.drain()
    recorded.decide(name="__audit")
    assert recorded.resources() == ["__audit"]


def test_groups_of_other_clients_are_recorded_in_every_interval() -> None:
    recorded = Recorded()
    for _ in range(2):
        recorded.decide(READ, GROUP, "workers", call="OffsetCommit")
        assert recorded.resources() == ["workers"]


def test_texts_that_a_client_chooses_are_cut() -> None:
    recorded = Recorded()
    recorded.decide(READ, GROUP, "g" * 30_000, client_id="c" * 30_000, is_allowed=False)
    (row,) = recorded.queue.drain()
    assert (len(row.resource), len(row.client_id)) == (256, 256)
