"""The states of idempotent producers in a partition, Kafka's ``ProducerAppendInfo``.

The functions work on frozen data; ``ProducerStates`` holds the current entry of each producer.

Invariants: An entry holds the last five batches of the producer's current epoch, oldest first. An epoch never goes
back, except in replicated batches. A sequence number counts the producer's records in this partition from 0, and wraps
from 2^31-1 to 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from millrace.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from millrace.records.header import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, BatchHeader

BATCHES_KEPT: Final = 5
"""The number of batches in flight per producer and partition whose retries are recognised as duplicates."""

NO_COORDINATOR_EPOCH: Final = -1
_SEQUENCE_MAX: Final = 2**31 - 1


class Origin(Enum):
    """The origin of an append, which decides about the checks."""

    CLIENT = auto()
    """A producer, whose epoch and sequence number must be right."""
    COORDINATOR = auto()
    """A group or transaction coordinator, whose epoch must be right."""
    REPLICATION = auto()
    """A leader's batch, or a batch that is loaded again. Nothing is refused."""


class ProducedBatch(NamedTuple):
    """The position of a producer's batch in the log. ``timestamp_ms`` is its largest timestamp."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        """The sequence number of the first record."""
        return decrement_sequence(self.last_sequence, self.offset_delta)

    @property
    def first_offset(self) -> int:
        """The offset of the first record."""
        return self.last_offset - self.offset_delta


class ProducerEntry(NamedTuple):
    """The state of one producer. ``open_transaction_offset`` is the first offset of its open transaction."""

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    batches: tuple[ProducedBatch, ...] = ()
    last_timestamp_ms: int = NO_TIMESTAMP
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    open_transaction_offset: int | None = None

    @property
    def last_sequence(self) -> int:
        """The newest sequence number, -1 if no batch of this epoch is known."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """The offset of the producer's newest record, -1 if no batch of this epoch is known."""
        return self.batches[-1].last_offset if self.batches else -1

    def has_open_transaction(self, epoch: int) -> bool:
        """Return whether the producer has an open transaction in exactly this epoch."""
        return self.open_transaction_offset is not None and self.epoch == epoch

    def find_duplicate(self, header: BatchHeader) -> ProducedBatch | None:
        """Return the batch that ``header`` repeats: same epoch, same sequence numbers."""
        if header.producer_epoch != self.epoch:
            return None
        last_sequence = last_sequence_of(header)
        for batch in self.batches:
            if batch.last_sequence == last_sequence and batch.first_sequence == header.base_sequence:
                return batch
        return None


class FirstSequence(NamedTuple):
    """Lowest sequence number of a producer's batches that wait for their append."""

    epoch: int
    sequence: int
    noted_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedTransaction:
    """A transaction with an end marker. Offsets are those of its first record and of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


def last_sequence_of(header: BatchHeader) -> int:
    """Return the sequence number of a batch's last record, -1 without a producer."""
    if header.base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (header.base_sequence + header.last_offset_delta) & _SEQUENCE_MAX


def decrement_sequence(sequence: int, count: int) -> int:
    """Return an earlier sequence number, wrapping from 0 to 2^31-1."""
    return (sequence - count) & _SEQUENCE_MAX


def produced_batch(header: BatchHeader) -> ProducedBatch:
    """Return the position of a batch of the log."""
    return ProducedBatch(
        last_sequence=last_sequence_of(header),
        last_offset=header.last_offset,
        offset_delta=header.last_offset_delta,
        timestamp_ms=header.max_timestamp,
    )


def append_batch(
    entry: ProducerEntry,
    header: BatchHeader,
    origin: Origin = Origin.CLIENT,
    *,
    lowest_sequence: int | None = None,
) -> ProducerEntry:
    """Check a data batch with an assigned base offset, and return the producer's entry after it.

    ``lowest_sequence`` is the sequence number that the first batch of a new epoch must not exceed.

    Raises ``InvalidProducerEpochError``, ``OutOfOrderSequenceError`` or ``InvalidTxnStateError``. A repeated batch is
    no error here; the caller asks ``find_duplicate`` first.
    """
    _check_epoch(entry, header.producer_epoch, header.base_offset, origin)
    if origin is Origin.CLIENT:
        _check_sequence(entry, header, lowest_sequence)
    if entry.open_transaction_offset is not None and not header.is_transactional:
        raise InvalidTxnStateError(
            f"producer {entry.producer_id} has an open transaction and sent a batch outside it: "
            "commit or abort the transaction first"
        )
    batch = produced_batch(header)
    earlier = entry.batches if header.producer_epoch == entry.epoch else ()
    transaction = entry.open_transaction_offset
    if transaction is None and header.is_transactional:
        transaction = header.base_offset
    return entry._replace(
        epoch=header.producer_epoch,
        batches=(*earlier, batch)[-BATCHES_KEPT:],
        last_timestamp_ms=header.max_timestamp,
        open_transaction_offset=transaction,
    )


def end_transaction(
    entry: ProducerEntry,
    *,
    epoch: int,
    coordinator_epoch: int,
    is_aborted: bool,
    offset: int,
    timestamp_ms: int,
    origin: Origin = Origin.COORDINATOR,
) -> tuple[ProducerEntry, CompletedTransaction | None]:
    """Check an end marker, and return the producer's entry after it and the transaction that it ended.

    Raises ``InvalidProducerEpochError`` or ``TransactionCoordinatorFencedError``.
    """
    _check_epoch(entry, epoch, offset, origin)
    if coordinator_epoch < entry.coordinator_epoch and origin is not Origin.REPLICATION:
        raise TransactionCoordinatorFencedError(
            f"marker for producer {entry.producer_id} at offset {offset} comes from coordinator epoch "
            f"{coordinator_epoch}, but the current one is {entry.coordinator_epoch}"
        )
    completed = None
    if entry.open_transaction_offset is not None:
        completed = CompletedTransaction(
            producer_id=entry.producer_id,
            first_offset=entry.open_transaction_offset,
            last_offset=offset,
            is_aborted=is_aborted,
        )
    after = entry._replace(
        epoch=epoch,
        batches=entry.batches if epoch == entry.epoch else (),
        last_timestamp_ms=timestamp_ms,
        coordinator_epoch=coordinator_epoch,
        open_transaction_offset=None,
    )
    return after, completed


def _check_epoch(entry: ProducerEntry, epoch: int, offset: int, origin: Origin) -> None:
    if epoch < entry.epoch and origin is not Origin.REPLICATION:
        raise InvalidProducerEpochError(
            f"producer {entry.producer_id} at offset {offset} has epoch {epoch}, but the last seen is {entry.epoch}: "
            "a newer instance has taken over"
        )


def _check_sequence(entry: ProducerEntry, header: BatchHeader, lowest_sequence: int | None) -> None:
    first = header.base_sequence
    if lowest_sequence is not None and first > lowest_sequence:
        raise OutOfOrderSequenceError(
            f"producer {entry.producer_id} at offset {header.base_offset}: sequence number {first} arrived before "
            f"sequence number {lowest_sequence}"
        )
    if header.producer_epoch != entry.epoch:
        if first != 0 and entry.epoch != NO_PRODUCER_EPOCH:
            raise OutOfOrderSequenceError(
                f"producer {entry.producer_id} begins epoch {header.producer_epoch} (after {entry.epoch}) with "
                f"sequence number {first} instead of 0"
            )
        return
    last = entry.last_sequence
    follows = first == last + 1 or (first == 0 and last == _SEQUENCE_MAX)
    if entry.epoch != NO_PRODUCER_EPOCH and not follows:
        raise OutOfOrderSequenceError(
            f"producer {entry.producer_id} at offset {header.base_offset}: sequence number {first} does not follow "
            f"{last}, the last one in the log"
        )


class ProducerStates:
    """The producers of one partition.

    Only appended batches update it (``update``), so that a refused or failed append has no effect.
    """

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._open: dict[int, int] = {}
        """The first offset of each open transaction, by producer."""
        self._heard_ms: dict[int, int] = {}
        self._first_sequences: dict[int, FirstSequence] = {}
        """The first sequence number of each producer that has sent batches and has no entry yet."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ProducerEntry]:
        return iter([self._entries[producer_id] for producer_id in sorted(self._entries)])

    def get(self, producer_id: int) -> ProducerEntry:
        """Return the producer's entry, an empty one for an unknown producer."""
        return self._entries.get(producer_id) or ProducerEntry(producer_id=producer_id)

    def find(self, producer_id: int) -> ProducerEntry | None:
        """Return the producer's entry, None for an unknown producer. Each batch and each end marker makes a new one."""
        return self._entries.get(producer_id)

    def update(self, entry: ProducerEntry, now_ms: int) -> None:
        """Set a producer's new entry at the time ``now_ms``."""
        self._entries[entry.producer_id] = entry
        if entry.open_transaction_offset is None:
            self._open.pop(entry.producer_id, None)
        else:
            self._open[entry.producer_id] = entry.open_transaction_offset
        self._heard_ms[entry.producer_id] = now_ms
        if self._first_sequences:
            self._first_sequences.pop(entry.producer_id, None)

    def expect(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> None:
        """Note the sequence number of a batch of an unknown producer, Kafka's ``VerificationStateEntry``.

        The first batch of the producer must not exceed the lowest noted number. It may otherwise have overtaken
        earlier batches, which could not be appended any more. The caller need not hold the partition's lock.
        """
        noted = self._first_sequences.get(producer_id)
        if noted is None or epoch > noted.epoch or (epoch == noted.epoch and sequence < noted.sequence):
            self._first_sequences[producer_id] = FirstSequence(epoch, sequence, now_ms)

    def lowest_sequence(self, producer_id: int) -> int | None:
        """Return the lowest noted sequence number of an unknown producer."""
        noted = self._first_sequences.get(producer_id)
        return None if noted is None else noted.sequence

    def first_open_offset(self, *, but: int | None = None) -> int | None:
        """Return the first offset of all open transactions, except one producer's; None if there are none."""
        return min((offset for producer_id, offset in self._open.items() if producer_id != but), default=None)

    def replay(self, header: BatchHeader, now_ms: int) -> None:
        """Apply a data batch that is in the log already."""
        self.update(append_batch(self.get(header.producer_id), header, Origin.REPLICATION), now_ms)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers without an open transaction and without an append for ``expiration_ms``.

        Unlike Kafka this uses the broker's clock, because the records' timestamps may be years old.
        """
        for producer_id in [
            producer_id
            for producer_id, heard_ms in self._heard_ms.items()
            if now_ms - heard_ms >= expiration_ms and self._entries[producer_id].open_transaction_offset is None
        ]:
            del self._entries[producer_id], self._heard_ms[producer_id]
        for producer_id in list(self._first_sequences):  # a copy, because ``expect`` is called in another thread
            noted = self._first_sequences.get(producer_id)
            if noted is not None and now_ms - noted.noted_ms >= expiration_ms:
                self._first_sequences.pop(producer_id, None)
