"""Tests of brokers that change the same topic concurrently.

No acknowledged change is lost, although the brokers learn of each other's changes late.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from millrace.config.broker import BrokerConfig
from millrace.coordination import EmbeddedStore, NoNodeError
from millrace.coordination.nodes import BrokerNode, ConfigNode, PayloadSchemaNode
from millrace.errors import IncompatibleSchemaError, UnknownTopicOrPartitionError
from millrace.schemas import parse_schema, serialize_schema
from millrace_broker.metadata import (
    BrokerConfigs,
    PayloadSchemas,
    TopicCatalog,
    TopicChanges,
    TopicSpec,
    registration,
)
from millrace_broker.metadata.config_nodes import change_config, read_config
from millrace_broker.metadata.option_changes import ListChange

CONFIG = BrokerConfig.load({})
NODE = "/config/topics/t"
THROTTLED = "leader.replication.throttled.replicas"


@pytest.fixture
def store() -> EmbeddedStore:
    store = EmbeddedStore(now_ms=lambda: 0)
    session = store.connect()
    registration.ensure_roots(session)
    for broker_id in (1, 2):
        node = BrokerNode(host="h", port=broker_id, timestamp_ms=0)
        registration.register(store.connect(), broker_id, node)
    return store


def broker(store: EmbeddedStore) -> TopicChanges:
    """Create a broker that knows the present topics and gets no later notices."""
    session = store.connect()
    catalog = TopicCatalog(session, CONFIG.topic_defaults)
    catalog.load()
    return TopicChanges(CONFIG, session, catalog, configured=lambda *_: None, gone=lambda _: None)


def test_options_that_two_brokers_set_both_hold(store: EmbeddedStore) -> None:
    one = broker(store)
    one.create(TopicSpec(name="t", configs={"segment.bytes": "5000"}))
    two = broker(store)
    one.alter_config("t", {"retention.ms": "1"}, {"segment.bytes"})
    two.alter_config("t", {"retention.bytes": "2"}, set())
    assert broker(store)._catalog.topic("t").overrides == {"retention.ms": "1", "retention.bytes": "2"}
    assert two._catalog.topic("t").config.retention_ms == 1


def test_elements_that_two_brokers_append_and_subtract_are_both_in_the_list(store: EmbeddedStore) -> None:
    one = broker(store)
    one.create(TopicSpec(name="t"))
    two = broker(store)
    one.alter_config("t", {THROTTLED: ListChange(append="0:1,1:1")}, set())
    two.alter_config("t", {THROTTLED: ListChange(append="2:1,0:1")}, set())
    one.alter_config("t", {THROTTLED: ListChange(subtract="1:1")}, set())
    assert broker(store)._catalog.topic("t").overrides == {THROTTLED: "0:1,2:1"}


def test_options_that_another_broker_has_set_are_replaced(store: EmbeddedStore) -> None:
    one = broker(store)
    one.create(TopicSpec(name="t"))
    two = broker(store)
    one.alter_config("t", {"retention.ms": "1", "segment.bytes": "5000"}, set())
    two.alter_config("t", {"segment.bytes": "6000"}, set(), replaces=True)
    assert broker(store)._catalog.topic("t").overrides == {"segment.bytes": "6000"}


def test_versions_of_a_schema_that_two_brokers_make_both_stay(store: EmbeddedStore) -> None:
    one = broker(store)
    one.create(TopicSpec(name="t", arrow_schema=_schema("a INT")))
    two = broker(store)
    first = one.evolve_schema("t", _schema("a INT, b INT"))
    with pytest.raises(IncompatibleSchemaError):
        two.evolve_schema("t", _schema("a INT, b STRING"))
    second = two.evolve_schema("t", _schema("a INT, b INT, c INT"))
    assert [(each.id, each.version) for each in (first, second)] == [(2, 2), (3, 3)]
    assert [each.id for each in broker(store)._catalog.topic("t").schemas] == [1, 2, 3]
    assert one.evolve_schema("t", _schema("a INT, b INT, c INT")) == second


def test_a_schema_that_changes_while_it_is_written_is_looked_at_again(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = broker(store)
    one.create(TopicSpec(name="t", arrow_schema=_schema("a INT")))
    two = broker(store)
    next_id, pending = two._next_schema_id, ["a INT, b INT"]

    def interrupted() -> object:
        result = next_id()
        if pending:
            one.evolve_schema("t", _schema(pending.pop()))
        return result

    monkeypatch.setattr(two, "_next_schema_id", interrupted)
    assert two.evolve_schema("t", _schema("a INT, b INT, c INT")).version == 3
    assert [each.id for each in broker(store)._catalog.topic("t").schemas] == [1, 2, 3]


def test_a_topic_of_which_a_broker_has_not_heard_that_it_is_gone_is_not_changed(store: EmbeddedStore) -> None:
    one = broker(store)
    one.create(TopicSpec(name="t", arrow_schema=_schema("a INT")))
    two = broker(store)
    one.delete("t")
    for change in (
        lambda: two.alter_config("t", {"retention.ms": "1"}, set()),
        lambda: two.evolve_schema("t", _schema("a INT, b INT")),
    ):
        with pytest.raises(UnknownTopicOrPartitionError):
            change()


def test_options_of_a_broker_that_two_set_both_hold(store: EmbeddedStore) -> None:
    brokers = [BrokerConfigs(store.connect(), CONFIG) for _ in range(2)]
    brokers[0].alter("1", {"log.retention.ms": "1"}, set())
    brokers[1].alter("1", {"log.retention.bytes": "2"}, set())
    written = ConfigNode.decode(store.connect().get("/config/brokers/1")[0]).config
    assert written == {"log.retention.ms": "1", "log.retention.bytes": "2"}


def test_subjects_of_a_schema_that_two_brokers_name_both_stay(store: EmbeddedStore) -> None:
    def schema(subject: str) -> PayloadSchemaNode:
        return PayloadSchemaNode(kind="JSON", text="{}", subjects=((subject, 1),))

    one = PayloadSchemas(store.connect())
    one.register([(7, schema("a"))])
    two = PayloadSchemas(store.connect())
    one.register([(7, schema("b"))])
    two.register([(7, schema("c"))])
    assert PayloadSchemas(store.connect()).schemas[7].subjects == (("a", 1), ("b", 1), ("c", 1))


@pytest.mark.parametrize("exists", [True, False])
def test_a_change_is_applied_to_the_value_that_another_client_wrote_meanwhile(
    store: EmbeddedStore, exists: bool
) -> None:
    session, other = store.connect(), store.connect()
    if exists:
        change_config(session, NODE, lambda _: {"a": "1"})
    seen: list[Mapping[str, str]] = []

    def change(present: Mapping[str, str]) -> dict[str, str]:
        if not seen:
            change_config(other, NODE, lambda now: {**now, "b": "2"})
        seen.append(present)
        return {**present, "c": "3"}

    before = {"a": "1"} if exists else {}
    assert change_config(session, NODE, change) == {**before, "b": "2", "c": "3"}
    assert seen == [before, {**before, "b": "2"}]
    assert read_config(other, NODE) == {**before, "b": "2", "c": "3"}


def test_a_node_without_a_place_is_an_error(store: EmbeddedStore) -> None:
    with pytest.raises(NoNodeError):
        change_config(store.connect(), "/nowhere/at/all", lambda _: {})


def _schema(ddl: str) -> bytes:
    return serialize_schema(parse_schema(ddl))
