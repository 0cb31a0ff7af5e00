"""What readers of committed records pass over: the records of transactions that were aborted, and all markers.

Kafka's consumer walks through the batches and remembers whose transaction is being aborted (``Fetcher``,
``isBatchAborted``). Here an aborted transaction is known with the offset of its marker as well, so each batch can be
judged by itself, wherever one begins to read. Both give the same as long as the list is complete: an aborted
transaction begins at its first record, holds all of its producer's transactional batches up to the marker, and is
never inside of another one of the same producer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from millrace.records.header import BatchHeader


class AbortedTransaction(NamedTuple):
    """An aborted transaction: its producer, the offset of its first record and that of its abort marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class CommittedFilter:
    """Judges batches: which of them a reader of committed records may see.

    ``aborted`` holds at least the transactions that reach into what is read; those that end before it or begin after
    it do no harm. What is read must end before the last stable offset: a transaction that is not in the list counts
    as committed.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        by_producer: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for transaction in aborted:
            by_producer[transaction.producer_id].append((transaction.first_offset, transaction.last_offset))
        self._spans = {producer_id: sorted(spans) for producer_id, spans in by_producer.items()}

    def admits(self, header: BatchHeader) -> bool:
        """Whether the records of a batch are committed data: no control records, and of no aborted transaction."""
        return not header.is_control and not self.is_aborted(header)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a batch belongs to an aborted transaction."""
        spans = self._spans.get(header.producer_id) if header.is_transactional else None
        if not spans:
            return False
        # The last one that begins at or before the batch's end: what compaction left of a batch may begin later.
        found = bisect_right(spans, (header.last_offset, 2**63)) - 1
        return found >= 0 and header.base_offset <= spans[found][1]
