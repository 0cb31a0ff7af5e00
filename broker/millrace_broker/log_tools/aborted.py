"""Work out a log's aborted transactions anew from its batches: what its transaction indexes ought to hold."""

from __future__ import annotations

from millrace.errors import MillraceError
from millrace.records import BatchHeader, ControlType, read_control_type, read_rows
from millrace.segments.transaction_index import AbortedTransaction


class AbortedReplay:
    """Follows the transactions of a log, batch by batch from its start.

    Of a transaction that began before the log does, the first offset is not known: its end is passed over.
    """

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        """First offset of the open transaction of each producer."""

    def add(self, header: BatchHeader, data: bytes) -> AbortedTransaction | None:
        """Take in a batch with a right checksum; returns the transaction that it aborts, if it is such a marker."""
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
