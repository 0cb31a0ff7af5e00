"""What followers fetch, kept by the leader's broker, so that their requests name only what has changed (KIP-227).

Invariants: a session belongs to one follower; its requests are numbered, and one that is not the next is refused, so
that both sides always mean the same partitions. The order of partitions is that in which answers are filled: what a
request names, and what was answered with records, goes to its end.

Source: Kafka's ``FetchSession`` and ``FetchManager``.
"""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from millrace.errors import FetchSessionIdNotFoundError, InvalidFetchSessionEpochError
from millrace_broker.purgatory import PartitionKey
from millrace_broker.replication.core.fetch_session import EPOCH_MAX, FIRST_EPOCH, NO_SESSION

SESSIONS_MAX: Final = 1000
"""``max.incremental.fetch.session.cache.slots``: the one that was used last longest ago goes first."""
TOLD_NOTHING: Final = (-1, -1)


@dataclass(slots=True)
class FollowerFetch:
    """What a follower wants of a partition.

    ``told``: the high watermark and the log's start that it was told last, in an answer from which it takes them: in
    one with an error, or with where the logs part, it looks at nothing else. ``is_noted``: the leader's machine knows
    of it, and there was nothing wrong with it.
    """

    topic_id: bytes
    offset: int
    leader_epoch: int
    last_epoch: int | None
    log_start_offset: int
    max_bytes: int
    told: tuple[int, int] = TOLD_NOTHING
    is_noted: bool = False


class FollowerSession:
    """A session. ``epoch`` is the number of its next request.

    ``stirred`` are those of its partitions of which there may be something to give or to tell, in the order in which
    they have their turns: a session may have thousands of others, which no request and no append is to go through.
    """

    def __init__(self, session_id: int, follower: int) -> None:
        self.id: Final = session_id
        self.follower: Final = follower
        self.epoch = 1
        self.looked_at = (-1, 0)
        """Of which roles of this broker, and when (ms), all of its partitions were looked at."""
        self.fetches: Final[dict[PartitionKey, FollowerFetch]] = {}
        self.stirred: Final[dict[PartitionKey, None]] = {}

    def take(self, changed: Mapping[PartitionKey, FollowerFetch], forgotten: list[PartitionKey]) -> None:
        """Take over what a request names."""
        for key in forgotten:
            self.fetches.pop(key, None)
            self.stirred.pop(key, None)
        for key, fetch in changed.items():
            known = self.fetches.get(key)
            if known is not None and (known.topic_id, known.leader_epoch) == (fetch.topic_id, fetch.leader_epoch):
                fetch.told = known.told
            self.fetches[key] = fetch
            self.stir(key)

    def stir(self, key: PartitionKey) -> None:
        """There may be something new of a partition."""
        if key in self.fetches:
            self.stirred[key] = None

    def stir_all(self) -> None:
        """There may be something new of any."""
        for key in self.fetches:
            self.stirred[key] = None

    def settle(self, key: PartitionKey) -> None:
        """All that there is of a partition has been given and told."""
        self.stirred.pop(key, None)

    def to_the_end(self, key: PartitionKey) -> None:
        """A partition has had its turn."""
        self.stirred.pop(key, None)
        self.stirred[key] = None


class FetchSessions:
    """The sessions of all followers of this broker."""

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self._max: Final = sessions_max
        self._sessions: Final[OrderedDict[int, FollowerSession]] = OrderedDict()
        self._of_followers: Final[defaultdict[int, dict[int, FollowerSession]]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._sessions)

    def of_request(self, session_id: int, epoch: int, follower: int) -> FollowerSession:
        """The session that a request belongs to; a new one for the first epoch, which ends the one named.

        Raises ``FetchSessionIdNotFoundError``, ``InvalidFetchSessionEpochError``.
        """
        if epoch == FIRST_EPOCH:
            self._forget(self._sessions.pop(session_id, None))
            return self._new(follower)
        session = self._sessions.get(session_id)
        if session is None or session.follower != follower:
            raise FetchSessionIdNotFoundError(f"no fetch session {session_id} of broker {follower}: begin a new one")
        if epoch != session.epoch:
            raise InvalidFetchSessionEpochError(
                f"request {epoch} of fetch session {session_id}, the next one is {session.epoch}: begin a new session"
            )
        session.epoch = epoch + 1 if epoch < EPOCH_MAX else 1
        self._sessions.move_to_end(session_id)
        return session

    def _new(self, follower: int) -> FollowerSession:
        while len(self._sessions) >= self._max:
            self._forget(self._sessions.popitem(last=False)[1])
        while (session_id := random.randrange(1, 2**31)) in self._sessions or session_id == NO_SESSION:
            pass
        session = self._sessions[session_id] = FollowerSession(session_id, follower)
        self._of_followers[follower][session_id] = session
        return session

    def _forget(self, session: FollowerSession | None) -> None:
        if session is not None:
            del self._of_followers[session.follower][session.id]

    def stir(self, followers: Iterable[int], key: PartitionKey) -> None:
        """There may be something new of a partition for its followers."""
        for follower in followers:
            for session in self._of_followers.get(follower, {}).values():
                session.stir(key)
