"""What a cleaning remembers of transactions as it walks a log: whose data is aborted, and which markers are needed.

Data of an aborted transaction goes; its marker, and that of a committed one, stays until no batch of the transaction is
left, and from then on for ``delete.retention.ms`` (Kafka's ``CleanedTransactionMetadata``).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from millrace.records import ControlType
from millrace.segments.transaction_index import AbortedTransaction


class SeenBatch(Protocol):
    """What of a batch matters here. ``control_type`` is None for a marker batch from which the marker was taken."""

    @property
    def last_offset(self) -> int:
        """Offset of its last record."""

    @property
    def is_control(self) -> bool:
        """Whether it holds a marker."""

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to a transaction."""

    @property
    def producer_id(self) -> int:
        """Whose it is."""

    def control_type(self) -> ControlType | None:
        """Read what its marker says."""


@dataclass(slots=True)
class _Aborted:
    transaction: AbortedTransaction
    has_batches: bool = False


class CleanedTransactions:
    """Follows the transactions through the batches of a log, which must be shown in order.

    ``retained`` gathers the aborted ones whose markers stay: the transaction index of what is written.
    """

    def __init__(self) -> None:
        self.retained: list[AbortedTransaction] = []
        self._upcoming: list[tuple[int, int, AbortedTransaction]] = []
        self._aborted: dict[int, _Aborted] = {}
        self._committed: set[int] = set()

    def expect(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Be told of aborted transactions before the first batch of theirs is seen; again does no harm."""
        for transaction in transactions:
            heapq.heappush(self._upcoming, (transaction.first_offset, transaction.producer_id, transaction))

    def see(self, batch: SeenBatch) -> bool:
        """Take note of a batch; returns whether its records are of no further use."""
        while self._upcoming and self._upcoming[0][0] <= batch.last_offset:
            transaction = heapq.heappop(self._upcoming)[2]
            self._aborted.setdefault(transaction.producer_id, _Aborted(transaction))
        if batch.is_control:
            return self._see_marker(batch)
        if not batch.is_transactional:
            return False
        aborted = self._aborted.get(batch.producer_id)
        if aborted is None:
            self._committed.add(batch.producer_id)
            return False
        aborted.has_batches = True
        return True

    def _see_marker(self, batch: SeenBatch) -> bool:
        match batch.control_type():
            case None:
                return True
            case ControlType.ABORT:
                aborted = self._aborted.pop(batch.producer_id, None)
                if aborted is not None and aborted.has_batches:
                    self.retained.append(aborted.transaction)
                    return False
                return True
            case ControlType.COMMIT:
                had_batches = batch.producer_id in self._committed
                self._committed.discard(batch.producer_id)
                return not had_batches
            case _:
                return False
