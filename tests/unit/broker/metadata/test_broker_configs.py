"""Tests of precedence and refusals of broker options set at run time."""

from __future__ import annotations

import math

import pytest

from millrace.config.broker import BrokerConfig
from millrace.config.dynamic import LEADER_RATE
from millrace.coordination import Coordination, EmbeddedStore, ensure_path, paths
from millrace.coordination.nodes import ConfigNode
from millrace.errors import InvalidConfigError, InvalidRequestError
from millrace_broker.metadata import BrokerConfigs, registration
from millrace_broker.metadata.option_changes import ListChange

MINUTE_MS, HOUR_MS = 60_000, 3_600_000


@pytest.fixture
def session() -> Coordination:
    session = EmbeddedStore(now_ms=lambda: 0).connect()
    registration.ensure_roots(session)
    for broker_id in (1, 2):
        ensure_path(session, paths.broker_path(broker_id))
    return session


def configs_of(session: Coordination, broker_id: int = 1) -> BrokerConfigs:
    file = BrokerConfig.load({"broker.id": broker_id, "log.retention.hours": "1"})
    return BrokerConfigs(session, file)


def retention_ms(configs: BrokerConfigs) -> int:
    return configs.current.topic_defaults.retention_ms


def test_a_brokers_own_options_win_over_those_of_all_and_these_over_its_file(session: Coordination) -> None:
    one, two = configs_of(session, 1), configs_of(session, 2)
    for configs, expected in ((one, MINUTE_MS), (two, 2 * MINUTE_MS)):
        assert retention_ms(configs) == HOUR_MS
        one.alter("", {"log.retention.ms": str(2 * MINUTE_MS)}, set())
        one.alter("1", {"log.retention.ms": str(MINUTE_MS), LEADER_RATE: "500"}, set())
        configs.reload()
        assert retention_ms(configs) == expected
    assert (one.rate(LEADER_RATE), two.rate(LEADER_RATE)) == (500, math.inf)
    one.alter("1", {}, {"log.retention.ms"})
    one.reload()
    assert retention_ms(one) == 2 * MINUTE_MS
    one.alter("", {}, {"log.retention.ms"})
    assert retention_ms(configs_of(session, 1)) == HOUR_MS, "a broker reads the option at its start too"


@pytest.mark.parametrize("name", ["", "1", "2"])
def test_a_refused_option_is_not_written(session: Coordination, name: str) -> None:
    configs = configs_of(session)
    for values, removals in (
        ({"log.retention.ms": "5", "num.partitions": "3"}, set()),
        ({"log.retention.ms": "soon"}, set()),
        ({"log.retention.ms": "5"}, {"broker.rack"}),
    ):
        with pytest.raises(InvalidConfigError):
            configs.alter(name, values, removals)
    with pytest.raises(InvalidRequestError, match="both set and deleted"):
        configs.alter(name, {"log.retention.ms": "5"}, {"log.retention.ms"})
    configs.alter(name, {"log.retention.ms": "5"}, set(), validate_only=True)
    assert session.children("/config/brokers") == []


def test_too_large_a_change_of_the_number_of_threads_is_refused(
    session: Coordination,
) -> None:
    configs = configs_of(session)
    for name in ("", "1"):
        with pytest.raises(InvalidConfigError, match=r"num.io.threads=100: the broker has 4"):
            configs.alter(name, {"num.io.threads": "100"}, set())
    configs.alter("1", {"num.io.threads": "8"}, set())
    configs.alter("", {"num.io.threads": "3"}, set())
    configs.reload()
    assert configs.current.num_io_threads == 8


def test_a_broker_is_named_by_its_id(session: Coordination) -> None:
    for name in ("one", "²", "٣", "01", "00", "-1", " 1", "1_0", "99999999999"):
        with pytest.raises(InvalidRequestError, match=f"broker '{name}'"):
            configs_of(session).alter(name, {"log.retention.ms": "5"}, set())
    with pytest.raises(InvalidRequestError, match="no broker 9: the live brokers are 1, 2"):
        configs_of(session).alter("9", {"log.retention.ms": "5"}, set())
    assert session.children("/config/brokers") == []


def test_a_broker_that_was_configured_is_configured_while_it_is_away(session: Coordination) -> None:
    configs = configs_of(session)
    configs.alter("2", {"log.retention.ms": "5"}, set())
    session.delete(paths.broker_path(2))
    configs.alter("2", {}, {"log.retention.ms"})
    with pytest.raises(InvalidRequestError, match="both set and deleted"):
        configs.alter("2", {"log.retention.ms": "5"}, {"log.retention.ms"})


def test_unknown_options_written_by_others_are_ignored(session: Coordination, caplog: pytest.LogCaptureFixture) -> None:
    written = {"log.retention.ms": "5", "sasl.jaas.config": "secret", "message.max.bytes": "many"}
    session.create(paths.config_path("brokers/1"), ConfigNode(written).encode())
    configs = configs_of(session)
    assert configs.for_this == {"log.retention.ms": "5"}
    assert retention_ms(configs) == 5
    assert "the broker option sasl.jaas.config is ignored, because it is invalid" in caplog.text
    assert "secret" not in caplog.text


MIN_LAG, MAX_LAG = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"


def test_an_own_option_that_is_invalid_with_those_of_all_brokers_is_ignored_alone(
    session: Coordination, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = configs_of(session, 1), configs_of(session, 2)
    one.alter("1", {MIN_LAG: str(2 * HOUR_MS), "log.retention.ms": str(MINUTE_MS)}, set())
    two.alter("", {MAX_LAG: str(HOUR_MS)}, set())
    one.reload()
    for configs in (one, configs_of(session, 1)):
        assert (configs.for_all, configs.for_this) == ({MAX_LAG: str(HOUR_MS)}, {"log.retention.ms": str(MINUTE_MS)})
        assert retention_ms(configs) == MINUTE_MS
    assert f"the broker option {MIN_LAG} is ignored, because it is invalid" in caplog.text
    one.alter("1", {"log.retention.ms": str(2 * MINUTE_MS)}, set())
    one.reload()
    assert retention_ms(one) == 2 * MINUTE_MS, "other options can still be changed"
    one.alter("", {}, {MAX_LAG})
    one.reload()
    assert one.for_this[MIN_LAG] == str(2 * HOUR_MS), "the option is stored, and valid again"


LISTENER = "listener.name.plaintext.ssl.keystore"


def with_secret(session: Coordination, secret: str, old: str = "") -> BrokerConfigs:
    options = {"password.encoder.secret": secret, "password.encoder.old.secret": old}
    return BrokerConfigs(session, BrokerConfig.load({"broker.id": 1, **options}))


def stored(session: Coordination) -> dict[str, str]:
    return ConfigNode.decode(session.get(paths.config_path("brokers/1"))[0]).config


def test_a_password_is_stored_encrypted_and_read_by_the_same_secret_alone(
    session: Coordination, caplog: pytest.LogCaptureFixture
) -> None:
    configs = with_secret(session, "one")
    configs.alter("1", {f"{LISTENER}.password": "hunter2", f"{LISTENER}.location": "/keys"}, set())
    configs.reload()
    assert configs.for_this[f"{LISTENER}.password"] == "hunter2"
    assert configs.current.security_of("PLAINTEXT").ssl_keystore_password == "hunter2"
    before = stored(session)
    assert "hunter2" not in str(before)
    assert before[f"{LISTENER}.location"] == "/keys"
    other = with_secret(session, "another")
    assert other.for_this == {f"{LISTENER}.location": "/keys"}
    assert f"{LISTENER}.password is ignored: a stored password cannot be decrypted" in caplog.text
    configs.alter("1", {f"{LISTENER}.location": "/other"}, set())
    assert stored(session)[f"{LISTENER}.password"] == before[f"{LISTENER}.password"], "it has not changed"


def test_a_broker_encrypts_its_passwords_by_a_new_secret_at_its_start(session: Coordination) -> None:
    with_secret(session, "one").alter("1", {f"{LISTENER}.password": "hunter2"}, set())
    before = stored(session)
    assert with_secret(session, "two", old="one").for_this == {f"{LISTENER}.password": "hunter2"}
    after = stored(session)
    assert before != after
    assert with_secret(session, "two").for_this == {f"{LISTENER}.password": "hunter2"}
    assert with_secret(session, "two", old="one").for_this == {f"{LISTENER}.password": "hunter2"}
    assert stored(session) == after, "the present secret encrypted it"


def test_a_password_without_a_secret_is_refused(session: Coordination) -> None:
    with pytest.raises(InvalidConfigError, match=r"has no password\.encoder\.secret to encrypt it") as refused:
        configs_of(session).alter("1", {f"{LISTENER}.password": "hunter2"}, set())
    assert "hunter2" not in refused.value.message
    assert session.children("/config/brokers") == []


@pytest.mark.parametrize(("name", "error"), [("", InvalidConfigError), ("2", InvalidRequestError)])
def test_an_option_of_one_broker_is_changed_at_that_broker_alone(
    session: Coordination, name: str, error: type[Exception]
) -> None:
    for values, removals in (({"advertised.listeners": "PLAINTEXT://a:1"}, set[str]()), ({}, {f"{LISTENER}.location"})):
        with pytest.raises(error, match=r"one broker|only broker 2"):
            configs_of(session).alter(name, values, removals)
    assert session.children("/config/brokers") == []


def test_a_change_that_a_part_of_the_broker_refuses_is_not_stored(session: Coordination) -> None:
    configs = configs_of(session)

    def refuse(before: BrokerConfig, after: BrokerConfig) -> None:
        assert before is configs.current
        if after.num_io_threads == 6:
            raise InvalidConfigError("six are unlucky")

    configs.checks.append(refuse)
    with pytest.raises(InvalidConfigError, match="unlucky"):
        configs.alter("1", {"num.io.threads": "6"}, set())
    assert session.children("/config/brokers") == []
    configs.alter("1", {"num.io.threads": "5"}, set())
    assert stored(session) == {"num.io.threads": "5"}


def test_options_that_need_each_other_are_read_together(session: Coordination) -> None:
    listener = {
        "listener.name.added.ssl.keystore.location": "/keys",
        "listeners": "PLAINTEXT://127.0.0.1:1,GRPC://127.0.0.1:2,ADDED://127.0.0.1:3",
    }
    session.create(paths.config_path("brokers/1"), ConfigNode({**listener, "num.partitions": "4"}).encode())
    assert configs_of(session).for_this == listener


def test_options_of_a_broker_that_is_not_alive_are_removed_at_another_one(session: Coordination) -> None:
    session.create(paths.config_path("brokers/2"), ConfigNode({f"{LISTENER}.location": "/keys"}).encode())
    configs = configs_of(session, 1)
    session.delete(paths.broker_path(2))
    with pytest.raises(InvalidRequestError, match="only broker 2"):
        configs.alter("2", {f"{LISTENER}.location": "/other"}, set())
    configs.alter("2", {}, {f"{LISTENER}.location"})
    assert ConfigNode.decode(session.get(paths.config_path("brokers/2"))[0]).config == {}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (ListChange(append="compact"), "delete,compact"),
        (ListChange(subtract="compact"), "delete"),
        (ListChange(append="delete"), "delete"),
    ],
)
def test_list_that_all_brokers_lack_begins_with_the_default(
    session: Coordination, change: ListChange, expected: str
) -> None:
    configs_of(session).alter("", {"log.cleanup.policy": change}, set())
    configs = configs_of(session)
    assert configs.for_all == {"log.cleanup.policy": expected}


def test_list_that_a_broker_lacks_begins_with_that_of_all_brokers(session: Coordination) -> None:
    configs = configs_of(session)
    configs.alter("", {"log.cleanup.policy": "compact"}, set())
    configs.reload()
    configs.alter("1", {"log.cleanup.policy": ListChange(append="delete")}, set())
    assert stored(session) == {"log.cleanup.policy": "compact,delete"}
    configs.alter("1", {"log.cleanup.policy": ListChange(subtract="compact")}, set())
    assert stored(session) == {"log.cleanup.policy": "delete"}
    with pytest.raises(InvalidRequestError, match="only broker 2 has its "):
        configs.alter("2", {"log.cleanup.policy": ListChange(append="delete")}, set())


def test_list_that_a_listener_lacks_begins_with_that_of_all_listeners(session: Coordination) -> None:
    options = {"broker.id": 1, "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512"}
    option = "listener.name.plaintext.sasl.enabled.mechanisms"
    BrokerConfigs(session, BrokerConfig.load(options)).alter("1", {option: ListChange(append="SCRAM-SHA-256")}, set())
    assert stored(session) == {option: "PLAIN,SCRAM-SHA-512,SCRAM-SHA-256"}


def test_replacement_of_the_options_of_another_broker_keeps_those_that_only_it_can_validate(
    session: Coordination,
) -> None:
    session.create(paths.config_path("brokers/2"), ConfigNode({f"{LISTENER}.location": "/keys"}).encode())
    with pytest.raises(InvalidRequestError, match="only broker 2"):
        configs_of(session, 1).alter("2", {"log.retention.ms": "5"}, set(), replaces=True)
    configs_of(session, 2).alter("2", {"log.retention.ms": "5"}, set(), replaces=True)
    assert ConfigNode.decode(session.get(paths.config_path("brokers/2"))[0]).config == {"log.retention.ms": "5"}
