"""Reception of request content that did not arrive with its head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millrace.errors import MillraceError
from millrace_broker.quotas import AdmittedCall


class ContentReception:
    """Content of one request, until it is complete.

    This class is a ``Reception``, which gives way to other requests if it stalls. The buffer is as large as the memory
    that the call holds, and grows with it.
    """

    __slots__ = ("_body", "_call", "_give_way", "_seen_bytes", "_size_bytes", "_view", "received_bytes")

    def __init__(
        self, call: AdmittedCall, size_bytes: int, part: memoryview, give_way: Callable[[str, memoryview], None]
    ) -> None:
        """Begin with the part that has arrived. The call holds memory for more than it.

        ``give_way`` gets the reason, and the content that has arrived.
        """
        self._call: Final = call
        self._size_bytes: Final = size_bytes
        self._give_way: Final = give_way
        self._body = bytearray(call.request_lease.covered_bytes(size_bytes))
        self._view = memoryview(self._body)
        self._view[: len(part)] = part
        self.received_bytes = self._seen_bytes = len(part)
        call.receptions.begin(self)

    @property
    def left(self) -> memoryview:
        """Return the buffer for the next bytes."""
        return self._view[self.received_bytes :]

    @property
    def is_complete(self) -> bool:
        """True if the whole request has arrived."""
        return self.received_bytes == self._size_bytes

    @property
    def held_bytes(self) -> int:
        """See ``Reception``."""
        return self._call.request_lease.held_bytes

    def add(self, count: int) -> bool:
        """Count bytes received into ``left``. Return whether there is room for the next ones, or all have arrived."""
        self.received_bytes += count
        if self.received_bytes < len(self._body) or self.is_complete:
            return True
        if not self._call.request_lease.grow_now(self._size_bytes, self.received_bytes):
            return False
        self._grow()
        return True

    async def grow(self) -> None:
        """Wait for memory for the next bytes. The reception does not give way meanwhile."""
        self._call.receptions.end(self)
        await self._call.grow_request_memory(self._size_bytes, self.received_bytes)
        self._grow()
        self._call.receptions.begin(self)

    def end(self) -> bytearray:
        """End the reception. Return the content."""
        self._call.receptions.end(self)
        return self._body

    def has_progressed(self) -> bool:
        """Return whether bytes have arrived since the last call of this method."""
        seen_bytes, self._seen_bytes = self._seen_bytes, self.received_bytes
        return seen_bytes != self.received_bytes

    def give_way(self, stalled_s: float) -> None:
        """See ``Reception``."""
        self._give_way(
            f"{self.received_bytes} of {self._size_bytes} bytes have arrived, too few of them in the last "
            f"{stalled_s:.0f} s, while other requests wait: send requests faster, or smaller ones",
            self._view[: self.received_bytes],
        )

    def _grow(self) -> None:
        body = bytearray(self._call.request_lease.covered_bytes(self._size_bytes))
        view = memoryview(body)
        view[: self.received_bytes] = self._view
        self._body, self._view = body, view


class DiscardedContent:
    """Rest of a request that is not admitted. The client gets the answer after it has sent the rest."""

    __slots__ = ("_buffer", "_has_progressed", "_left_bytes", "failure")

    def __init__(self, buffer: memoryview, left_bytes: int, failure: MillraceError) -> None:
        """Receive into a buffer that other connections use too. ``failure`` is the answer."""
        self._buffer: Final = buffer
        self._left_bytes = left_bytes
        self._has_progressed = False
        self.failure: Final = failure

    @property
    def left(self) -> memoryview:
        """See ``ContentReception``."""
        return self._buffer[: self._left_bytes]

    @property
    def is_complete(self) -> bool:
        """See ``ContentReception``."""
        return self._left_bytes == 0

    def add(self, count: int) -> bool:
        """See ``ContentReception``. There is always room."""
        self._left_bytes -= count
        self._has_progressed = True
        return True

    def has_progressed(self) -> bool:
        """See ``ContentReception``."""
        progressed, self._has_progressed = self._has_progressed, False
        return progressed

    def end(self) -> None:
        """Do nothing, because no memory is held."""
