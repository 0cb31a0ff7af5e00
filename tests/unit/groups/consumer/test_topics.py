"""Topics of the catalog, as consumer groups see them."""

from __future__ import annotations

import uuid
import weakref
from types import SimpleNamespace
from typing import cast

from millrace_broker.groups.consumer.topics import EXPRESSIONS_MAX, CatalogTopics, SubscribedTopic, metadata_hash
from millrace_broker.metadata import TopicCatalog


def topic(name: str, number: int, count: int) -> SimpleNamespace:
    return SimpleNamespace(name=name, topic_id=uuid.UUID(int=number), partitions=[None] * count)


def test_a_change_of_the_catalog_renews_the_matches() -> None:
    catalog = SimpleNamespace(revision=0, topics={"a1": topic("a1", 1, 2)})
    topics = CatalogTopics(cast(TopicCatalog, catalog))
    assert topics.matching("a.") == {"a1"}
    catalog.topics["a2"] = topic("a2", 2, 1)
    assert topics.matching("a.") == {"a1"}, "the revision tells of the change"
    catalog.revision = 1
    assert topics.revision == 1
    assert topics.matching("a.") == {"a1", "a2"}
    assert topics.matching("a.") is topics.matching("a."), "an expression is matched once"
    assert topics.matching("b.") == frozenset()


def test_the_number_of_expressions_whose_matches_are_kept_is_limited() -> None:
    catalog = SimpleNamespace(revision=0, topics={"a": topic("a", 1, 2)})
    topics = CatalogTopics(cast(TopicCatalog, catalog))
    first = weakref.ref(topics.matching("a"))
    for number in range(EXPRESSIONS_MAX - 1):
        topics.matching(f"a|{number}")
    assert first() is not None
    topics.matching("a|b")
    assert first() is None


def test_topics_are_found_by_name_and_by_id() -> None:
    known = topic("a", 1, 2)
    catalog = SimpleNamespace(topics={"a": known}, topic_of_id={known.topic_id: known}.get)
    topics = CatalogTopics(cast(TopicCatalog, catalog))
    assert topics.find("a") == SubscribedTopic("a", known.topic_id, 2)
    assert topics.find("b") is None
    assert topics.name_of(known.topic_id) == "a"
    assert topics.name_of(uuid.UUID(int=9)) is None


def test_the_hash_differs_with_each_name_id_and_count() -> None:
    def hashed(*topics: tuple[str, int, int]) -> int:
        return metadata_hash(
            {name: SubscribedTopic(name, uuid.UUID(int=number), count) for name, number, count in topics}
        )

    assert hashed() == 0
    assert hashed(("a", 1, 2), ("b", 3, 4)) == hashed(("b", 3, 4), ("a", 1, 2))
    different = [
        hashed(("a", 1, 2)),
        hashed(("b", 1, 2)),
        hashed(("a", 2, 2)),
        hashed(("a", 1, 3)),
        hashed(("a", 1, 2), ("b", 3, 4)),
    ]
    assert len(set(different)) == len(different)
    assert all(-(2**63) <= each < 2**63 for each in different), "a record has it as a signed number of 8 bytes"
    many = [hashed(("a", 1, count)) for count in range(20)]
    assert min(many) < -(2**55), "the hash has all 8 bytes"
    assert max(many) >= 2**55
