"""Tests of group options.

The tests cover the broker's defaults and bounds, and stored options that are invalid here.
"""

from __future__ import annotations

import pytest

from millrace.config.broker import BrokerConfig
from millrace.coordination import Coordination, Create, EmbeddedStore, paths
from millrace.coordination.nodes import ConfigNode
from millrace.coordination.outcomes import settle
from millrace.errors import InvalidConfigError
from millrace_broker.metadata import GroupConfigs, registration

SESSION = "consumer.session.timeout.ms"
HEARTBEAT = "consumer.heartbeat.interval.ms"


@pytest.fixture
def session() -> Coordination:
    session = EmbeddedStore(now_ms=lambda: 0).connect()
    registration.ensure_roots(session)
    return session


def configs_of(session: Coordination, **options: str) -> GroupConfigs:
    values = {name.replace("_", "."): value for name, value in options.items()}
    return GroupConfigs(session, BrokerConfig.load(values))


def test_an_option_of_a_group_wins_over_the_brokers_default_until_it_is_deleted(session: Coordination) -> None:
    configs = configs_of(session, group_consumer_session_timeout_ms="46000")
    assert configs.get("g").consumer_session_timeout_ms == 46_000
    configs.alter("g", {SESSION: "50000", HEARTBEAT: "6000"}, set())
    for each in (configs, configs_of(session)):
        assert each.get("g").consumer_session_timeout_ms == 50_000
        assert each.get("g").consumer_heartbeat_interval_ms == 6000
        assert each.names() == ["g"]
    assert configs.get("other").consumer_session_timeout_ms == 46_000
    configs.alter("g", {}, {SESSION, HEARTBEAT})
    assert configs.get("g").consumer_session_timeout_ms == 46_000
    assert configs.names() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({SESSION: "44999"}, "the broker accepts 45000 to 60000 \\(group.consumer.min.session.timeout.ms and "),
        ({SESSION: "60001"}, "the broker accepts 45000 to 60000"),
        ({HEARTBEAT: "4999"}, "the broker accepts 5000 to 15000"),
        ({HEARTBEAT: "15001"}, "the broker accepts 5000 to 15000"),
        ({SESSION: "0"}, "greater than or equal to 1"),
        ({"share.session.timeout.ms": "44999"}, "the broker accepts 45000 to 60000"),
        ({"share.session.timeout.ms": "60001"}, "the broker accepts 45000 to 60000"),
        ({"share.heartbeat.interval.ms": "4999"}, "the broker accepts 5000 to 15000"),
        ({"share.heartbeat.interval.ms": "15001"}, "the broker accepts 5000 to 15000"),
        ({"share.record.lock.duration.ms": "14999"}, "the broker accepts 15000 to 60000"),
        ({"share.record.lock.duration.ms": "60001"}, "the broker accepts 15000 to 60000"),
        ({"share.delivery.count.limit": "1"}, "greater than or equal to 2"),
        ({"share.delivery.count.limit": "11"}, "the broker accepts 2 to 10"),
        ({"share.partition.max.record.locks": "99"}, "greater than or equal to 100"),
        ({"share.partition.max.record.locks": "4001"}, "the broker accepts 100 to 4000"),
        ({"share.auto.offset.reset": "by_duration:1h"}, "by_duration: and a duration in ISO 8601"),
        ({"share.auto.offset.reset": "by_duration:-PT1H"}, "by_duration: and a duration in ISO 8601"),
        ({"share.isolation.level": "serializable"}, "share.isolation.level"),
        ({"consumer.assignors": "range"}, "unknown option"),
    ],
)
def test_an_option_outside_the_brokers_bounds_is_refused(
    session: Coordination, options: dict[str, str], message: str
) -> None:
    configs = configs_of(session)
    with pytest.raises(InvalidConfigError, match=message):
        configs.alter("g", options, set())
    assert configs.names() == configs_of(session).names() == []


def test_a_session_timeout_that_is_not_more_than_the_heartbeat_interval_is_refused(session: Coordination) -> None:
    configs = configs_of(session, group_consumer_min_session_timeout_ms="1")
    configs.alter("g", {HEARTBEAT: "10000"}, set())
    with pytest.raises(InvalidConfigError, match="set a longer session timeout"):
        configs.alter("g", {SESSION: "10000"}, set())
    configs.alter("g", {SESSION: "10001"}, set())


def test_options_of_share_groups_within_the_bounds_are_in_force(session: Coordination) -> None:
    configs = configs_of(session, group_share_max_delivery_count_limit="25")
    options = {
        "share.session.timeout.ms": "45001",
        "share.heartbeat.interval.ms": "15000",
        "share.record.lock.duration.ms": "15000",
        "share.delivery.count.limit": "25",
        "share.partition.max.record.locks": "100",
        "share.auto.offset.reset": "by_duration:P1DT2H",
        "share.isolation.level": "read_committed",
    }
    configs.alter("g", options, set())
    assert {name: str(value) for name, value in configs.get("g").options().items() if name in options} == options
    assert configs_of(session).get("g").share_delivery_count_limit == 10  # a broker with the default bounds


def test_a_brokers_own_value_outside_the_bounds_does_not_stop_options_of_groups(session: Coordination) -> None:
    configs = configs_of(session, group_share_heartbeat_interval_ms="50", group_share_record_lock_duration_ms="300")
    configs.alter("g", {"share.delivery.count.limit": "3"}, set())
    assert configs.get("g").share_heartbeat_interval_ms == 50
    assert configs.get("g").share_record_lock_duration_ms == 300


def test_a_stored_option_outside_the_bounds_counts_as_the_nearest_bound(
    session: Coordination, caplog: pytest.LogCaptureFixture
) -> None:
    configs_of(session).alter("g", {SESSION: "60000", HEARTBEAT: "5000"}, set())
    bounds = {"group_consumer_max_session_timeout_ms": "50000", "group_consumer_min_heartbeat_interval_ms": "7000"}
    found = configs_of(session, **bounds).get("g")
    assert (found.consumer_session_timeout_ms, found.consumer_heartbeat_interval_ms) == (50_000, 7000)
    assert (
        f"{SESSION}=60000 of group g is outside the broker's bounds, 45000 to 50000: 50000 is in force" in caplog.text
    )


def test_an_invalid_stored_option_is_ignored_and_logged(
    session: Coordination, caplog: pytest.LogCaptureFixture
) -> None:
    stored = ConfigNode({SESSION: "soon", "streams.num.standby.replicas": "1", HEARTBEAT: "6000"})
    settle(session, [Create(paths.group_config_path("g"), stored.encode())])
    found = configs_of(session).get("g")
    assert (found.consumer_session_timeout_ms, found.consumer_heartbeat_interval_ms) == (45_000, 6000)
    assert "an invalid option of group g is ignored: consumer.session.timeout.ms='soon'" in caplog.text
    assert "streams.num.standby.replicas" in caplog.text
