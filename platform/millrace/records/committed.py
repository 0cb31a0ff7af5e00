"""Filter of batches for ``isolation.level=read_committed``.

The filter skips the records of aborted transactions, and all markers. Kafka's consumer walks through the batches and
remembers the producers whose transactions are being aborted (``Fetcher``, ``isBatchAborted``). Here an aborted
transaction also has the offset of its marker. Therefore each batch can be judged by itself, wherever a read begins.
Both methods give the same result if the list is complete. An aborted transaction begins at its first record and
contains all of its producer's transactional batches up to the marker. It is never inside another transaction of the
same producer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

from millrace.records.header import BatchHeader


class AbortedTransaction(NamedTuple):
    """Aborted transaction of one producer in a partition.

    ``first_offset`` is the offset of its first record, ``last_offset`` that of its abort marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int


class CommittedFilter:
    """Filter that decides which batches a reader of committed records may see.

    ``aborted`` holds at least the transactions that overlap the read range. Transactions that end before the range or
    begin after it do no harm. The range must end before the last stable offset, because a transaction that is not in
    ``aborted`` counts as committed.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        by_producer: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for transaction in aborted:
            by_producer[transaction.producer_id].append((transaction.first_offset, transaction.last_offset))
        self._spans = {producer_id: sorted(spans) for producer_id, spans in by_producer.items()}

    def admits(self, header: BatchHeader) -> bool:
        """Return whether a batch holds committed data: it is no control batch and not of an aborted transaction."""
        return not header.is_control and not self.is_aborted(header)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return whether a batch belongs to an aborted transaction."""
        spans = self._spans.get(header.producer_id) if header.is_transactional else None
        if not spans:
            return False
        # Compare with the last transaction that begins at or before the batch's end, because compaction may have
        # removed the first records of the batch.
        found = bisect_right(spans, header.last_offset, key=itemgetter(0)) - 1
        return found >= 0 and header.base_offset <= spans[found][1]
