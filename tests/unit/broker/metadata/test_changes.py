"""Tests of topic changes.

The tests cover their checks, and the nodes that they write.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millrace.config.broker import BrokerConfig
from millrace.config.integers import LONG_MAX
from millrace.config.topic_defaults import TOPIC_DEFAULTS
from millrace.coordination import Coordination, EmbeddedStore, paths
from millrace.coordination.nodes import BrokerNode
from millrace.errors import (
    IncompatibleSchemaError,
    InvalidConfigError,
    InvalidPartitionsError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from millrace.schemas import parse_schema, serialize_schema
from millrace_broker.config import LiveConfig
from millrace_broker.metadata import BrokerConfigs, TopicCatalog, TopicChanges, TopicSpec, registration

CONFIG = BrokerConfig.load(
    {
        "max.partitions": "10",
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.uri": "file:///remote",
    }
)
TIERED = {"remote.storage.enable": "true"}


def _schema(ddl: str) -> bytes:
    return serialize_schema(parse_schema(ddl))


_A_INT = _schema("a INT")


@pytest.fixture
def session() -> Iterator[Coordination]:
    store = EmbeddedStore()
    session = store.connect()
    registration.ensure_roots(session)
    registration.register(session, 0, BrokerNode(host="h", port=1, timestamp_ms=0))
    yield session
    store.close()


@pytest.fixture
def gone() -> list[str]:
    return []


@pytest.fixture
def catalog(session: Coordination) -> TopicCatalog:
    return TopicCatalog(session, CONFIG.topic_defaults)


@pytest.fixture
def changes(session: Coordination, catalog: TopicCatalog, gone: list[str]) -> TopicChanges:
    return TopicChanges(
        CONFIG, session, catalog, configured=lambda *_: None, gone=lambda topic: gone.append(topic.name)
    )


def test_a_deleted_topic_is_out_of_sight_and_its_name_taken_until_the_controller_removes_it(
    session: Coordination, catalog: TopicCatalog, changes: TopicChanges, gone: list[str]
) -> None:
    changes.create(TopicSpec(name="t", partitions=3))
    changes.delete("t")
    assert gone == ["t"]
    with pytest.raises(UnknownTopicOrPartitionError):
        catalog.topic("t")
    with pytest.raises(TopicExistsError, match="being deleted"):
        changes.create(TopicSpec(name="t"))
    assert session.exists(paths.topic_path("t")) is not None


def test_the_brokers_partitions_are_limited(changes: TopicChanges) -> None:
    changes.create(TopicSpec(name="t", partitions=8))
    with pytest.raises(InvalidPartitionsError, match=r"max\.partitions=10"):
        changes.create(TopicSpec(name="u", partitions=3))
    with pytest.raises(InvalidPartitionsError, match=r"max\.partitions=10"):
        changes.create_partitions("t", 11)
    changes.create(TopicSpec(name="u", partitions=2))


def test_an_incompatible_schema_leaves_the_versions_as_they_are(catalog: TopicCatalog, changes: TopicChanges) -> None:
    changes.create(TopicSpec(name="t", arrow_schema=_schema("a INT")))
    with pytest.raises(IncompatibleSchemaError):
        changes.evolve_schema("t", _schema("a STRING"))
    assert len(catalog.topic("t").schemas) == 1
    assert changes.evolve_schema("t", _schema("a INT, b STRING")).id == 2


CONTRADICTIONS = [
    (TopicSpec(name="t", arrow_schema=_A_INT), "compression.type", "gzip", "producer"),
    (TopicSpec(name="t", arrow_schema=_A_INT), "log.cleanup.policy", "compact", "delete"),
    (TopicSpec(name="t", configs={"min.compaction.lag.ms": "9"}), "log.cleaner.max.compaction.lag.ms", "8", LONG_MAX),
    (TopicSpec(name="t", configs={"max.compaction.lag.ms": "9"}), "log.cleaner.min.compaction.lag.ms", "10", 0),
    (TopicSpec(name="t", configs=TIERED | {"local.retention.ms": "9"}), "log.retention.ms", "8", 8),
    (TopicSpec(name="t", configs=TIERED), "log.cleanup.policy", "compact,delete", "delete"),
]
"""Topics, each with a default that it cannot have, and the value of the option that applies instead."""


@pytest.mark.parametrize(("spec", "option", "value", "instead"), CONTRADICTIONS)
def test_a_default_that_contradicts_a_topic_is_refused(
    session: Coordination,
    catalog: TopicCatalog,
    changes: TopicChanges,
    spec: TopicSpec,
    option: str,
    value: str,
    instead: object,
) -> None:
    live = LiveConfig(BrokerConfigs(session, CONFIG))
    live.add_check(lambda _, after: catalog.check_defaults(after.topic_defaults))
    changes.create(spec)
    for validate_only in (True, False):
        with pytest.raises(InvalidConfigError, match="topic t cannot have"):
            live.alter("", {option: value}, set(), validate_only=validate_only)
    assert live.current.topic_defaults == CONFIG.topic_defaults
    assert BrokerConfigs(session, CONFIG).for_all == {}


@pytest.mark.parametrize(("spec", "option", "value", "instead"), CONTRADICTIONS)
def test_a_topic_ignores_a_default_of_the_file_that_contradicts_it(
    session: Coordination,
    changes: TopicChanges,
    caplog: pytest.LogCaptureFixture,
    spec: TopicSpec,
    option: str,
    value: str,
    instead: object,
) -> None:
    changes.create(spec)
    changes.create(TopicSpec(name="other"))
    config = BrokerConfig.load({option: value, "log.segment.bytes": "77"})
    catalog = TopicCatalog(session, config.topic_defaults)
    catalog.load()
    topic_option = next(each for each, names in TOPIC_DEFAULTS.items() if names[0][0] == option)
    options = catalog.topic("t").config.options()
    assert (options[topic_option], options["segment.bytes"]) == (instead, 77)
    assert str(catalog.topic("other").config.options()[topic_option]) == value
    assert "is ignored for topic t" in caplog.text
    assert "topic other" not in caplog.text
    catalog.check_defaults(BrokerConfig.load({option: value}).topic_defaults)  # no change for the worse


def test_the_contradiction_of_a_topic_and_a_default_of_the_file_is_repaired_at_the_topic(
    session: Coordination, changes: TopicChanges
) -> None:
    changes.create(TopicSpec(name="t", arrow_schema=_A_INT))
    config = BrokerConfig.load({"compression.type": "gzip"})
    catalog = TopicCatalog(session, config.topic_defaults)
    catalog.load()
    repairs = TopicChanges(config, session, catalog, configured=lambda *_: None, gone=lambda _: None)
    with pytest.raises(InvalidConfigError, match=r"compression\.type=gzip"):
        repairs.alter_config("t", {"segment.bytes": "77"}, set())
    repairs.alter_config("t", {"compression.type": "lz4"}, set())
    repairs.alter_config("t", {"segment.bytes": "77"}, set())
    assert catalog.topic("t").config.segment_bytes == 77
