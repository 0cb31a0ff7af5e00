"""Tests of quotas in the metadata store.

The tests cover nodes, notices and descriptions.
"""

from __future__ import annotations

import json
import logging

import pytest

from millrace.coordination import Coordination, Create, EmbeddedStore, paths
from millrace.coordination.nodes import ConfigNode
from millrace.coordination.outcomes import settle
from millrace.errors import InvalidRequestError
from millrace.quotas import Match, QuotaEntity, QuotaFilter
from millrace.security.scram import ScramCredential
from millrace_broker.metadata import QuotaConfigs, ScramCredentials, registration
from millrace_broker.metadata.scram_credentials import ScramChange

RATE = "producer_byte_rate"
ALICE = QuotaEntity.of([("user", "alice")])
ANYBODY = QuotaEntity.of([("user", None)])
APP = QuotaEntity.of([("client-id", "app/1")])
BOTH = QuotaEntity.of([("client-id", None), ("user", "al ice")])
ADDRESS = QuotaEntity.of([("ip", "192.0.2.7")])


@pytest.fixture
def session() -> Coordination:
    session = EmbeddedStore(now_ms=lambda: 0).connect()
    registration.ensure_roots(session)
    return session


def filled(session: Coordination) -> QuotaConfigs:
    configs = QuotaConfigs(session)
    for place, entity in enumerate((ALICE, ANYBODY, APP, BOTH)):
        configs.alter(entity, {RATE: 1000.0 + place}, (), validate_only=False)
    configs.alter(ADDRESS, {"connection_creation_rate": 5.0}, (), validate_only=False)
    return configs


def test_nodes_and_notices_are_those_of_kafka(session: Coordination) -> None:
    filled(session)
    nodes = {
        "users/alice": {RATE: "1000"},
        "users/<default>": {RATE: "1001"},
        "clients/app%2F1": {RATE: "1002"},
        "users/al%20ice/clients/<default>": {RATE: "1003"},
        "ips/192.0.2.7": {"connection_creation_rate": "5"},
    }
    for name, options in nodes.items():
        assert ConfigNode.decode(session.get(f"/config/{name}")[0]).config == options
    notices = [
        json.loads(session.get(f"{paths.CONFIG_CHANGES}/{name}")[0]) for name in session.children(paths.CONFIG_CHANGES)
    ]
    assert [each["entity_path"] for each in notices] == list(nodes)


def test_another_broker_reads_what_one_has_written(session: Coordination) -> None:
    other = QuotaConfigs(session)
    told = []
    other.subscribe(told.append)
    written = filled(session).describe((), strict=False)
    for name in session.children(paths.CONFIG_CHANGES):
        other.reload(json.loads(session.get(f"{paths.CONFIG_CHANGES}/{name}")[0])["entity_path"])
    assert other.describe((), strict=False) == written == QuotaConfigs(session).describe((), strict=False)
    assert told[-1].limit(RATE, "alice", "") == (1000.0, "alice", "")


def test_quotas_of_an_address_in_another_form_are_changed_and_removed_where_they_are_stored(
    session: Coordination,
) -> None:
    key, node = "connection_creation_rate", "/config/ips/::ffff:192.0.2.7"
    session.multi([Create(node, ConfigNode({key: "5"}).encode())])
    configs = QuotaConfigs(session)
    assert configs.describe((), strict=False) == {ADDRESS: {key: 5.0}}
    configs.alter(ADDRESS, {key: 7.0}, (), validate_only=False)
    assert QuotaConfigs(session).describe((), strict=False) == {ADDRESS: {key: 7.0}}
    configs.alter(ADDRESS, {}, [key], validate_only=False)
    assert QuotaConfigs(session).describe((), strict=False) == {}
    assert list(session.children("/config/ips")) == ["::ffff:192.0.2.7"]


def test_the_quotas_of_one_type_are_read_again_without_those_of_others(session: Coordination) -> None:
    other = QuotaConfigs(session)
    filled(session)
    kinds = {"users": {ALICE, ANYBODY, BOTH}, "clients": {APP}, "ips": {ADDRESS}}
    seen: set[QuotaEntity] = set()
    for folder, entities in kinds.items():
        other.of_type(folder).reload_all()
        seen |= entities
        assert set(other.describe((), strict=False)) == seen
    session.delete("/config/clients/app%2F1")
    other.of_type("ips").reload_all()
    assert APP in other.describe((), strict=False)
    other.of_type("clients").reload_all()
    assert APP not in other.describe((), strict=False)


def test_a_users_credentials_and_quotas_share_a_node(session: Coordination) -> None:
    configs, credentials = QuotaConfigs(session), ScramCredentials(session)
    mechanism = "SCRAM-SHA-256"
    credentials.alter("alice", [ScramChange(mechanism, ScramCredential.of_password(mechanism, "pencil"))])
    configs.alter(ALICE, {RATE: 7.0, "request_percentage": 12.5}, (), validate_only=False)
    credentials.reload("alice")
    assert credentials.get("alice", mechanism) is not None
    assert configs.describe((), strict=False) == {ALICE: {RATE: 7.0, "request_percentage": 12.5}}
    configs.alter(ALICE, {}, {RATE}, validate_only=False)
    credentials.reload("alice")
    assert credentials.get("alice", mechanism) is not None
    assert configs.describe((), strict=False) == {ALICE: {"request_percentage": 12.5}}


@pytest.mark.parametrize(
    ("filters", "strict", "found"),
    [
        ([], False, {ALICE, ANYBODY, APP, BOTH, ADDRESS}),
        ([], True, set()),
        ([QuotaFilter("user", Match.EXACT, "alice")], False, {ALICE}),
        ([QuotaFilter("user", Match.DEFAULT)], False, {ANYBODY}),
        ([QuotaFilter("user")], False, {ALICE, ANYBODY, BOTH}),
        ([QuotaFilter("user")], True, {ALICE, ANYBODY}),
        ([QuotaFilter("client-id")], True, {APP}),
        ([QuotaFilter("user"), QuotaFilter("client-id", Match.DEFAULT)], True, {BOTH}),
        ([QuotaFilter("ip")], False, {ADDRESS}),
    ],
)
def test_filters_select_as_kafkas(
    session: Coordination, filters: list[QuotaFilter], strict: bool, found: set[QuotaEntity]
) -> None:
    assert set(filled(session).describe(filters, strict=strict)) == found


@pytest.mark.parametrize(
    ("entity", "key", "value", "message"),
    [
        (ALICE, RATE, 0.0, "set a number above 0"),
        (ALICE, RATE, -1.0, "set a number above 0"),
        (ALICE, RATE, float("nan"), "set a number above 0"),
        (ALICE, "request_percentage", float("inf"), "set a number above 0"),
        (ALICE, RATE, 1.5, "set a whole number"),
        (ADDRESS, "connection_creation_rate", 2.0**31, "the largest value is 2147483647"),
        (ALICE, "connection_creation_rate", 1.0, "is no quota of user alice"),
        (ADDRESS, RATE, 1.0, "is no quota of ip 192.0.2.7"),
        (ALICE, "no_such_rate", 1.0, "its quotas are producer_byte_rate"),
    ],
)
def test_an_impossible_quota_is_refused_with_the_remedy(
    session: Coordination, entity: QuotaEntity, key: str, value: float, message: str
) -> None:
    configs = QuotaConfigs(session)
    with pytest.raises(InvalidRequestError, match=message):
        configs.alter(entity, {key: value}, (), validate_only=False)
    assert configs.describe((), strict=False) == {}
    assert session.children(paths.CONFIG_CHANGES) == []


def test_a_validation_changes_nothing(session: Coordination) -> None:
    configs = QuotaConfigs(session)
    configs.alter(ALICE, {RATE: 5.0}, (), validate_only=True)
    assert configs.describe((), strict=False) == {}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "the entity is empty"),
        ([("group", "g")], "'group' has no quotas"),
        ([("user", "a"), ("user", "b")], "two names of the type user"),
        ([("user", "")], "the name of the type user is empty"),
        ([("ip", "192.0.2.7"), ("user", "a")], "name it alone"),
        ([("ip", "localhost")], "localhost is no IP address"),
    ],
)
def test_an_entity_that_no_quota_can_be_for_is_refused(parts: list[tuple[str, str | None]], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        QuotaEntity.of(parts)


def test_filters_that_nothing_can_pass_are_refused(session: Coordination) -> None:
    configs = QuotaConfigs(session)
    with pytest.raises(InvalidRequestError, match="filter by ip alone"):
        configs.describe([QuotaFilter("ip"), QuotaFilter("user")], strict=False)
    with pytest.raises(InvalidRequestError, match="name a type twice"):
        configs.describe([QuotaFilter("user"), QuotaFilter("user")], strict=False)


def test_a_stored_quota_that_is_impossible_is_ignored_and_logged(
    session: Coordination, caplog: pytest.LogCaptureFixture
) -> None:
    options = {RATE: "0", "consumer_byte_rate": "9", "request_percentage": "much"}
    settle(session, [Create("/config/users/alice", ConfigNode(options).encode())])
    with caplog.at_level(logging.ERROR):
        configs = QuotaConfigs(session)
    assert configs.describe((), strict=False) == {ALICE: {"consumer_byte_rate": 9.0}}
    assert "quota producer_byte_rate=0 of user alice is ignored" in caplog.text
    assert "quota request_percentage=much of user alice is ignored" in caplog.text
