"""The leader's side of fetch sessions (KIP-227), Kafka's ``FetchSession``.

The leader's broker remembers the fetches of a follower, so that requests name only changed partitions.

Invariants: A session belongs to one follower. Its requests are numbered, and a request out of order is refused, so that
both sides always mean the same partitions. Answers are filled in the order of partitions. Partitions that a request
names, and partitions that were answered with records, move to the end.

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
from millrace_broker.replication.core import UNKNOWN_EPOCH
from millrace_broker.replication.core.fetch_session import FIRST_EPOCH, NO_SESSION, next_epoch

SESSIONS_MAX: Final = 1000
"""``max.incremental.fetch.session.cache.slots``. The least recently used session is evicted first."""
TOLD_NOTHING: Final = (-1, -1)


@dataclass(slots=True)
class FollowerFetch:
    """A follower's fetch of one partition.

    ``told``: the high watermark and log start offset in the last answer whose values the follower uses. It ignores
    the values of an answer with an error or a divergence. ``is_noted``: the leader's state machine has this fetch,
    and found no problem.
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
    """A fetch session. ``epoch`` is the number of its next request.

    ``stirred`` has the partitions that may have records or changed offsets to report, in the order of their turns. A
    session may have thousands of other partitions; requests and appends never iterate over those.
    """

    def __init__(self, session_id: int, follower: int) -> None:
        self.id: Final = session_id
        self.follower: Final = follower
        self.epoch = 1
        self.broker_epoch = UNKNOWN_EPOCH
        """The broker epoch of the follower in its last request."""
        self.looked_at = (-1, 0)
        """The role number, and the time in ms, of the last check of all partitions."""
        self.answered_in = 0
        """The turn of ``LeadershipChecks`` at the last answer."""
        self.asked_after = 0
        """The turn of the answer after which the last request was sent."""
        self.fetches: Final[dict[PartitionKey, FollowerFetch]] = {}
        self.stirred: Final[dict[PartitionKey, None]] = {}

    def take(self, changed: Mapping[PartitionKey, FollowerFetch], forgotten: list[PartitionKey]) -> None:
        """Apply the changes of a request."""
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
        """Mark a partition, because it may have records or offsets to report."""
        if key in self.fetches:
            self.stirred[key] = None

    def stir_all(self) -> None:
        """Mark all partitions."""
        for key in self.fetches:
            self.stirred[key] = None

    def settle(self, key: PartitionKey) -> None:
        """Unmark a partition, because the follower has all its records and offsets."""
        self.stirred.pop(key, None)

    def to_the_end(self, key: PartitionKey) -> None:
        """Move a partition to the end after its turn."""
        self.stirred.pop(key, None)
        self.stirred[key] = None


class FetchSessions:
    """The fetch sessions of all followers of this broker."""

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self._max: Final = sessions_max
        self._sessions: Final[OrderedDict[int, FollowerSession]] = OrderedDict()
        self._of_followers: Final[defaultdict[int, dict[int, FollowerSession]]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._sessions)

    def of_request(self, session_id: int, epoch: int, follower: int) -> FollowerSession:
        """Return the session of a request. The first epoch ends the named session and starts a new one.

        Raises ``FetchSessionIdNotFoundError``, ``InvalidFetchSessionEpochError``.
        """
        if epoch == FIRST_EPOCH:
            self._forget(self._sessions.pop(session_id, None))
            return self._new(follower)
        session = self._sessions.get(session_id)
        if session is None or session.follower != follower:
            raise FetchSessionIdNotFoundError(
                f"broker {follower} has no fetch session {session_id}: begin a new session"
            )
        if epoch != session.epoch:
            raise InvalidFetchSessionEpochError(
                f"fetch session {session_id} expects epoch {session.epoch}, not {epoch}: begin a new session"
            )
        session.epoch = next_epoch(epoch)
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
        """Mark a partition in the sessions of its followers."""
        for follower in followers:
            for session in self._of_followers.get(follower, {}).values():
                session.stir(key)

    def follows_since(self, follower: int, key: PartitionKey, epoch: int, turn: int) -> bool:
        """Return whether a follower has sent a request after an answer of this turn, and follows a leader epoch."""
        return any(
            session.asked_after >= turn and key in session.fetches and session.fetches[key].leader_epoch == epoch
            for session in self._of_followers.get(follower, {}).values()
        )
