"""The producers of a log and its undecided transactions, Kafka's ``ProducerStateManager``.

Invariants:

- ``first_open_offset`` is the first offset of all open transactions. These are the transactions of ``states``, and the
  one that a present append begins. So the offset is set before readers may see the transaction's first batch.
- ``completed`` has every transaction whose end marker consumers may not be able to read yet.

Readers need no lock. The caller of a mutator holds the partition's lock.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.records import NO_PRODUCER_ID, BatchHeader
from millrace_broker.log.producer_states import CompletedTransaction, ProducerEntry, ProducerStates


class ProducerStateManager:
    """The producer states and the undecided transactions of one log."""

    def __init__(self, states: ProducerStates) -> None:
        self.states = states
        """The entry of each producer."""
        self.first_open_offset = states.first_open_offset()
        """The first offset of the first open transaction; None if there is none."""
        self.completed: tuple[CompletedTransaction, ...] = ()
        """Transactions with end markers that consumers may not be able to read yet, in the order of the markers."""

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset before which every transaction is decided, by a marker below the high watermark."""
        open_offset, completed = self.first_open_offset, self.completed
        stable = high_watermark if open_offset is None else min(high_watermark, open_offset)
        if not completed:
            return stable
        return min([stable, *(each.first_offset for each in completed if each.last_offset >= high_watermark)])

    def prepare(self, entry: ProducerEntry) -> None:
        """Count a producer's transaction as open before its append, which ends with ``update`` or ``undo``."""
        if self.first_open_offset is None:  # a transaction that an append begins is the last one
            self.first_open_offset = entry.open_transaction_offset

    def undo(self) -> None:
        """Forget the transaction of a failed append."""
        self.first_open_offset = self.states.first_open_offset()

    def update(self, entry: ProducerEntry, now_ms: int) -> None:
        """Set a producer's entry after its append."""
        self.states.update(entry, now_ms)
        if entry.open_transaction_offset is not None or self.first_open_offset is not None:
            self.first_open_offset = self.states.first_open_offset()

    def replay(self, headers: Sequence[BatchHeader], now_ms: int) -> None:
        """Apply replicated batches after their append. Markers and batches without a producer change nothing."""
        is_changed = False
        for header in headers:
            if header.producer_id != NO_PRODUCER_ID and not header.is_control:
                self.states.replay(header, now_ms)
                is_changed = True
        if is_changed:
            self.first_open_offset = self.states.first_open_offset()

    def complete(self, transaction: CompletedTransaction | None, high_watermark: int) -> None:
        """Add a transaction that a marker ends, and forget those whose markers are readable."""
        undecided = [each for each in self.completed if each.last_offset >= high_watermark]
        self.completed = (*undecided, *(() if transaction is None else (transaction,)))

    def reload(self, states: ProducerStates) -> None:
        """Replace the states after a truncation."""
        self.states = states
        self.first_open_offset = states.first_open_offset()

    def forget_after(self, end_offset: int) -> None:
        """Forget completed transactions whose markers a truncation removed."""
        self.completed = tuple(each for each in self.completed if each.last_offset < end_offset)

    def clear(self) -> None:
        """Forget all producers and transactions."""
        self.states, self.first_open_offset, self.completed = ProducerStates(), None, ()
