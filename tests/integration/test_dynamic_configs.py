"""Tests of configurations that change while a broker runs.

The changes are made by its clients and by its command line.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millrace.cli.main import main
from millrace.clients import Admin
from millrace.config.broker import BrokerConfig
from millrace.errors import InvalidConfigError, InvalidRequestError
from millrace.kafka_protocol.calls import alter_configs
from millrace.kafka_protocol.calls.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millrace.kafka_protocol.calls.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millrace_broker.broker import Broker
from millrace_broker.testing import EmbeddedBroker

from .documented import Reader
from .kafka_wire import KafkaWire
from .waiting import eventually

Run = Callable[..., str]

SET, DELETE, APPEND = 0, 1, 2
BROKER_LOGGER, BROKER_LOGGER_SOURCE = 8, 6
INVALID_REQUEST, INVALID_CONFIG = 42, 40
LOGGER = "millrace_broker.groups"
BROKER_OPTIONS = {"log.segment.bytes": "5000000"}


@pytest.fixture
def run(module_broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a command against the broker and returns its output."""
    monkeypatch.setenv("MILLRACE_BOOTSTRAP_SERVERS", module_broker.bootstrap_servers)

    def run(*arguments: str, status: int = 0) -> str:
        capsys.readouterr()
        assert main(arguments) == status, capsys.readouterr().err
        captured = capsys.readouterr()
        return captured.out if status == 0 else captured.err

    return run


@pytest.fixture
def _inherited_level() -> Iterator[None]:
    yield
    logging.getLogger(LOGGER).setLevel(logging.NOTSET)


@pytest.mark.usefixtures("_inherited_level")
def test_kafkas_clients_change_levels_of_loggers(module_broker: EmbeddedBroker) -> None:
    with KafkaWire(module_broker) as wire:

        def alter(operation: int, name: str, value: str | None) -> int:
            config = AlterableConfig(name=name, config_operation=operation, value=value)
            resource = AlterConfigsResource(resource_type=BROKER_LOGGER, resource_name="0", configs=(config,))
            answer = wire.call(IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False), 1)
            code: int = answer.responses[0].error_code
            return code

        def level(name: str) -> str:
            wanted = DescribeConfigsResource(resource_type=BROKER_LOGGER, resource_name="0", configuration_keys=(name,))
            answer = wire.call(DescribeConfigsRequest(resources=(wanted,), include_synonyms=True), 4)
            (found,) = answer.results[0].configs
            assert (found.config_source, found.read_only, found.is_sensitive) == (BROKER_LOGGER_SOURCE, False, False)
            value: str = found.value
            return value

        inherited = level(LOGGER)
        assert alter(SET, LOGGER, "TRACE") == 0
        assert level(LOGGER) == "TRACE"
        assert logging.getLogger(LOGGER).level == 5
        assert alter(DELETE, LOGGER, None) == 0
        assert level(LOGGER) == inherited
        assert alter(SET, LOGGER, "LOUD") == INVALID_CONFIG
        assert alter(SET, "no.such.logger", "INFO") == INVALID_REQUEST
        assert alter(APPEND, LOGGER, "INFO") == INVALID_REQUEST
        assert alter(DELETE, "root", None) == INVALID_REQUEST
        replaced = alter_configs.AlterConfigsResource(resource_type=BROKER_LOGGER, resource_name="0", configs=())
        answer = wire.call(alter_configs.AlterConfigsRequest(resources=(replaced,), validate_only=False), 2)
        assert answer.responses[0].error_code == INVALID_REQUEST, "it would delete all levels"


@pytest.mark.usefixtures("_inherited_level")
def test_the_command_line_changes_levels_of_loggers(run: Run) -> None:
    run("configs", "alter", "broker-loggers", "0", "--add", f"{LOGGER}=DEBUG")
    described = json.loads(run("configs", "describe", "broker-loggers", "0", "--json"))
    assert {"name": LOGGER, "value": "DEBUG", "source": "DYNAMIC_BROKER_LOGGER_CONFIG"} in described
    run("configs", "alter", "broker-loggers", "0", "--delete", LOGGER)
    assert logging.getLogger(LOGGER).level == logging.NOTSET
    assert "this is broker 0" in run("configs", "alter", "broker-loggers", "7", "--add", "root=INFO", status=1)


def test_the_command_line_appends_subtracts_and_validates(admin: Admin, run: Run, topic: str) -> None:
    admin.create_topic(topic)

    def policy() -> str:
        return admin.describe_configs(topic)["cleanup.policy"].value

    run("configs", "alter", "topics", topic, "--append", "cleanup.policy=compact,delete")
    assert policy() == "delete,compact"
    run("configs", "alter", "topics", topic, "--subtract", "cleanup.policy=delete", "--add", "retention.ms=7")
    assert (policy(), admin.describe_configs(topic)["retention.ms"].value) == ("compact", "7")
    accepted = run("configs", "alter", "topics", topic, "--delete", "cleanup.policy", "--validate-only")
    assert accepted == f"the broker accepts these changes of {topic}\n"
    assert policy() == "compact"
    for words, message in (
        (("--append", "cleanup.policy=keep"), "cleanup.policy='compact,keep'"),
        (("--append", "retention.ms=5"), "retention.ms is no list: set it to a value"),
        (("--append", "cleanup.policy=delete", "--delete", "cleanup.policy"), "cleanup.policy is changed twice"),
    ):
        assert message in run("configs", "alter", "topics", topic, *words, status=1)
    assert policy() == "compact"
    run("configs", "alter", "topics", topic, "--subtract", "cleanup.policy=compact")
    assert policy() == ""
    assert "quotas are numbers" in run("configs", "alter", "users", "a", "--append", "producer_byte_rate=5", status=2)


def test_concurrent_appends_are_all_in_the_list(module_broker: EmbeddedBroker, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    option = "leader.replication.throttled.replicas"

    def append(first: int) -> None:
        with Admin({"bootstrap.servers": module_broker.bootstrap_servers}) as own:
            for partition in range(first, first + 10):
                own.alter_configs(topic, append={option: f"{partition}:1"})

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(append, (0, 10, 20)))
    value = admin.describe_configs(topic)[option].value
    assert set(value.split(",")) == {f"{partition}:1" for partition in range(30)}


def test_options_of_a_file_and_of_the_input_are_set(
    admin: Admin, run: Run, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic(topic)
    file = tmp_path / "added.properties"
    file.write_text("# ours\nretention.ms: 7\nsegment.bytes=1048576\n")
    run("configs", "alter", "topics", topic, "--add-file", str(file), "--add", "cleanup.policy=compact")
    found = admin.describe_configs(topic)
    names = ("retention.ms", "segment.bytes", "cleanup.policy")
    assert [found[name].value for name in names] == ["7", "1048576", "compact"]
    monkeypatch.setattr("sys.stdin", io.StringIO("retention.ms=8\n"))
    run("configs", "alter", "topics", topic, "--add-file", "-")
    assert admin.describe_configs(topic)["retention.ms"].value == "8"
    refused = ("configs", "alter", "topics", topic, "--add-file", str(file), "--add", "retention.ms=9")
    assert "retention.ms is set by --add and by" in run(*refused, status=2)
    file.write_text("hunter2\n")
    assert "hunter2" not in run("configs", "alter", "topics", topic, "--add-file", str(file), status=1)


def test_secrets_of_a_broker_are_not_described_and_other_options_are(admin: Admin) -> None:
    found = admin.describe_configs("0", resource="broker")
    hidden = {name for name, value in found.items() if value.is_sensitive}
    assert hidden == {name for name in found if BrokerConfig.is_secret(name)}
    assert {"password.encoder.secret", "ssl.keystore.password", "sasl.jaas.config"} <= hidden
    assert not any(found[name].value for name in hidden)
    assert found["password.encoder.iterations"].value == "4096"
    assert not found["sasl.oauthbearer.token.endpoint.url"].is_sensitive


def test_the_values_of_all_sources_are_described_in_their_precedence(
    module_broker: EmbeddedBroker, admin: Admin, run: Run
) -> None:
    option, values = "log.segment.bytes", {"0": "7000000", "": "6000000"}
    default = str(BrokerConfig.load({}).options()[option])
    expected = [(2, "7000000"), (3, "6000000"), (4, BROKER_OPTIONS[option]), (5, default)]
    for name, value in values.items():
        admin.alter_configs(name, {option: value}, resource="broker")
    described = json.loads(run("configs", "describe", "brokers", "0", "--synonyms", "--json"))
    (shown,) = (each["synonyms"] for each in described if each["name"] == option)
    sources = ("DYNAMIC_BROKER_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG", "STATIC_BROKER_CONFIG", "DEFAULT_CONFIG")
    pairs = zip(sources, expected, strict=True)
    assert shown == ", ".join(f"{source}:{option}={value}" for source, (_, value) in pairs)
    with KafkaWire(module_broker) as wire:
        for name in (None, *values):
            if name is not None:
                admin.alter_configs(name, delete=[option], resource="broker")
                expected = expected[1:]
            wanted = DescribeConfigsResource(resource_type=4, resource_name="0", configuration_keys=(option,))
            answer = wire.call(DescribeConfigsRequest(resources=(wanted,), include_synonyms=True), 4)
            (found,) = answer.results[0].configs
            assert [(each.source, each.value) for each in found.synonyms] == expected
            assert (found.config_source, found.value) == expected[0]


def test_a_broker_starts_although_a_topic_contradicts_a_default_of_its_file(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("typed", schema="a INT")
    with (
        EmbeddedBroker(tmp_path, options={"compression.type": "gzip"}) as broker,
        Admin(broker.bootstrap_servers) as admin,
    ):
        option = admin.describe_configs("typed")["compression.type"]
        assert (option.value, option.source) == ("producer", "DEFAULT_CONFIG")
        admin.create_topic("opaque")
        option = admin.describe_configs("opaque")["compression.type"]
        assert (option.value, option.source) == ("gzip", "STATIC_BROKER_CONFIG")


def test_pools_of_threads_grow_and_shrink_while_calls_are_answered(module_broker: EmbeddedBroker, admin: Admin) -> None:
    broker = module_broker.server.broker
    pools = (broker.executors._io, broker.fsyncs._threads)
    try:
        for count in (8, 4, 2, 1, 2):
            admin.alter_configs("0", {"num.io.threads": count}, resource="broker")
            eventually(lambda count=count: all(pool.threads == count for pool in pools))
            assert admin.describe_configs("0", resource="broker")["num.io.threads"].value == str(count)
        with pytest.raises(InvalidConfigError, match="the broker has 2, and accepts 1 to 4"):
            admin.alter_configs("0", {"num.io.threads": 5}, resource="broker")
    finally:
        admin.alter_configs("0", delete=["num.io.threads"], resource="broker")


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Return a broker with a remote store, for options of threads and rates in its background."""
    directory = tmp_path_factory.mktemp("tiered")
    options = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.uri": (directory / "store").as_uri(),
        "log.cleaner.enable": "true",
    }
    (directory / "store").mkdir()
    with EmbeddedBroker(directory / "broker", options=options) as broker:
        yield broker


@pytest.mark.parametrize(
    ("option", "values", "observed"),
    [
        ("log.cleaner.threads", (2, 1), lambda broker: len(broker.logs.cleaner._workers._threads)),
        ("log.cleaner.backoff.ms", (7000,), lambda broker: broker.logs.cleaner._settings.backoff_ms),
        (
            "log.cleaner.io.max.bytes.per.second",
            (5e6,),
            lambda broker: broker.logs.cleaner._settings.io_bytes_per_second_max,
        ),
        ("num.replica.fetchers", (2, 1), lambda broker: broker.replicas._fetchers.count),
        ("remote.log.reader.threads", (6, 12), lambda broker: broker.reads._remote_readers._pool.threads),
        (
            "remote.log.manager.copier.thread.pool.size",
            (3, 5),
            lambda broker: len(broker.logs.tiering._workers._threads),
        ),
        (
            "remote.log.index.file.cache.total.size.bytes",
            (2**20,),
            lambda broker: broker.logs.tiering._cache._bytes_max,
        ),
        (
            "remote.log.manager.copy.max.bytes.per.second",
            (3_000_000,),
            lambda broker: broker.logs.tiering._throttle.bytes_per_second,
        ),
        (
            "replica.alter.log.dirs.io.max.bytes.per.second",
            (2_000_000,),
            lambda broker: broker.logs.moves._throttle.bytes_per_second,
        ),
        ("message.max.bytes", (2_000_000,), lambda broker: broker.logs.defaults.max_message_bytes),
        ("log.retention.ms", (99_000_000,), lambda broker: broker.logs.defaults.retention_ms),
    ],
)
def test_options_of_the_background_change_what_runs(
    tiered: EmbeddedBroker, option: str, values: tuple[float, ...], observed: Callable[[Broker], float]
) -> None:
    broker = tiered.server.broker
    before = observed(broker)
    with Admin(tiered.bootstrap_servers) as admin:
        for value in values:
            admin.alter_configs("0", {option: f"{value:g}" if value < 1e6 else f"{value:.0f}"}, resource="broker")
            eventually(lambda value=value: observed(broker) == value, f"{option}={value}")
        admin.alter_configs("0", delete=[option], resource="broker")
        eventually(lambda: observed(broker) == before, f"the earlier {option}")


def test_an_option_that_needs_a_restart_is_refused_with_the_reason(admin: Admin) -> None:
    for option, message in (
        ("num.partitions", "num.partitions cannot be changed while a broker runs: edit its properties file"),
        ("password.encoder.secret", r"password\.encoder\.secret cannot be changed while a broker runs"),
    ):
        with pytest.raises(InvalidConfigError, match=message):
            admin.alter_configs("0", {option: "5"}, resource="broker")
    with pytest.raises(InvalidRequestError, match="this is broker 0"):
        admin.describe_configs("7", resource="broker-logger")


@pytest.mark.usefixtures("_inherited_level")
def test_the_page_changes_configurations(page_reader: Reader) -> None:
    printed = page_reader.follow("docs/dynamic-configuration.md")
    assert "the broker accepts these changes of 0" in printed
    assert "changed the quotas of user alice" in printed
