"""Topics to which the members of a consumer group subscribe."""

from __future__ import annotations

from typing import Final

from millrace.coordinator_records import read_subscribed_topics
from millrace.errors import InvalidRecordError, UnsupportedVersionError
from millrace_broker.groups.members import GroupMembers
from millrace_broker.groups.requests import CONSUMER
from millrace_broker.groups.states import GroupStateMachine


class SubscribedTopics:
    """Topics of one group, read once for each generation (Kafka's ``computeSubscribedTopics``)."""

    def __init__(self, machine: GroupStateMachine, members: GroupMembers) -> None:
        self._machine: Final = machine
        self._members: Final = members
        self._generation_id: int | None = None
        self._topics: frozenset[str] | None = None

    def get(self) -> frozenset[str] | None:
        """Return the topics; None if they are unknown, because the group is not one of consumers."""
        if self._generation_id != self._machine.generation_id:
            self._generation_id, self._topics = self._machine.generation_id, self._read()
        return self._topics

    def _read(self) -> frozenset[str] | None:
        if self._machine.protocol_type != CONSUMER:
            return None
        if not len(self._members):
            return frozenset()
        if self._machine.protocol_name is None:
            return None
        topics: set[str] = set()
        for member in self._members:
            subscribed = topics_of(member.metadata(self._machine.protocol_name))
            if subscribed is None:
                return None
            topics |= subscribed
        return frozenset(topics)


def topics_of(subscription: bytes) -> frozenset[str] | None:
    """Return the topics of a consumer's subscription, None for bytes of another kind."""
    try:
        return frozenset(read_subscribed_topics(subscription))
    except (InvalidRecordError, UnsupportedVersionError):
        return None
