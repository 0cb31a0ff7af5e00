"""Aborted transactions of a log, recomputed from its batches.

They are the expected entries of its transaction indexes.
"""

from __future__ import annotations

from millrace.errors import MillraceError
from millrace.records import BatchHeader, ControlType, read_control_type, read_rows
from millrace.segments.transaction_index import AbortedTransaction


class AbortedReplay:
    """Replay of a log's transactions, batch by batch from its start.

    If a transaction began before the log start, its first offset is unknown, and its end is ignored.
    """

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        """First offset of each producer's open transaction."""

    def add(self, header: BatchHeader, data: bytes) -> AbortedTransaction | None:
        """Add a batch with a correct checksum. If the batch is an abort marker, return the aborted transaction."""
        if not header.is_transactional:
            return None
        if not header.is_control:
            self._open.setdefault(header.producer_id, header.base_offset)
            return None
        first_offset = self._open.pop(header.producer_id, None)
        if first_offset is None or not self._is_abort(header, data):
            return None
        return AbortedTransaction(
            producer_id=header.producer_id,
            first_offset=first_offset,
            last_offset=header.last_offset,
            last_stable_offset=min(self._open.values(), default=header.next_offset),
        )

    @staticmethod
    def _is_abort(header: BatchHeader, data: bytes) -> bool:
        try:
            return any(read_control_type(record.key) is ControlType.ABORT for record in read_rows(data, 0, header))
        except MillraceError:
            return False
