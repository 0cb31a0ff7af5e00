"""What may become of a transactional id: an event and the state before it give the state after it, or an error.

The rules are those of Kafka 3.9's ``TransactionCoordinator`` and ``TransactionMetadata`` for producers of transaction
version 2 (KIP-890): the end of every transaction raises the epoch, and the answer tells the producer with which id and
epoch to go on. So an epoch names one transaction, and what comes late from the one before cannot be taken for a
part of the next. Where a producer id's epochs are used up, the next transaction has another producer id.

Nothing here waits, writes or looks at a clock. What is returned has still to be written before it is true; ``None``
says that nothing has to be written, because it is so already. While something of a transactional id is being
written, no rule is asked about it (see ``table``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from millrace.coordinator_records import TransactionState
from millrace.errors import (
    AbortableTransactionError,
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    ProducerFencedError,
)
from millrace.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from millrace_broker.transactions.metadata import (
    AT_REST,
    ENDING,
    EPOCH_MAX,
    LAST_EPOCH,
    RAISES_EPOCHS,
    PartitionKey,
    Producer,
    Transaction,
)

_DECIDED: Final = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}
_COMPLETED: Final = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}


# --- beginning anew --------------------------------------------------------------------------------------------------


def check_timeout(timeout_ms: int, max_ms: int) -> None:
    """Raise ``InvalidTransactionTimeoutError`` unless the broker allows transactions to be open for so long."""
    if not 0 < timeout_ms <= max_ms:
        raise InvalidTransactionTimeoutError(
            f"transaction.timeout.ms={timeout_ms}: expected 1 to {max_ms}, which is the broker's "
            "transaction.max.timeout.ms"
        )


def init_needs_producer_id(current: Transaction | None, expected: Producer | None) -> bool:
    """Whether ``init_producer_id`` will take a new producer id."""
    if current is None:
        return True
    if current.has_epochs_left:
        return False
    if current.state is TransactionState.ONGOING:
        return expected == current.producer
    return current.state in AT_REST and (expected is None or expected.epoch == current.epoch)


def init_producer_id(
    current: Transaction | None,
    transactional_id: str,
    expected: Producer | None,
    *,
    timeout_ms: int,
    new_producer_id: int,
    now_ms: int,
) -> Transaction:
    """Let a producer take over a transactional id, and fence the one that had it.

    ``expected`` is what the producer had already: it goes on only if nobody has taken over since. If a transaction is
    open, what comes back is its abort (``PREPARE_ABORT``): the producer has to ask again once that is done. (Kafka
    fences a producer that so aborts its own transaction; here it may go on.)

    Raises ``ProducerFencedError``, ``ConcurrentTransactionsError`` while a transaction is being ended.
    """
    if current is None:
        return Transaction(
            transactional_id=transactional_id,
            producer_id=new_producer_id,
            epoch=0,
            timeout_ms=timeout_ms,
            updated_ms=now_ms,
        )
    _check_expected(current, expected)
    if current.state in ENDING:
        raise _being_ended(current)
    if current.state is TransactionState.ONGOING:
        if expected is None:
            return fence(current, now_ms)
        if expected != current.producer:
            raise _fenced(current, expected)  # Kafka aborts the other producer's transaction before it says so
        return _decided(current, committed=False, new_producer_id=new_producer_id, now_ms=now_ms)
    producer_id, previous_producer_id = current.producer_id, current.previous_producer_id
    if init_needs_producer_id(current, expected):
        producer_id, previous_producer_id = new_producer_id, current.producer_id
        epoch, last_epoch = 0, NO_PRODUCER_EPOCH if expected is None else current.epoch
    else:
        epoch, last_epoch = _raised(current, expected)
    return Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        previous_producer_id=previous_producer_id,
        epoch=epoch,
        last_epoch=last_epoch,
        timeout_ms=timeout_ms,
        updated_ms=now_ms,
    )


def _check_expected(current: Transaction, expected: Producer | None) -> None:
    """Raise ``ProducerFencedError`` if the id is another's now; the epoch is looked at when it is raised."""
    if expected is None or expected.producer_id == current.producer_id:
        return
    # A repeated call whose first answer, with the next producer id, was lost.
    if expected.producer_id == current.previous_producer_id and expected.epoch >= LAST_EPOCH:
        return
    raise _fenced(current, expected)


def _raised(current: Transaction, expected: Producer | None) -> tuple[int, int]:
    """The epoch to go on with, and the one before it."""
    if expected is None:
        return current.epoch + 1, NO_PRODUCER_EPOCH
    if expected.epoch == current.epoch <= LAST_EPOCH:
        return current.epoch + 1, current.epoch
    if expected.epoch == current.last_epoch:
        # A repeated call whose first answer was lost: another producer would have left no last epoch.
        return current.epoch, current.last_epoch
    raise _fenced(current, expected)


# --- while it is open ------------------------------------------------------------------------------------------------


def add_partitions(
    current: Transaction | None, producer: Producer, partitions: Iterable[PartitionKey], now_ms: int
) -> Transaction | None:
    """Take partitions into the transaction, which begins with the first of them.

    Raises ``InvalidProducerIdMappingError``, ``ProducerFencedError``, ``ConcurrentTransactionsError``.
    """
    current = _known(current)
    _check_not_being_ended_for(current, producer)
    _check_producer(current, producer)
    if current.state in ENDING:
        raise _fenced(current, producer)  # nobody was told of this epoch
    added = frozenset(partitions)
    is_open = current.state is TransactionState.ONGOING
    if is_open and added <= current.partitions:
        return None
    return replace(
        current,
        state=TransactionState.ONGOING,
        partitions=current.partitions | added if is_open else added,
        started_ms=current.started_ms if is_open else now_ms,
        updated_ms=now_ms,
        version=RAISES_EPOCHS,
    )


def verify(current: Transaction | None, producer: Producer, partition: PartitionKey) -> None:
    """Raise unless a partition is part of the producer's open transaction (KIP-890, part 1).

    Raises ``InvalidProducerIdMappingError``, ``ProducerFencedError``, ``ConcurrentTransactionsError``, and
    ``AbortableTransactionError`` for a partition that was not added.
    """
    current = _known(current)
    _check_not_being_ended_for(current, producer)
    _check_producer(current, producer)
    if current.state is not TransactionState.ONGOING or partition not in current.partitions:
        topic, number = partition
        raise AbortableTransactionError(
            f"{topic}-{number} is not part of an open transaction of {current.transactional_id}: add it first. "
            "Abort the transaction"
        )


# --- ending ----------------------------------------------------------------------------------------------------------


def end_needs_producer_id(current: Transaction | None) -> bool:
    """Whether ``end`` will need a new producer id for what comes afterwards."""
    return current is not None and not current.has_epochs_left and current.state not in ENDING


def end(
    current: Transaction | None, producer: Producer, *, committed: bool, new_producer_id: int, now_ms: int
) -> Transaction | None:
    """Decide a transaction as its producer wants it; see ``goes_on_with`` for what it is answered.

    ``None``: it had been ended just so, and the answer was lost. A transaction that has not begun can be aborted: that
    raises the epoch.

    Raises ``InvalidProducerIdMappingError``, ``ProducerFencedError``, ``InvalidTxnStateError``, and
    ``ConcurrentTransactionsError`` while its markers are being written.
    """
    current = _known(current)
    is_repeated = _is_repeated(current, producer)
    if not is_repeated:
        _check_not_being_ended_for(current, producer)
        _check_producer(current, producer)
        if current.state in ENDING:
            raise _fenced(current, producer)  # nobody was told of this epoch
    if is_repeated and committed != current.is_committed:
        raise _not_possible(current, committed)
    if current.state in ENDING:
        raise _being_ended(current)
    if is_repeated:
        return None
    if current.state is not TransactionState.ONGOING and committed:
        raise _not_possible(current, committed)
    return _decided(current, committed=committed, new_producer_id=new_producer_id, now_ms=now_ms)


def _decided(current: Transaction, *, committed: bool, new_producer_id: int, now_ms: int) -> Transaction:
    is_open = current.state is TransactionState.ONGOING
    return replace(
        current,
        state=_DECIDED[committed],
        epoch=current.epoch + 1,
        last_epoch=current.epoch,
        next_producer_id=NO_PRODUCER_ID if current.has_epochs_left else new_producer_id,
        partitions=current.partitions if is_open else frozenset(),
        started_ms=current.started_ms if is_open else now_ms,
        updated_ms=now_ms,
        version=RAISES_EPOCHS,
    )


def fence(current: Transaction, now_ms: int) -> Transaction:
    """Abort an open transaction against its producer's will: its time is up, or another producer takes over.

    The epoch is raised and nobody is told, so that the producer is fenced.
    """
    assert current.state is TransactionState.ONGOING, current
    assert current.epoch < EPOCH_MAX, current
    return replace(
        current,
        state=TransactionState.PREPARE_ABORT,
        epoch=current.epoch + 1,
        last_epoch=NO_PRODUCER_EPOCH,
        next_producer_id=NO_PRODUCER_ID,
        updated_ms=now_ms,
        version=RAISES_EPOCHS,
    )


def retire(current: Transaction, now_ms: int) -> Transaction | None:
    """See to it that a producer that was given a transactional id writes nothing (more) under it.

    ``None`` where it cannot anyway: its transaction has been decided, or it was retired before.
    """
    if current.state is TransactionState.ONGOING:
        return fence(current, now_ms)
    if current.state is not TransactionState.EMPTY or current.epoch == EPOCH_MAX:
        return None
    return replace(current, epoch=current.epoch + 1, last_epoch=NO_PRODUCER_EPOCH, updated_ms=now_ms)


def time_out(current: Transaction | None, producer: Producer, now_ms: int) -> Transaction | None:
    """The time of ``producer``'s transaction is up: abort it, unless it has been ended meanwhile."""
    if current is None or current.state is not TransactionState.ONGOING or current.producer != producer:
        return None
    return fence(current, now_ms)


def goes_on_with(decided: Transaction) -> Producer:
    """With which id and epoch the producer goes on after a transaction that is or was decided."""
    if decided.next_producer_id != NO_PRODUCER_ID:
        return Producer(decided.next_producer_id, 0)
    return decided.producer


def complete(current: Transaction, now_ms: int) -> Transaction:
    """All markers have been written."""
    assert current.state in ENDING, current
    after = replace(
        current,
        state=_COMPLETED[current.state],
        partitions=frozenset(),
        next_producer_id=NO_PRODUCER_ID,
        updated_ms=now_ms,
    )
    if current.next_producer_id == NO_PRODUCER_ID:
        return after
    return replace(after, producer_id=current.next_producer_id, previous_producer_id=current.producer_id, epoch=0)


def is_expired(current: Transaction, now_ms: int, expiration_ms: int) -> bool:
    """Whether a transactional id has not been used for so long that it is to be forgotten."""
    return current.state in AT_REST and now_ms - current.updated_ms >= expiration_ms


# --- verdicts --------------------------------------------------------------------------------------------------------


def _is_repeated(current: Transaction, producer: Producer) -> bool:
    """Whether ``producer`` is the one that ended the last transaction, and has not learnt of it."""
    if current.last_epoch == NO_PRODUCER_EPOCH or producer.epoch != current.last_epoch:
        return False
    if current.state in ENDING:
        return producer.producer_id == current.producer_id
    if current.state not in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
        return False
    was_rotated = current.epoch == 0
    return producer.producer_id == (current.previous_producer_id if was_rotated else current.producer_id)


def _known(current: Transaction | None) -> Transaction:
    if current is None:
        raise InvalidProducerIdMappingError(
            "the coordinator knows no such transactional id (any more): initialise the transactions anew"
        )
    return current


def _check_not_being_ended_for(current: Transaction, producer: Producer) -> None:
    """Raise ``ConcurrentTransactionsError`` for the producer that is to go on once the transaction has been ended."""
    was_told = current.last_epoch != NO_PRODUCER_EPOCH
    if current.state in ENDING and was_told and producer == goes_on_with(current):
        raise _being_ended(current)


def _check_producer(current: Transaction, producer: Producer) -> None:
    if producer.producer_id != current.producer_id:
        raise InvalidProducerIdMappingError(
            f"transactional id {current.transactional_id} has producer id {current.producer_id}, not "
            f"{producer.producer_id}: initialise the transactions anew"
        )
    if producer.epoch != current.epoch or producer.epoch > LAST_EPOCH:
        raise _fenced(current, producer)


def _fenced(current: Transaction, producer: Producer) -> ProducerFencedError:
    return ProducerFencedError(
        f"producer {producer.producer_id} of transactional id {current.transactional_id} has epoch {producer.epoch}, "
        f"and the present one is {current.epoch} of producer {current.producer_id}: another producer has taken over, "
        "or the transaction timed out (transaction.timeout.ms)"
    )


def _being_ended(current: Transaction) -> ConcurrentTransactionsError:
    return ConcurrentTransactionsError(
        f"the last transaction of {current.transactional_id} is still being ended: try again"
    )


def _not_possible(current: Transaction, committed: bool) -> InvalidTxnStateError:
    wanted = "committed" if committed else "aborted"
    return InvalidTxnStateError(
        f"the transaction of {current.transactional_id} cannot be {wanted}: it is {current.state.kafka_name}"
    )
