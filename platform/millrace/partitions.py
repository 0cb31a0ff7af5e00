"""Partitions, grouped by topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

TopicT = TypeVar("TopicT")


def numbers_by_topic(partitions: Iterable[tuple[TopicT, int]]) -> dict[TopicT, tuple[int, ...]]:
    """Return the partition numbers of each topic, which is a name or an id. Topics and numbers keep their order."""
    topics: dict[TopicT, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return {topic: tuple(numbers) for topic, numbers in topics.items()}
