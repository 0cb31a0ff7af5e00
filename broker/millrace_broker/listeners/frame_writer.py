"""Writer of responses to a frame connection, with few copies.

Invariant: at most one response is being written. The writer ``is_idle`` once the kernel has all of it.
"""

from __future__ import annotations

import asyncio
from typing import Final

_CHUNK_BYTES: Final = 256 * 1024
"""Part of a large response that the transport gets at a time.

The transport copies bytes that the kernel does not take.
"""


class FrameWriter:
    """Writer of one connection, which is told when the transport pauses and resumes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=0)  # so that ``resume`` shows when the kernel has everything
        self._transport = transport
        self._unsent = memoryview(b"")
        self._is_paused = False

    @property
    def is_idle(self) -> bool:
        """Whether the kernel has everything."""
        return not self._is_paused and not self._unsent

    def write(self, head: bytes, body: bytes) -> None:
        """Write as much of a response as the kernel takes. ``resume`` writes the rest."""
        if len(body) <= _CHUNK_BYTES:
            self._transport.write(head + body)
            return
        self._transport.write(head)
        self._unsent = memoryview(body)
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
            chunk, self._unsent = self._unsent[:_CHUNK_BYTES], self._unsent[_CHUNK_BYTES:]
            self._transport.write(chunk)

    def drop(self) -> None:
        """Drop unsent bytes of a lost connection."""
        self._unsent = memoryview(b"")
