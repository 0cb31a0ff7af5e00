from __future__ import annotations

from pathlib import Path

import pytest

from millrace.config.base import read_properties
from millrace.config.broker import BrokerConfig
from millrace.config.topic import TopicConfig
from millrace.config.topic_defaults import TOPIC_DEFAULTS
from millrace.errors import InvalidConfigError

PROPERTIES = Path(__file__).parents[3] / "conf" / "broker.properties"

ONLY_OF_TOPICS = {
    "remote.storage.enable",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
    "kafka.value.format",
    "kafka.value.framing",
    "kafka.value.schema.id",
    "kafka.value.message",
    "kafka.key.format",
}
"""Topic options without a default at the broker, as in Kafka."""


def test_every_topic_option_has_a_broker_default_or_is_known_to_have_none() -> None:
    assert set(TOPIC_DEFAULTS) | ONLY_OF_TOPICS == set(TopicConfig.option_names())


def test_a_broker_option_is_the_default_of_the_topic_option() -> None:
    config = BrokerConfig.load({"log.segment.bytes": "4096", "message.max.bytes": 2048})
    assert config.topic_defaults.segment_bytes == 4096
    assert config.topic_defaults.max_message_bytes == 2048
    assert config.options()["log.segment.bytes"] == 4096


@pytest.mark.parametrize(
    ("values", "expected_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.minutes": "3", "log.retention.ms": "5", "log.retention.hours": "2"}, 5),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_the_finer_unit_wins_as_with_kafka(values: dict[str, str], expected_ms: int) -> None:
    assert BrokerConfig.load(values).topic_defaults.retention_ms == expected_ms


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"log.retention.hour": "1"}, "unknown option log.retention.hour"),
        ({"segment.bytes": "1000"}, "unknown option segment.bytes"),
        ({"log.retention.hours": "soon"}, "log.retention.hours='soon': expected an integer"),
        ({"log.segment.bytes": "1"}, "log.segment.bytes sets segment.bytes"),
        ({"broker.id": "-1"}, "broker.id='-1'"),
        ({"log.dirs": "a,,b"}, "log.dirs"),
        ({"log.dirs": "a,a"}, "different directories"),
        ({"direct.reads.enable": "everybody"}, "direct.reads.enable='everybody'"),
        ({"message.max.bytes": "2000000000"}, "socket.request.max.bytes=104857600"),
    ],
)
def test_a_wrong_value_is_named_with_the_remedy(values: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        BrokerConfig.load(values)
    assert message in caught.value.message


def _documented() -> dict[str, str]:
    """Return all options of the file, with those commented out."""
    documented: dict[str, str] = {}
    for line in PROPERTIES.read_text().splitlines():
        name, separator, value = line.removeprefix("#").partition("=")
        if separator and " " not in name:
            documented[name] = value
    return documented


def test_the_properties_file_loads_and_is_what_applies_without_it() -> None:
    assert BrokerConfig.load(read_properties(PROPERTIES)) == BrokerConfig.load({})


def test_the_properties_file_shows_every_option_with_its_default() -> None:
    documented = _documented()
    assert sorted(documented) == sorted(BrokerConfig.option_names())
    for name, value in documented.items():
        assert BrokerConfig.load({name: value}) == BrokerConfig.load({}), name


def test_the_file_for_a_cluster_of_three_machines_loads() -> None:
    config = BrokerConfig.load(read_properties(PROPERTIES.parent / "cluster" / "broker.properties"))
    assert config.zookeeper_config is not None
    assert config.zookeeper_config.address.chroot == "/millrace"
    assert (config.default_replication_factor, config.topic_defaults.min_insync_replicas) == (3, 2)


def test_without_zookeeper_a_broker_is_by_itself_and_its_options_are_checked_all_the_same() -> None:
    assert not BrokerConfig.load({"zookeeper.session.timeout.ms": "1000"}).is_clustered
    assert BrokerConfig.load({"zookeeper.connect": "a:2181,b:2181/c"}).is_clustered
    with pytest.raises(InvalidConfigError, match=r"zookeeper\.session\.timeout\.ms"):
        BrokerConfig.load({"zookeeper.session.timeout.ms": "soon"})
    with pytest.raises(InvalidConfigError, match=r"zookeeper\.connect"):
        BrokerConfig.load({"zookeeper.connect": "a:x"})
