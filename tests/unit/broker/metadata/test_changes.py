"""Tests of topic changes.

The tests cover their checks, and the nodes that they write.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millrace.config.broker import BrokerConfig
from millrace.coordination import Coordination, EmbeddedStore, paths
from millrace.coordination.nodes import BrokerNode
from millrace.errors import (
    IncompatibleSchemaError,
    InvalidPartitionsError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from millrace.schemas import parse_schema, serialize_schema
from millrace_broker.metadata import TopicCatalog, TopicChanges, TopicSpec, registration

CONFIG = BrokerConfig.load({"max.partitions": "10"})


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


def _schema(ddl: str) -> bytes:
    return serialize_schema(parse_schema(ddl))
