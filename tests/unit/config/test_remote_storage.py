"""Tests of tiered storage options.

The tests cover Kafka's names, defaults and rules.
"""

from __future__ import annotations

import pytest

from millrace.config.broker import BrokerConfig
from millrace.config.topic import TopicConfig
from millrace.errors import InvalidConfigError

TIERED = {"remote.storage.enable": "true"}


def test_local_retention_defaults_to_total_retention() -> None:
    config = TopicConfig.load(TIERED | {"retention.ms": "5000", "retention.bytes": "-1", "local.retention.bytes": "10"})
    assert (config.disk_retention_ms, config.disk_retention_bytes) == (5000, 10)
    untiered = TopicConfig.load({"retention.ms": "5000", "local.retention.ms": "10"})
    assert untiered.disk_retention_ms == 5000


@pytest.mark.parametrize(
    "options",
    [
        {"retention.ms": "10", "local.retention.ms": "11"},
        {"retention.ms": "10", "local.retention.ms": "-1"},
        {"retention.bytes": "10", "local.retention.bytes": "11"},
        {"retention.bytes": "10", "local.retention.bytes": "-1"},
        {"cleanup.policy": "compact"},
        {"cleanup.policy": "compact,delete"},
        {"remote.log.copy.disable": "true", "local.retention.ms": "5"},
    ],
)
def test_contradictions_are_refused_where_the_topic_is_tiered(options: dict[str, str]) -> None:
    TopicConfig.load(options)
    with pytest.raises(InvalidConfigError):
        TopicConfig.load(TIERED | options)


def test_a_store_must_be_named_and_hold_no_secret() -> None:
    enabled = {"remote.log.storage.system.enable": "true"}
    with pytest.raises(InvalidConfigError, match=r"without remote\.log\.storage\.uri"):
        BrokerConfig.load(enabled)
    BrokerConfig.load(enabled | {"remote.log.storage.uri": "s3://bucket/logs"})
    with pytest.raises(InvalidConfigError, match="holds a secret"):
        BrokerConfig.load(enabled | {"remote.log.storage.uri": "s3://key:secret@bucket/logs"})


@pytest.mark.parametrize("uri", ["s3://key:secret@bucket/logs", "s3://bucket/?secret_key=x", "logs"])
def test_a_store_with_a_secret_or_without_a_name_is_refused(uri: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        BrokerConfig.load({"remote.log.storage.uri": uri})
    assert "secret@" not in refused.value.message


@pytest.mark.parametrize("uri", ["s3://bucket/logs", "gs://anonymous@bucket/", "hdfs://user@node:8020/x", "/mnt/x"])
def test_stores_are_accepted(uri: str) -> None:
    BrokerConfig.load({"remote.log.storage.uri": uri})
