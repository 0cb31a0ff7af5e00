"""The transactions of a log during a cleaning, Kafka's ``CleanedTransactionMetadata``.

Data of an aborted transaction is removed. A marker, of abort or commit, stays until no batch of its transaction is
left, and then for ``delete.retention.ms``.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from millrace.records import ControlType
from millrace.segments.transaction_index import AbortedTransaction


class SeenBatch(Protocol):
    """The fields of a batch that decide about its transaction.

    ``control_type`` returns None if cleaning has removed the marker.
    """

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""

    @property
    def is_control(self) -> bool:
        """True if the batch holds a marker."""

    @property
    def is_transactional(self) -> bool:
        """True if the batch belongs to a transaction."""

    @property
    def producer_id(self) -> int:
        """The producer's id."""

    def control_type(self) -> ControlType | None:
        """Return the type of the marker."""


@dataclass(slots=True)
class _Aborted:
    transaction: AbortedTransaction
    has_batches: bool = False


class CleanedTransactions:
    """The transactions in the batches of a log.

    The batches must come in the order of the log. ``retained`` collects the aborted transactions whose markers stay,
    for the new transaction index.
    """

    def __init__(self) -> None:
        self.retained: list[AbortedTransaction] = []
        self._upcoming: list[tuple[int, int, AbortedTransaction]] = []
        self._aborted: dict[int, _Aborted] = {}
        self._committed: set[int] = set()

    def expect(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Add aborted transactions before their first batch is seen; repeated calls do no harm."""
        for transaction in transactions:
            heapq.heappush(self._upcoming, (transaction.first_offset, transaction.producer_id, transaction))

    def see(self, batch: SeenBatch) -> bool:
        """Handle a batch; returns whether its records are no longer needed."""
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
