"""Requests for ISR changes to the controller, Kafka's ``AlterPartitionManager`` (KIP-497).

Changes of several partitions share one request.

Invariants

* One request is in flight at a time. It is retried, at the controller of that moment, until it is answered.
* The last change of a partition counts. A leader asks again only after an answer to its last change, or after another
  decision of the controller.
* A request of a fenced broker is not repeated under its next broker epoch. The broker may lead again in the same leader
  epoch. The high watermark then no longer waits for a follower that the request would add to the ISR.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from millrace.errors import (
    ClientClosedError,
    MillraceError,
    NotLeaderError,
    StaleBrokerEpochError,
    UnknownServerError,
)
from millrace_broker.decisions import IsrChange, Leadership, TopicPartition
from millrace_broker.runtime import cancel_and_wait

_logger = logging.getLogger(__name__)

_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0

Changes = Mapping[TopicPartition, IsrChange]
Send = Callable[[Changes], Awaitable[Mapping[TopicPartition, Leadership | MillraceError]]]
"""Sends changes to the controller; raises ``MillraceError`` if the controller does not answer."""


class AlterPartitionManager:
    """The ISR changes of this broker's leaders. For the event loop's thread."""

    def __init__(self, send: Send) -> None:
        self._send: Final = send
        self._pending: dict[TopicPartition, tuple[IsrChange, asyncio.Future[Leadership]]] = {}
        self._sent: dict[TopicPartition, tuple[IsrChange, asyncio.Future[Leadership]]] = {}
        """The changes in flight."""
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def alter(self, partition: TopicPartition, change: IsrChange) -> Leadership:
        """Ask for an ISR; returns the new leadership.

        Raises the controller's error for this partition, and ``NotLeaderError`` when the broker is fenced. Raises
        ``ClientClosedError`` when the broker stops, or when another change of the partition replaces an unsent one.
        """
        if self._is_closed:
            raise ClientClosedError("the broker stops")
        future: asyncio.Future[Leadership] = asyncio.get_running_loop().create_future()
        before = self._pending.pop(partition, None)
        if before is not None:
            _fail(before[1], ClientClosedError(f"{partition}: a newer ISR change replaces this one"))
        self._pending[partition] = change, future
        if self._task is None:
            self._task = asyncio.create_task(self._send_all(), name="millrace-alter-partition")
        return await future

    async def close(self) -> None:
        """Drop all changes and accept no more."""
        self._is_closed = True
        await self._drop(ClientClosedError("the broker stops"))

    async def fence(self) -> None:
        """Drop all changes, because the controller considered this broker dead and it no longer leads anything."""
        await self._drop(
            NotLeaderError(
                "the controller considered this broker dead, and elects other leaders: fetch the metadata again"
            )
        )

    async def _drop(self, reason: MillraceError) -> None:
        dropped = [*self._sent.values(), *self._pending.values()]
        self._sent, self._pending = {}, {}
        await cancel_and_wait(self._task)
        for _, future in dropped:
            _fail(future, reason)

    async def _send_all(self) -> None:
        try:
            while self._pending:
                sent = self._sent = self._pending
                self._pending = {}
                answers = await self._until_answered({each: change for each, (change, _) in sent.items()})
                for partition, (_, future) in sent.items():
                    answer = answers.get(partition) or UnknownServerError(
                        f"the controller's answer does not contain {partition}"
                    )
                    if isinstance(answer, MillraceError):
                        _fail(future, answer)
                    elif not future.done():
                        future.set_result(answer)
        finally:
            self._task, self._sent = None, {}

    async def _until_answered(self, changes: Changes) -> Mapping[TopicPartition, Leadership | MillraceError]:
        pause_s = _PAUSE_FIRST_S
        while True:
            try:
                return await self._send(changes)
            except StaleBrokerEpochError as error:
                _logger.info("the controller does not know this broker's last registration yet: %s", error.message)
            except MillraceError as error:
                _logger.debug("%d ISR changes are sent again: %s", len(changes), error.message)
            except Exception:
                _logger.exception("%d ISR changes are sent again", len(changes))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)


def _fail(future: asyncio.Future[Leadership], error: MillraceError) -> None:
    if not future.done():
        future.set_exception(error)
