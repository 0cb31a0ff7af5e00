"""Callers that wait for the answers of classic groups.

Invariant: a caller is forgotten when it has its answer, or has disconnected.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from millrace.errors import MillraceError
from millrace_broker.groups.requests import JoinAnswer, MemberIdGiven, SyncAnswer
from millrace_broker.quotas import parked


class Callers:
    """Waiting callers of one shard, by the numbers of their calls.

    The class is for the event loop's thread.
    """

    def __init__(self) -> None:
        self._waiting: Final[dict[int, asyncio.Future[Any]]] = {}

    def _future(self, call: int) -> asyncio.Future[Any]:
        waiting = self._waiting.get(call)
        if waiting is None:
            waiting = self._waiting[call] = asyncio.get_running_loop().create_future()
        return waiting

    def answer(self, call: int, answer: JoinAnswer | MemberIdGiven | SyncAnswer | MillraceError) -> None:
        """Answer a call, before or while its caller waits."""
        waiting = self._future(call)
        if waiting.done():
            return  # the caller has disconnected at the same time
        if isinstance(answer, MillraceError):
            waiting.set_exception(answer)
            waiting.exception()  # marks it as retrieved, because the caller may disconnect before it reads it
        else:
            waiting.set_result(answer)

    async def wait(self, call: int) -> Any:
        """Wait for the answer to a call, and raise it if it is an error. The wait is parked."""
        answer = self._future(call)
        try:
            if answer.done():
                return answer.result()
            with parked():
                return await answer
        finally:
            del self._waiting[call]
