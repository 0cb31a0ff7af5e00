"""Writer of responses to a connection, with few copies.

Invariant: at most one response is being written. The writer ``is_idle`` once the kernel has all of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from millrace_broker.listeners.wire_calls import Buffer

_CHUNK_BYTES: Final = 256 * 1024
"""Part of a large response that the transport gets at a time.

The transport copies bytes that the kernel does not take.
"""


class ResponseWriter:
    """Writer of one connection.

    The connection calls ``pause`` and ``resume`` when its transport does.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=0)  # so that ``resume`` shows when the kernel has everything
        self._transport = transport
        self._unsent: deque[memoryview] = deque()
        self._is_paused = False

    @property
    def is_idle(self) -> bool:
        """True if the kernel has all bytes of the response."""
        return not self._is_paused and not self._unsent

    def write(self, parts: Sequence[Buffer]) -> None:
        """Write as much of a response as the kernel takes. ``resume`` writes the rest."""
        if sum(map(len, parts)) <= _CHUNK_BYTES:
            self._transport.write(b"".join(parts))
            return
        self._unsent.extend(memoryview(part) for part in parts if part)
        self._go_on()

    def pause(self) -> None:
        """Stop writing, because the kernel takes no more bytes."""
        self._is_paused = True

    def resume(self) -> None:
        """Continue writing, because the kernel has all bytes of the transport."""
        self._is_paused = False
        self._go_on()

    def _go_on(self) -> None:
        while self._unsent and not self._is_paused and not self._transport.is_closing():
            part = self._unsent.popleft()
            if len(part) > _CHUNK_BYTES:
                self._unsent.appendleft(part[_CHUNK_BYTES:])
                part = part[:_CHUNK_BYTES]
            self._transport.write(part)

    def drop(self) -> None:
        """Drop unsent bytes of a lost connection."""
        self._unsent.clear()
