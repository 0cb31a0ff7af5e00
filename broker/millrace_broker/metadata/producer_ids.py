"""Producer ids, unique in the cluster, in blocks as in ``ZkProducerIdManager``.

A block is taken by a versioned write, so that no two brokers get the same block. A restart skips the rest of its block.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

from millrace.coordination import BadVersionError, Coordination, paths
from millrace.coordination.nodes import ProducerIdBlockNode
from millrace.errors import StorageError

BLOCK_SIZE: Final = 1000
_ID_MAX: Final = 2**63 - 1


class ProducerIds:
    """Allocator of producer ids. Safe from any thread; taking a block waits for a durable write."""

    def __init__(self, coordination: Coordination, broker_id: int) -> None:
        self._coordination = coordination
        self._broker_id = broker_id
        self._lock = Lock()
        self._next = 0
        self._last = -1

    def next_id(self) -> int:
        """Return a producer id that was never used before."""
        with self._lock:
            if self._next > self._last:
                block = self._take_block()
                self._next, self._last = block.first, block.last
            self._next += 1
            return self._next - 1

    def _take_block(self) -> ProducerIdBlockNode:
        while True:
            data, stat = self._coordination.get(paths.PRODUCER_ID_BLOCK)
            first = ProducerIdBlockNode.decode(data).last + 1 if data else 0
            if first > _ID_MAX - BLOCK_SIZE:
                raise StorageError("all producer ids of this cluster have been used")
            block = ProducerIdBlockNode(broker_id=self._broker_id, first=first, last=first + BLOCK_SIZE - 1)
            try:
                self._coordination.set(paths.PRODUCER_ID_BLOCK, block.encode(), stat.version)
            except BadVersionError:
                continue  # another broker took that block
            return block
