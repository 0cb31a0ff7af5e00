"""Writing responses to a connection for frames, with as few copies as asyncio allows.

Invariant: at most one response is being written; it ``is_idle`` once the kernel has all of it.
"""

from __future__ import annotations

import asyncio
from typing import Final

_CHUNK_BYTES: Final = 256 * 1024
"""So much of a large response is given to the transport at a time: what the kernel does not take at once is copied."""


class FrameWriter:
    """What a connection writes with; it is told when the transport pauses and resumes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=0)  # so that it is known when the kernel has everything
        self._transport = transport
        self._unsent = memoryview(b"")
        self._is_paused = False

    @property
    def is_idle(self) -> bool:
        """Whether the kernel has everything."""
        return not self._is_paused and not self._unsent

    def write(self, head: bytes, body: bytes) -> None:
        """Write a response, as much as the kernel takes; ``resume`` goes on with it."""
        if len(body) <= _CHUNK_BYTES:
            self._transport.write(head + body)
            return
        self._transport.write(head)
        self._unsent = memoryview(body)
        self._go_on()

    def pause(self) -> None:
        """The kernel does not take more at present."""
        self._is_paused = True

    def resume(self) -> None:
        """The kernel has what was given to the transport."""
        self._is_paused = False
        self._go_on()

    def _go_on(self) -> None:
        while self._unsent and not self._is_paused and not self._transport.is_closing():
            chunk, self._unsent = self._unsent[:_CHUNK_BYTES], self._unsent[_CHUNK_BYTES:]
            self._transport.write(chunk)

    def drop(self) -> None:
        """The connection is lost: forget what was not sent."""
        self._unsent = memoryview(b"")
