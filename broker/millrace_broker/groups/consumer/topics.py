"""Topics of the cluster, as subscriptions see them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import InvalidRegularExpressionError
from millrace_broker.metadata import TopicCatalog, TopicInfo

EXPRESSIONS_MAX: Final = 100
"""Regular expressions whose matches are kept. Each group keeps the matches of its members' expressions too."""


class SubscribedTopic(NamedTuple):
    """Topic with its number of partitions."""

    name: str
    topic_id: UUID
    partition_count: int


class ClusterTopics(Protocol):
    """Topics of the cluster (Kafka's ``CoordinatorMetadataImage``)."""

    @property
    def revision(self) -> int:
        """Number that grows with each change of topics."""

    def find(self, name: str) -> SubscribedTopic | None:
        """Return the topic of that name."""

    def name_of(self, topic_id: UUID) -> str | None:
        """Return the name of the topic with that id."""

    def matching(self, expression: str) -> frozenset[str]:
        """Return the names that a regular expression matches. Raises ``InvalidRegularExpressionError``."""


class CatalogTopics:
    """``ClusterTopics`` of the broker's catalog, with the matches of each regular expression."""

    def __init__(self, catalog: TopicCatalog) -> None:
        self._catalog: Final = catalog
        self._matches: Final = lru_cache(maxsize=EXPRESSIONS_MAX)(lambda each: matches(each, catalog.topics))
        self._matched_revision = -1

    @property
    def revision(self) -> int:
        """Revision of the catalog."""
        return self._catalog.revision

    def find(self, name: str) -> SubscribedTopic | None:
        """Return the topic of that name."""
        info: TopicInfo | None = self._catalog.topics.get(name)
        return None if info is None else SubscribedTopic(name, info.topic_id, len(info.partitions))

    def name_of(self, topic_id: UUID) -> str | None:
        """Return the name of the topic with that id."""
        info = self._catalog.topic_of_id(topic_id)
        return None if info is None else info.name

    def matching(self, expression: str) -> frozenset[str]:
        """Return the names that the whole expression matches. Raises ``InvalidRegularExpressionError``."""
        if self._matched_revision != self.revision:
            self._matches.cache_clear()
            self._matched_revision = self.revision
        return self._matches(expression)


def matches(expression: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names that an expression of RE2's syntax matches as a whole.

    RE2's time is linear in the length of a name, so that no expression of a client can stop the event loop. Raises
    ``InvalidRegularExpressionError``.
    """
    try:
        pc.match_substring_regex(pa.array([""]), pattern=expression)  # refuses what only the brackets below make valid
        array = pa.array(list(names), pa.string())
        matched = pc.match_substring_regex(array, pattern=rf"\A(?:{expression})\z")
    except pa.ArrowInvalid as error:
        raise InvalidRegularExpressionError(
            f"{expression!r} is not a valid regular expression of RE2: {error}"
        ) from None
    return frozenset(array.filter(matched).to_pylist())


def metadata_hash(topics: Mapping[str, SubscribedTopic]) -> int:
    """Return a number that changes with the topics, their ids and their partitions; 0 without topics."""
    if not topics:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for name, topic in sorted(topics.items()):
        digest.update(f"{name}/{topic.topic_id}/{topic.partition_count};".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)
