"""Turns of long loops in the event loop.

A request may name a hundred thousand partitions. A loop over them that never waits would delay all other clients, and
the broker's own heartbeats, by seconds.
"""

from __future__ import annotations

import asyncio
from typing import Final

ITEMS: Final = 128
"""Items of a turn, which takes 0.5 to 5 ms. A number of items, and no time, so that a simulation repeats its order."""


class Turns:
    """Turns of one loop.

    The loop calls ``next`` before each item. After every ``ITEMS`` items, other work can run.
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items = 0

    async def next(self) -> None:
        """Count an item, and end the turn if it is complete."""
        self._items += 1
        if self._items % ITEMS == 0:
            await asyncio.sleep(0)
