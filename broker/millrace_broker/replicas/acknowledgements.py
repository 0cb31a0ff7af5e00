"""Appends with acks=all that wait for replicas (Kafka's ``DelayedProduce``, one for each partition of a request)."""

from __future__ import annotations

import asyncio
from typing import Final

from millrace.errors import MillraceError, NotLeaderError, RequestTimedOutError
from millrace_broker.purgatory import DelayedOperation
from millrace_broker.replicas.hosted import HostedReplica


class Acknowledgement(DelayedOperation):
    """Waits until all replicas in sync have what is before ``end_offset``, or until this broker leads no more."""

    def __init__(self, replica: HostedReplica, end_offset: int, timeout_s: float) -> None:
        super().__init__(max(0, round(timeout_s * 1000)))
        self._replica: Final = replica
        self._leader: Final = replica.leader
        self._end_offset: Final = end_offset
        self._error: MillraceError | None = NotLeaderError(f"{replica.name}: the broker stops: fetch the metadata anew")
        self.ended: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()

    def try_complete(self) -> bool:
        """Look at the leader's machine."""
        if self._replica.machine.role is not self._leader:
            self._error = NotLeaderError(
                f"{self._replica.name} is led by another broker since this was appended: fetch the metadata anew"
            )
            return self.force_complete()
        try:
            if not self._leader.is_acknowledged(self._end_offset):
                return False
            self._error = None
        except MillraceError as error:
            self._error = error
        return self.force_complete()

    def on_complete(self) -> None:
        """Let the caller go on."""
        if not self.ended.done():
            self.ended.set_result(None)

    def on_expiration(self) -> None:
        """The replicas took too long; the records are in the log and may come to count all the same."""
        self._error = RequestTimedOutError(
            f"{self._replica.name}: appended, but not all replicas in sync {sorted(self._leader.isr)} had it in time"
        )

    def check(self) -> None:
        """Raise unless it is acknowledged, once ended."""
        if self._error is not None:
            raise self._error
