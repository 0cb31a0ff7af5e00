"""The follower's side of a fetch session, Kafka's ``FetchSessionHandler``.

One request fetches all partitions that this broker follows from one source broker. A fetch session (KIP-227) lets a
request name only the partitions that changed since the previous request. With thousands of idle partitions a request
is empty. The leader's broker remembers the other partitions. Epochs number the requests; the side that notices a gap
starts a new session. The code is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

PartitionT = TypeVar("PartitionT", bound=Hashable)
FetchT = TypeVar("FetchT")
"""The fetch of a partition. Two fetches are equal only if the leader's answers to them are interchangeable."""

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
"""The epoch of a request that asks for a new session and names all partitions."""
EPOCH_MAX: Final = 2**31 - 1


def next_epoch(epoch: int) -> int:
    """Return the epoch of the request after that of ``epoch``. Epoch 1 follows the largest one."""
    return epoch + 1 if epoch < EPOCH_MAX else FIRST_EPOCH + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest(Generic[PartitionT, FetchT]):
    """A fetch request, with new, changed and forgotten partitions.

    A full request names all partitions.
    """

    session_id: int
    epoch: int
    fetches: Mapping[PartitionT, FetchT]
    forgotten: tuple[PartitionT, ...] = ()

    @property
    def is_full(self) -> bool:
        """True if the request names all partitions."""
        return self.epoch == FIRST_EPOCH


class FetchSession(Generic[PartitionT, FetchT]):
    """The follower's side of a session with one source broker. One request is in flight at a time."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = FIRST_EPOCH
        self._told: dict[PartitionT, FetchT] = {}

    def request(
        self, wanted: Mapping[PartitionT, FetchT], looked_at: Collection[PartitionT] | None = None
    ) -> SessionRequest[PartitionT, FetchT]:
        """Return the next request, for the partitions that are ready to be fetched.

        ``looked_at`` holds all partitions in which ``wanted`` may differ from the previous request; None means any. A
        changed partition moves to the end of the order in which the leader fills its answer. Every partition has its
        turn therefore, also when answers are full.
        """
        if self._epoch == FIRST_EPOCH:
            self._told = dict(wanted)
            return SessionRequest(session_id=self._id, epoch=FIRST_EPOCH, fetches=dict(wanted))
        looked_at = {**self._told, **wanted} if looked_at is None else looked_at
        changed = {each: wanted[each] for each in looked_at if each in wanted and self._told.get(each) != wanted[each]}
        forgotten = tuple(each for each in looked_at if each in self._told and each not in wanted)
        for each in forgotten:
            del self._told[each]
        self._told.update(changed)
        return SessionRequest(session_id=self._id, epoch=self._epoch, fetches=changed, forgotten=forgotten)

    def answered(self, session_id: int) -> None:
        """Take note that the leader answered the request under this session.

        Session 0 means that the leader keeps no session; the next request names all partitions.
        """
        if session_id == NO_SESSION:
            self._id, self._epoch = NO_SESSION, FIRST_EPOCH
        elif session_id != self._id:
            self._id, self._epoch = session_id, 1
        else:
            self._epoch = next_epoch(self._epoch)

    def failed(self, *, is_session_lost: bool) -> None:
        """Take note that the request was refused or not answered; the next request names all partitions.

        That request also ends the session, unless the leader has lost it.
        """
        if is_session_lost:
            self._id = NO_SESSION
        self._epoch = FIRST_EPOCH
