"""Fetch sessions of consumers (KIP-227). Kafka's classes are ``FetchManager`` and ``FetchSessionCache``.

In a session a request names only what has changed since the one before, and a response has only partitions with news.

Invariants

- At most ``sessions_max`` sessions exist, with ``partitions_max`` partitions together and ``session_partitions_max``
  each. A new or larger one takes the place of sessions that were not used for ``IDLE_S``. While there is no room,
  clients fetch without a session, as they can always do.
- All requests of a session name topics in the same way, by name or by id.
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

from millrace.errors import FetchSessionIdNotFoundError, FetchSessionTopicIdError, InvalidFetchSessionEpochError
from millrace.kafka_protocol.calls.fetch import FetchPartition, FetchRequest, PartitionData
from millrace_broker.replication.core.fetch_session import FIRST_EPOCH, next_epoch

_logger = logging.getLogger(__name__)

SESSIONS_MAX: Final = 1000
"""Kafka's default of ``max.incremental.fetch.session.cache.slots``."""
IDLE_S: Final = 120.0
"""Kafka's default of ``min.incremental.fetch.session.eviction.ms``."""
SESSION_PARTITIONS_MAX: Final = 50_000
PARTITIONS_MAX: Final = 200_000
"""Partitions of all sessions, which take up to 100 MB. Kafka bounds only the number of sessions."""
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

    def __init__(
        self, session_id: int, now: float, partitions: dict[Key, FetchPartition], *, has_topic_ids: bool
    ) -> None:
        self.session_id: Final = session_id
        self.has_topic_ids: Final = has_topic_ids
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

    def __init__(
        self,
        sessions_max: int = SESSIONS_MAX,
        *,
        session_partitions_max: int = SESSION_PARTITIONS_MAX,
        partitions_max: int = PARTITIONS_MAX,
    ) -> None:
        self._sessions_max: Final = sessions_max
        self._session_partitions_max: Final = session_partitions_max
        self._partitions_max: Final = partitions_max
        self._partitions = 0
        self._sessions: Final[OrderedDict[int, ConsumerSession]] = OrderedDict()  # the one used last at the end
        self._warned_at = -math.inf

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(self, message: FetchRequest, now: float, *, has_topic_ids: bool) -> FetchPlan:
        """Find or begin the session of a request, which names topics by id or by name.

        Raises ``FetchSessionIdNotFoundError``, ``InvalidFetchSessionEpochError``, ``FetchSessionTopicIdError``.
        """
        named = {
            (FetchedTopic(topic.topic, topic.topic_id), each.partition): each
            for topic in message.topics
            for each in topic.partitions
        }
        if message.session_epoch in (FIRST_EPOCH, _FINAL_EPOCH):
            self._take(message.session_id)
            if not named or message.session_epoch == _FINAL_EPOCH:
                return FetchPlan(named, None, is_incremental=False)
            session = ConsumerSession(self._new_id(), now, named, has_topic_ids=has_topic_ids)
            return FetchPlan(named, session if self._keep(session, now) else None, is_incremental=False)
        session = self._continued(message, now, has_topic_ids=has_topic_ids)
        self._take(session.session_id)
        session.update(
            named,
            (
                (FetchedTopic(topic.topic, topic.topic_id), partition)
                for topic in message.forgotten_topics_data
                for partition in topic.partitions
            ),
        )
        if not session.partitions:
            return FetchPlan({}, None, is_incremental=False)
        is_kept = self._keep(session, now)
        return FetchPlan(dict(session.partitions), session if is_kept else None, is_incremental=is_kept)

    def _take(self, session_id: int) -> None:
        """Remove a session if there is one."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)

    def _keep(self, session: ConsumerSession, now: float) -> bool:
        """Add a session if there is room, in place of idle ones. Return whether there was."""
        count = len(session.partitions)
        if count > self._session_partitions_max:
            self._warn(now)
            return False
        while len(self._sessions) >= self._sessions_max or self._partitions + count > self._partitions_max:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.used_at < IDLE_S:
                self._warn(now)
                return False
            self._take(oldest.session_id)
        self._sessions[session.session_id] = session
        self._partitions += count
        return True

    def _new_id(self) -> int:
        session_id = random.randint(1, _SESSION_ID_MAX)
        while session_id in self._sessions:
            session_id = random.randint(1, _SESSION_ID_MAX)
        return session_id

    def _warn(self, now: float) -> None:
        """Log once a minute that clients get no sessions."""
        if now - self._warned_at >= _WARNING_S:
            self._warned_at = now
            _logger.warning(
                "%d fetch sessions are in use, with %d partitions, and none was idle for %d s: further clients, and "
                "those with more than %d partitions, fetch without a session",
                len(self._sessions),
                self._partitions,
                IDLE_S,
                self._session_partitions_max,
            )

    def _continued(self, message: FetchRequest, now: float, *, has_topic_ids: bool) -> ConsumerSession:
        session = self._sessions.get(message.session_id)
        if session is None:
            raise FetchSessionIdNotFoundError(f"there is no fetch session {message.session_id}: begin a new one")
        if message.session_epoch != session.epoch:
            raise InvalidFetchSessionEpochError(
                f"fetch session {message.session_id} is at epoch {session.epoch}, not {message.session_epoch}: begin a "
                "new one"
            )
        if has_topic_ids != session.has_topic_ids:
            raise FetchSessionTopicIdError(
                f"fetch session {message.session_id} has topic {'ids' if session.has_topic_ids else 'names'}, and the "
                f"request has {'ids' if has_topic_ids else 'names'}: begin a new one"
            )
        session.used_at = now
        return session
