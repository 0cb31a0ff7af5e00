"""Fetch sessions of consumers (KIP-227). Kafka's classes are ``FetchManager`` and ``FetchSessionCache``.

In a session a request names only what has changed since the one before, and a response has only partitions with news.

Invariants

- At most ``sessions_max`` sessions exist. A new one takes the place of a session that was not used for ``IDLE_S``.
  While there is no such session, new clients fetch without a session, as they can always do.
- A session's epoch grows with each request. A request with another epoch is refused, because a request was lost.
- Partitions whose records were sent move to the end, so that each partition has its turn.
"""

from __future__ import annotations

import logging
import math
import random
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple
from uuid import UUID

from millrace.errors import FetchSessionIdNotFoundError, InvalidFetchSessionEpochError
from millrace.kafka_protocol.calls.fetch import FetchPartition, FetchRequest, PartitionData
from millrace_broker.replication.core.fetch_session import FIRST_EPOCH, next_epoch

_logger = logging.getLogger(__name__)

SESSIONS_MAX: Final = 1000
"""Kafka's default of ``max.incremental.fetch.session.cache.slots``."""
IDLE_S: Final = 120.0
"""Kafka's default of ``min.incremental.fetch.session.eviction.ms``."""
_WARNING_S: Final = 60.0
_FINAL_EPOCH: Final = -1
"""The epoch of a request that ends its session."""
_SESSION_ID_MAX: Final = 2**31 - 1


class FetchedTopic(NamedTuple):
    """A topic in a request.

    Before version 13 a request names topics by name, and from then on by id.
    """

    name: str
    topic_id: UUID


Key = tuple[FetchedTopic, int]


class _Sent(NamedTuple):
    """Offsets of a partition in the last response."""

    high_watermark: int
    log_start_offset: int
    is_error: bool


class ConsumerSession:
    """One client's partitions with the offsets in the last response, Kafka's ``FetchSession``."""

    def __init__(self, session_id: int, now: float, partitions: dict[Key, FetchPartition]) -> None:
        self.session_id: Final = session_id
        self.partitions: Final = OrderedDict(partitions)
        self.used_at = now
        self.epoch = next_epoch(FIRST_EPOCH)
        """Epoch of the next request."""
        self._sent: Final[dict[Key, _Sent]] = {}

    def update(self, changed: dict[Key, FetchPartition], forgotten: Iterable[Key]) -> None:
        """Take the changes of a request."""
        for key, wanted in changed.items():
            self.partitions[key] = wanted
        for key in forgotten:
            self.partitions.pop(key, None)
            self._sent.pop(key, None)
        self.epoch = next_epoch(self.epoch)

    def has_news(self, key: Key, data: PartitionData) -> bool:
        """Return whether a response must have the partition, and remember the partition's offsets."""
        now = _Sent(data.high_watermark, data.log_start_offset, bool(data.error_code))
        before = self._sent.get(key)
        if key in self.partitions:
            self._sent[key] = now
            if data.records:
                self.partitions.move_to_end(key)
        return (
            bool(data.records)
            or now != before
            or now.is_error
            or data.preferred_read_replica >= 0
            or data.diverging_epoch.end_offset >= 0
        )


class FetchPlan(NamedTuple):
    """The partitions that a request reads.

    ``session`` is None for a request without a session.
    """

    partitions: dict[Key, FetchPartition]
    session: ConsumerSession | None
    is_incremental: bool


class ConsumerSessions:
    """Sessions of all listeners, by id. They belong to the event loop."""

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self._sessions_max: Final = sessions_max
        self._sessions: Final[OrderedDict[int, ConsumerSession]] = OrderedDict()  # the one used last at the end
        self._warned_at = -math.inf

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(self, message: FetchRequest, now: float) -> FetchPlan:
        """Find or begin the session of a request.

        Raises ``FetchSessionIdNotFoundError``, ``InvalidFetchSessionEpochError``.
        """
        named = {
            (FetchedTopic(topic.topic, topic.topic_id), each.partition): each
            for topic in message.topics
            for each in topic.partitions
        }
        if message.session_epoch in (FIRST_EPOCH, _FINAL_EPOCH):
            self._sessions.pop(message.session_id, None)
            session = self._begun(named, now) if named and message.session_epoch == FIRST_EPOCH else None
            return FetchPlan(named, session, is_incremental=False)
        session = self._continued(message, now)
        session.update(
            named,
            (
                (FetchedTopic(topic.topic, topic.topic_id), partition)
                for topic in message.forgotten_topics_data
                for partition in topic.partitions
            ),
        )
        if not session.partitions:
            del self._sessions[session.session_id]
            return FetchPlan({}, None, is_incremental=False)
        return FetchPlan(dict(session.partitions), session, is_incremental=True)

    def _begun(self, partitions: dict[Key, FetchPartition], now: float) -> ConsumerSession | None:
        if len(self._sessions) >= self._sessions_max:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.used_at < IDLE_S:
                self._warn(now)
                return None
            del self._sessions[oldest.session_id]
        session_id = random.randint(1, _SESSION_ID_MAX)
        while session_id in self._sessions:
            session_id = random.randint(1, _SESSION_ID_MAX)
        session = self._sessions[session_id] = ConsumerSession(session_id, now, partitions)
        return session

    def _warn(self, now: float) -> None:
        """Log once a minute that clients get no sessions."""
        if now - self._warned_at >= _WARNING_S:
            self._warned_at = now
            _logger.warning(
                "%d fetch sessions are in use, and none was idle for %d s: further clients fetch without a session",
                self._sessions_max,
                IDLE_S,
            )

    def _continued(self, message: FetchRequest, now: float) -> ConsumerSession:
        session = self._sessions.get(message.session_id)
        if session is None:
            raise FetchSessionIdNotFoundError(f"there is no fetch session {message.session_id}: begin a new one")
        if message.session_epoch != session.epoch:
            raise InvalidFetchSessionEpochError(
                f"fetch session {message.session_id} is at epoch {session.epoch}, not {message.session_epoch}: begin a "
                "new one"
            )
        session.used_at = now
        self._sessions.move_to_end(session.session_id)
        return session
