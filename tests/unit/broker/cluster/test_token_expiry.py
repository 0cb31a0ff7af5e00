"""Tests of the removal of expired delegation tokens.

The tests cover the time while the removal runs, and its close.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import cast

from millrace.errors import StorageError
from millrace_broker.cluster.token_expiry import TokenExpiry
from millrace_broker.runtime import Executors
from millrace_broker.security import DelegationTokens

from ....integration.waiting import STALL_S


class Tokens:
    """Delegation tokens whose removal calls a function, and counts the calls."""

    is_enabled = True

    def __init__(self, remove: Callable[[], None]) -> None:
        self.count = 0
        self._remove = remove

    def remove_expired(self) -> int:
        self.count += 1
        self._remove()
        return self.count


def test_no_removal_begins_after_the_close() -> None:
    began, may_end = threading.Event(), threading.Event()

    def remove() -> None:
        began.set()
        assert may_end.wait(STALL_S)

    async def scenario() -> None:
        executors, tokens = Executors(1, time.monotonic), Tokens(remove)
        expiry = TokenExpiry(cast("DelegationTokens", tokens), executors, 1)
        expiry.start()
        assert await asyncio.to_thread(began.wait, STALL_S)
        await expiry.close()
        may_end.set()
        await executors.administer(lambda: None)
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
        executors.close()
        assert tokens.count == 1

    asyncio.run(scenario())


def test_removals_go_on_after_any_error() -> None:
    errors: list[Exception] = [RuntimeError("a bug"), StorageError("the disk has failed")]
    ended = threading.Event()

    def remove() -> None:
        if errors:
            raise errors.pop()
        ended.set()

    async def scenario() -> None:
        executors = Executors(1, time.monotonic)
        expiry = TokenExpiry(cast("DelegationTokens", Tokens(remove)), executors, 1)
        expiry.start()
        assert await asyncio.to_thread(ended.wait, STALL_S)
        await expiry.close()
        executors.close()

    asyncio.run(scenario())
