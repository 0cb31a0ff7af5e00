"""One request to a source broker for all partitions that are followed from there, by a fetch session. Pure.

A session (KIP-227) lets a request name only what has changed since the one before: with thousands of idle partitions it
is empty. The leader keeps what it was told; epochs number the requests, and whoever notices a gap begins anew.

Source: Kafka's ``FetchSessionHandler``.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from millrace_broker.replication.core.follower import FetchFrom

PartitionT = TypeVar("PartitionT", bound=Hashable)

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
"""Of a request that asks for a new session and names all partitions."""
EPOCH_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest(Generic[PartitionT]):
    """A fetch: partitions that are new or have changed, and those to forget. A full one names all."""

    session_id: int
    epoch: int
    fetches: Mapping[PartitionT, FetchFrom]
    forgotten: tuple[PartitionT, ...] = ()

    @property
    def is_full(self) -> bool:
        """Whether it names all partitions."""
        return self.epoch == FIRST_EPOCH


class FetchSession(Generic[PartitionT]):
    """The follower's side of a session with one source broker. One request at a time."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = FIRST_EPOCH
        self._told: dict[PartitionT, FetchFrom] = {}

    def request(
        self, wanted: Mapping[PartitionT, FetchFrom], looked_at: Collection[PartitionT] | None = None
    ) -> SessionRequest[PartitionT]:
        """The next request, for the partitions that are ready to be fetched.

        ``looked_at`` has all in which ``wanted`` may differ from the request before; None: any. What has changed goes
        to the end of the order in which the leader fills its answer, so that with an answer that is full every
        partition has its turn.
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
        """The request was answered under this session; 0: the leader keeps none, and the next names all again."""
        if session_id == NO_SESSION:
            self._id, self._epoch = NO_SESSION, FIRST_EPOCH
        elif session_id != self._id:
            self._id, self._epoch = session_id, 1
        else:
            self._epoch = self._epoch + 1 if self._epoch < EPOCH_MAX else 1

    def failed(self, *, is_session_lost: bool) -> None:
        """The request was refused or not answered: the next names all, and ends the session unless it is gone."""
        if is_session_lost:
            self._id = NO_SESSION
        self._epoch = FIRST_EPOCH
