"""Share sessions of members of share groups (KIP-932). Kafka's class is ``ShareSessionCache``.

In a session a request names only the partitions that have changed, and a response has only those with news. A broker
has one session of each member. ShareFetch and ShareAcknowledge advance its epoch.

Invariants

- At most ``sessions_max`` sessions exist. While there are so many, no other member can begin one.
- They have at most ``partitions_max`` partitions together, and ``session_partitions_max`` each. A request for more is
  refused.
- A session's epoch grows with each request. A request with another epoch is refused, because one was lost.
- A session ends with its member's last request, or with the connection on which it began.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from millrace.errors import (
    InvalidShareSessionEpochError,
    ShareSessionLimitReachedError,
    ShareSessionNotFoundError,
)
from millrace_broker.api import ClientAddress
from millrace_broker.replication.core.fetch_session import FIRST_EPOCH, next_epoch

_logger = logging.getLogger(__name__)

SESSION_PARTITIONS_MAX: Final = 50_000
PARTITIONS_MAX: Final = 200_000
"""Partitions of all share sessions, which take up to 50 MB. Kafka bounds only the number of sessions."""
FINAL_EPOCH: Final = -1
"""The epoch of a request that ends its session."""


class SharedPartition(NamedTuple):
    """Partition as requests of a share session name it."""

    topic_id: UUID
    number: int


class SessionKey(NamedTuple):
    """Member of a share group (Kafka's ``ShareSessionKey``)."""

    group_id: str
    member_id: str


class ConnectionKey(NamedTuple):
    """Connection of a client to a listener."""

    listener_name: str
    client_address: ClientAddress


OnDisconnect = Callable[[Sequence[SharedPartition]], None]
"""Function that gets the partitions of a session that ended with its connection."""


class ShareSession:
    """One member's partitions at this broker."""

    def __init__(
        self,
        key: SessionKey,
        connection: ConnectionKey,
        partitions: Iterable[SharedPartition],
        on_disconnect: OnDisconnect,
    ) -> None:
        self.key: Final = key
        self.connection: Final = connection
        self.on_disconnect: Final = on_disconnect
        self.epoch = next_epoch(FIRST_EPOCH)
        """Epoch of the next request."""
        self._is_due: Final = dict.fromkeys(partitions, True)
        """Partitions, and whether the next response must have each of them."""

    def update(self, added: Iterable[SharedPartition], forgotten: Iterable[SharedPartition]) -> None:
        """Take the changes of a request."""
        for partition in added:
            self._is_due.setdefault(partition, True)
        for partition in forgotten:
            self._is_due.pop(partition, None)

    def __len__(self) -> int:
        return len(self._is_due)

    @property
    def partitions(self) -> list[SharedPartition]:
        """The partitions. Each request begins with another one, so that each has its turn."""
        every = list(self._is_due)
        first = self.epoch % len(every) if every else 0
        return every[first:] + every[:first]

    def has_news(self, partition: SharedPartition, *, has_records: bool, error_code: int) -> bool:
        """Return whether a response must have the partition, and remember what it says."""
        is_due = self._is_due.get(partition, True)
        if partition in self._is_due:
            self._is_due[partition] = bool(error_code)
        return is_due or has_records or bool(error_code)


class ShareSessions:
    """Sessions of all listeners. They belong to the event loop."""

    def __init__(
        self,
        sessions_max: int,
        *,
        session_partitions_max: int = SESSION_PARTITIONS_MAX,
        partitions_max: int = PARTITIONS_MAX,
    ) -> None:
        self._sessions_max: Final = sessions_max
        self._session_partitions_max: Final = session_partitions_max
        self._partitions_max: Final = partitions_max
        self._partitions = 0
        self._has_warned = False
        self._sessions: Final[dict[SessionKey, ShareSession]] = {}
        self._by_connection: Final[dict[ConnectionKey, set[SessionKey]]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        key: SessionKey,
        connection: ConnectionKey,
        partitions: Iterable[SharedPartition],
        on_disconnect: OnDisconnect,
    ) -> ShareSession:
        """Begin a session in place of the member's last one. Raises ``ShareSessionLimitReachedError``."""
        self._drop(key)
        if len(self._sessions) >= self._sessions_max:
            raise ShareSessionLimitReachedError(
                f"this broker has {self._sessions_max} share sessions, which is group.share.max.share.sessions: stop "
                "other members of share groups, or raise it"
            )
        session = ShareSession(key, connection, partitions, on_disconnect)
        self._check_room(session, len(session))
        self._sessions[key] = session
        self._partitions += len(session)
        self._by_connection.setdefault(connection, set()).add(key)
        return session

    def update(
        self, session: ShareSession, added: Iterable[SharedPartition], forgotten: Iterable[SharedPartition]
    ) -> None:
        """Take the changes of a request. Raises ``ShareSessionLimitReachedError``, and ends the session then."""
        count = len(session)
        session.update(added, forgotten)
        grown = len(session) - count
        self._partitions += grown
        if grown > 0:
            try:
                self._check_room(session, 0)
            except ShareSessionLimitReachedError:
                self._drop(session.key)
                raise

    def _check_room(self, session: ShareSession, further: int) -> None:
        if len(session) <= self._session_partitions_max and self._partitions + further <= self._partitions_max:
            return
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "share sessions with more than %d partitions, or %d together, are refused (logged once)",
                self._session_partitions_max,
                self._partitions_max,
            )
        raise ShareSessionLimitReachedError(
            f"a share session has at most {self._session_partitions_max} partitions, and all have at most "
            f"{self._partitions_max}: let members of the share group read fewer partitions"
        )

    def proceed(self, key: SessionKey, epoch: int) -> ShareSession:
        """Return the session of a request, and advance its epoch.

        Raises ``ShareSessionNotFoundError``, ``InvalidShareSessionEpochError``.
        """
        session = self.find(key)
        if epoch != session.epoch:
            raise InvalidShareSessionEpochError(
                f"the share session of member {key.member_id} of group {key.group_id} is at epoch {session.epoch}, not "
                f"{epoch}: begin a new one"
            )
        session.epoch = next_epoch(epoch)
        return session

    def find(self, key: SessionKey) -> ShareSession:
        """Return the session of a member. Raises ``ShareSessionNotFoundError``."""
        session = self._sessions.get(key)
        if session is None:
            raise ShareSessionNotFoundError(
                f"there is no share session of member {key.member_id} of group {key.group_id}: begin one with epoch 0"
            )
        return session

    def end(self, session: ShareSession) -> None:
        """End a session, unless the member has begun another one."""
        if self._sessions.get(session.key) is session:
            self._drop(session.key)

    def connection_closed(self, connection: ConnectionKey) -> None:
        """End the sessions that began on a connection."""
        for session in [self._sessions[key] for key in self._by_connection.get(connection, ())]:
            self._drop(session.key)
            session.on_disconnect(session.partitions)

    def _drop(self, key: SessionKey) -> None:
        session = self._sessions.pop(key, None)
        if session is None:
            return
        self._partitions -= len(session)
        keys = self._by_connection[session.connection]
        keys.discard(key)
        if not keys:
            del self._by_connection[session.connection]
