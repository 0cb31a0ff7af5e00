"""Tests of broker options that can be changed at run time."""

from __future__ import annotations

import pytest

from millrace.config.broker import BrokerConfig
from millrace.config.dynamic import DYNAMIC_OPTIONS, check_threads, mode_of, with_dynamic
from millrace.config.topic_defaults import TOPIC_DEFAULTS
from millrace.config.update_modes import UpdateMode
from millrace.errors import InvalidConfigError

FILE = BrokerConfig.load(
    {
        "broker.id": "7",
        "zookeeper.connect": "here:2181",
        "log.retention.hours": "2",
        "log.dirs": "/data",
        "metrics.port": 0,
    }
)


def test_a_dynamic_option_overrides_the_file_and_leaves_its_other_options() -> None:
    assert with_dynamic(FILE, {}) == FILE
    changed = with_dynamic(FILE, {"log.retention.ms": "5", "num.io.threads": "6", "max.connections": "9"})
    assert changed.topic_defaults.retention_ms == 5
    assert (changed.num_io_threads, changed.max_connections) == (6, 9)
    before, after = FILE.options(), changed.options()
    differing = {name for name in before if before[name] != after[name]}
    assert differing == {"log.retention.ms", "num.io.threads", "max.connections"}
    assert changed.zookeeper_config is FILE.zookeeper_config


def test_every_default_of_topics_can_be_changed_by_its_strongest_name() -> None:
    assert {names[0][0] for names in TOPIC_DEFAULTS.values()} < DYNAMIC_OPTIONS
    options = FILE.options()
    assert all(with_dynamic(FILE, {name: str(options[name])}) == FILE for name in DYNAMIC_OPTIONS & options.keys())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num.partitions", "7", "num.partitions cannot be changed while a broker runs: edit its properties file"),
        ("broker.id", "7", "broker.id cannot be changed"),
        ("zookeeper.connect", "there", "zookeeper.connect cannot be changed"),
        ("log.retention.hours", "1", "log.retention.hours cannot be changed while a broker runs: set log.retention.ms"),
        ("log.retentoin.ms", "1", "unknown option log.retentoin.ms"),
        ("retention.ms", "1", "unknown option retention.ms"),
        ("log.retention.ms", "soon", r"retention.ms='soon': .*\(log.retention.ms sets retention.ms\)"),
        ("log.cleaner.threads", "0", "log.cleaner.threads='0': "),
        ("leader.replication.throttled.rate", "0", "expected bytes per second, at least 1"),
        ("leader.replication.throttled.rate", "²", "expected bytes per second, at least 1"),
        ("leader.replication.throttled.rate", str(2**63), "expected bytes per second, at least 1"),
        ("message.max.bytes", "200000000", "message.max.bytes=200000000 is above socket.request.max.bytes"),
    ],
)
def test_an_invalid_option_is_refused_by_name(name: str, value: str, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        with_dynamic(FILE, {name: value})


def test_the_renewal_of_tickets_between_brokers_changes_for_all_listeners_of_a_broker() -> None:
    option = "sasl.kerberos.min.time.before.relogin"
    changed = with_dynamic(FILE, {option: "58000"})
    assert changed.security_of("PLAINTEXT").sasl_kerberos_min_time_before_relogin == 58_000


def test_numbers_of_threads_change_by_half_or_double_at_most() -> None:
    for count in (2, 4, 8):
        check_threads(FILE, with_dynamic(FILE, {"num.io.threads": str(count)}))
    for count in (1, 9):
        with pytest.raises(InvalidConfigError, match=rf"num.io.threads={count}: the broker has 4, and accepts 2 to 8"):
            check_threads(FILE, with_dynamic(FILE, {"num.io.threads": str(count)}))


@pytest.mark.parametrize(
    ("option", "mode"),
    [
        ("num.io.threads", UpdateMode.CLUSTER_WIDE),
        ("num.recovery.threads.per.data.dir", UpdateMode.CLUSTER_WIDE),
        ("control.max.connections", UpdateMode.CLUSTER_WIDE),
        ("log.retention.ms", UpdateMode.CLUSTER_WIDE),
        ("leader.replication.throttled.rate", UpdateMode.CLUSTER_WIDE),
        ("sasl.kerberos.min.time.before.relogin", UpdateMode.PER_BROKER),
        ("sasl.kerberos.service.name", UpdateMode.READ_ONLY),
        ("log.retention.hours", UpdateMode.READ_ONLY),
        ("log.dirs", UpdateMode.READ_ONLY),
        ("zookeeper.connect", UpdateMode.READ_ONLY),
    ],
)
def test_the_update_mode_is_part_of_an_options_definition(option: str, mode: UpdateMode) -> None:
    assert mode_of(option) is mode
    assert (option in DYNAMIC_OPTIONS) == (mode is not UpdateMode.READ_ONLY)
