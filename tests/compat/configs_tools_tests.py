"""Tests of ``kafka-configs`` against the broker at ``COMPAT_BOOTSTRAP``, as those of ``tools_tests``."""

from __future__ import annotations

import re

import pytest

from .tools_tests import _closed_tools, alter_config, create, described_config, eventually, tool, topic

__all__ = ["_closed_tools", "topic"]
"""Fixtures."""


def test_config_of_a_topic_is_set_and_deleted_and_a_wrong_one_refused(topic: str) -> None:
    create(topic, 1)
    alter_config("topics", topic, "--add-config", "retention.ms=12345,cleanup.policy=compact")
    assert "retention.ms=12345" in described_config("topics", topic)
    assert "cleanup.policy=compact" in described_config("topics", topic)
    alter_config("topics", topic, "--delete-config", "retention.ms")
    assert "12345" not in described_config("topics", topic)
    assert "nonsense" in alter_config("topics", topic, "--add-config", "cleanup.policy=nonsense", fails=True)


def test_config_of_brokers_is_set_and_deleted() -> None:
    alter_config("brokers", "", "--add-config", "message.max.bytes=1500000")
    assert "message.max.bytes=1500000" in described_config("brokers", "")
    alter_config("brokers", "", "--delete-config", "message.max.bytes")
    assert "1500000" not in described_config("brokers", "")


def test_config_of_one_broker_is_set_and_deleted() -> None:
    broker_id = _broker_id()
    alter_config("brokers", broker_id, "--add-config", "log.cleaner.threads=2")
    described = described_config("brokers", broker_id)
    assert "log.cleaner.threads=2" in described
    assert "DYNAMIC_BROKER_CONFIG:log.cleaner.threads=2, DEFAULT_CONFIG:log.cleaner.threads=1" in described
    assert "Error" in alter_config("brokers", broker_id, "--add-config", "log.cleaner.threads=50", fails=True)
    alter_config("brokers", broker_id, "--delete-config", "log.cleaner.threads")
    assert "log.cleaner.threads" not in described_config("brokers", broker_id)
    assert "broker.id" in alter_config("brokers", broker_id, "--add-config", "broker.id=7", fails=True)


def test_levels_of_loggers_are_set_and_wrong_ones_refused() -> None:
    broker_id = _broker_id()
    before = re.findall(r"^  (\S+)=(\w+)", described_config("broker-loggers", broker_id), re.MULTILINE)
    name, level = next((name, level) for name, level in before if name != "root")
    assert level in ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
    alter_config("broker-loggers", broker_id, "--add-config", f"{name}=TRACE")
    assert f"  {name}=TRACE" in described_config("broker-loggers", broker_id)
    alter_config("broker-loggers", broker_id, "--delete-config", name)
    assert f"  {name}=TRACE" not in described_config("broker-loggers", broker_id)
    assert "LOUD" in alter_config("broker-loggers", broker_id, "--add-config", f"{name}=LOUD", fails=True)
    assert "no.such.logger" in alter_config(
        "broker-loggers", broker_id, "--add-config", "no.such.logger=INFO", fails=True
    )


def _broker_id() -> str:
    found = re.search(r"\(id: (\d+)", tool("kafka-broker-api-versions"))
    assert found is not None
    return found[1]


def test_config_of_a_group_is_set(topic: str) -> None:
    alter_config("groups", topic, "--add-config", "consumer.session.timeout.ms=50000")
    assert "consumer.session.timeout.ms=50000" in described_config("groups", topic)


@pytest.mark.parametrize(
    ("kind", "name", "quota"),
    [
        ("users", "someone", "consumer_byte_rate=1048576"),
        ("users", "", "request_percentage=50"),
        ("clients", "app", "producer_byte_rate=1048576"),
        ("clients", "", "producer_byte_rate=2097152"),
        ("ips", "192.0.2.9", "connection_creation_rate=9"),
        ("ips", "", "connection_creation_rate=90"),
    ],
)
def test_quotas_and_their_defaults_are_set_and_deleted(kind: str, name: str, quota: str) -> None:
    alter_config(kind, name, "--add-config", quota)
    assert quota in described_config(kind, name)
    alter_config(kind, name, "--delete-config", quota.partition("=")[0])
    assert quota not in described_config(kind, name)


def test_scram_password_of_a_user_is_set_and_deleted(topic: str) -> None:
    alter_config("users", topic, "--add-config", "SCRAM-SHA-256=[iterations=4096,password=secret]")
    eventually(lambda: "SCRAM-SHA-256=iterations=4096" in described_config("users", topic))
    alter_config("users", topic, "--delete-config", "SCRAM-SHA-256")


def test_client_metrics_are_set_described_and_deleted(topic: str) -> None:
    metrics = ("--metrics", "org.apache.kafka.producer.", "--interval", 5000)
    tool("kafka-client-metrics", "--alter", "--name", topic, *metrics)
    assert "interval.ms=5000" in tool("kafka-client-metrics", "--describe", "--name", topic)
    tool("kafka-client-metrics", "--delete", "--name", topic)


def test_quotas_of_users_clients_and_addresses_are_set_and_described(topic: str) -> None:
    alter_config("users", topic, "--add-config", "consumer_byte_rate=1048576,request_percentage=50")
    eventually(lambda: "request_percentage=50" in described_config("users", topic))
    both = ("--entity-type", "users", "--entity-name", topic, "--entity-type", "clients", "--entity-name", "app")
    tool("kafka-configs", "--alter", *both, "--add-config", "producer_byte_rate=2048")
    quota = f"user-principal '{topic}', client-id 'app' are producer_byte_rate=2048"
    eventually(lambda: quota in tool("kafka-configs", "--describe", *both))
    alter_config("ips", "127.0.0.9", "--add-config", "connection_creation_rate=100")
    eventually(lambda: "connection_creation_rate=100" in described_config("ips", "127.0.0.9"))
    tool("kafka-configs", "--alter", *both, "--delete-config", "producer_byte_rate")
    alter_config("users", topic, "--delete-config", "consumer_byte_rate,request_percentage")
    alter_config("ips", "127.0.0.9", "--delete-config", "connection_creation_rate")
