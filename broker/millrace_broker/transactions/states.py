"""Transitions of a transactional id, as pure functions.

An event and the present state give the next state, or an error.

The rules are those of Kafka 3.9's ``TransactionCoordinator`` and ``TransactionMetadata`` for producers of transaction
version 2 (KIP-890). The end of each transaction raises the epoch, and the answer has the producer id and epoch for the
next transaction. An epoch therefore names one transaction, and late requests of an earlier transaction are refused.
After the last epoch of a producer id, the next transaction has another producer id. Producers of earlier versions
(``TV_0``: librdkafka, Java before 4) keep their epoch at the end of a transaction (``end_keeping_epoch``).

These functions do not wait, write, or read a clock. A returned state counts after its record is in the log. ``None``
means that the state does not change. ``state_manager`` calls them only while no other change of the same transactional
id is being written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from millrace.coordinator_records import TransactionState
from millrace.errors import (
    AbortableTransactionError,
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    ProducerFencedError,
)
from millrace.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from millrace_broker.purgatory import PartitionKey
from millrace_broker.transactions.metadata import (
    EPOCH_MAX,
    IDLE,
    LAST_EPOCH,
    PREPARED,
    TV_0,
    TV_2,
    ProducerIdAndEpoch,
    TransactionMetadata,
)

TRANSITIONS: Final[Mapping[TransactionState, Mapping[TransactionState, str]]] = {
    TransactionState.EMPTY: {
        TransactionState.EMPTY: "another producer takes the transactional id, or its producer is fenced",
        TransactionState.ONGOING: "the first partition is added",
        TransactionState.PREPARE_ABORT: "the producer aborts a transaction without partitions",
    },
    TransactionState.ONGOING: {
        TransactionState.ONGOING: "more partitions are added",
        TransactionState.PREPARE_COMMIT: "the producer commits",
        TransactionState.PREPARE_ABORT: "the producer aborts, is fenced, or the transaction times out",
    },
    TransactionState.PREPARE_COMMIT: {TransactionState.COMPLETE_COMMIT: "all markers are written"},
    TransactionState.PREPARE_ABORT: {TransactionState.COMPLETE_ABORT: "all markers are written"},
    TransactionState.COMPLETE_COMMIT: {
        TransactionState.EMPTY: "a producer takes the transactional id",
        TransactionState.ONGOING: "the first partition of the next transaction is added",
        TransactionState.PREPARE_ABORT: "the producer aborts a transaction without partitions",
    },
    TransactionState.COMPLETE_ABORT: {
        TransactionState.EMPTY: "a producer takes the transactional id",
        TransactionState.ONGOING: "the first partition of the next transaction is added",
        TransactionState.PREPARE_ABORT: "the producer aborts a transaction without partitions",
    },
}
"""Each state with the states that may follow it, and the event that leads there (Kafka's ``validPreviousStates``)."""

_PREPARED_BY_OUTCOME: Final = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}
_COMPLETED: Final = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}


def check_transition(before: TransactionMetadata | None, after: TransactionMetadata) -> None:
    """Assert that a transactional id may change from one state to the next."""
    if before is None:
        assert after.state is TransactionState.EMPTY, after
        return
    allowed = TRANSITIONS.get(before.state, {after.state: "Kafka wrote a state that this broker never writes"})
    assert after.state in allowed, f"{before.state.kafka_name} to {after.state.kafka_name}"
    assert after.producer_id != before.producer_id or after.epoch >= before.epoch, (before, after)


# --- InitProducerId --------------------------------------------------------------------------------------------------


def check_timeout(timeout_ms: int, max_ms: int) -> None:
    """Raise ``InvalidTransactionTimeoutError`` for a timeout that is longer than the broker allows."""
    if not 0 < timeout_ms <= max_ms:
        raise InvalidTransactionTimeoutError(
            f"transaction.timeout.ms={timeout_ms} is not between 1 and {max_ms}: lower it, or raise the broker's "
            "transaction.max.timeout.ms"
        )


def init_needs_producer_id(current: TransactionMetadata | None, expected: ProducerIdAndEpoch | None) -> bool:
    """Return whether ``init_producer_id`` will use a new producer id."""
    if current is None:
        return True
    if current.has_epochs_left:
        return False
    if current.state is TransactionState.ONGOING:
        return expected == current.producer
    return current.state in IDLE and (expected is None or expected.epoch == current.epoch)


def init_producer_id(
    current: TransactionMetadata | None,
    transactional_id: str,
    expected: ProducerIdAndEpoch | None,
    *,
    timeout_ms: int,
    new_producer_id: int,
    now_ms: int,
    external_id: str = "",
) -> TransactionMetadata:
    """Give a transactional id to a producer, and fence its earlier producer (InitProducerId).

    ``expected`` is the producer id and epoch that the caller already has. The call succeeds only if no other producer
    took the id since. If a transaction is open, the result is its abort (``PREPARE_ABORT``), and the caller has to
    repeat the call after that. Kafka fences a producer that aborts its own transaction in this way. Here that producer
    may continue. ``external_id`` is the external id under which the coordinator assigns the transactional id.

    Raises ``ProducerFencedError``, and ``ConcurrentTransactionsError`` while the last transaction is not complete.
    """
    if current is None:
        return TransactionMetadata(
            transactional_id=transactional_id,
            producer_id=new_producer_id,
            epoch=0,
            timeout_ms=timeout_ms,
            updated_ms=now_ms,
            external_id=external_id,
        )
    if expected is not None:
        _check_not_ending_for(current, expected)
    _check_expected(current, expected)
    if current.state in PREPARED:
        raise _still_ending(current)
    if current.state is TransactionState.ONGOING:
        if expected is None:
            return fence(current, now_ms)
        if expected != current.producer:
            raise _fenced(current, expected)  # Kafka aborts the other producer's transaction before this answer
        return _prepare_end(current, committed=False, new_producer_id=new_producer_id, now_ms=now_ms)
    producer_id, previous_producer_id = current.producer_id, current.previous_producer_id
    if init_needs_producer_id(current, expected):
        producer_id, previous_producer_id = new_producer_id, current.producer_id
        epoch, last_epoch = 0, NO_PRODUCER_EPOCH if expected is None else current.epoch
    else:
        epoch, last_epoch = _next_epoch(current, expected)
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        previous_producer_id=previous_producer_id,
        epoch=epoch,
        last_epoch=last_epoch,
        timeout_ms=timeout_ms,
        updated_ms=now_ms,
        external_id=external_id,
    )


def _check_expected(current: TransactionMetadata, expected: ProducerIdAndEpoch | None) -> None:
    """Raise ``ProducerFencedError`` if another producer has the id; ``_next_epoch`` checks the epoch."""
    if expected is None or expected.producer_id == current.producer_id:
        return
    # The call is repeated, because the first answer with the next producer id was lost.
    if expected.producer_id == current.previous_producer_id and expected.epoch >= LAST_EPOCH:
        return
    raise _fenced(current, expected)


def _next_epoch(current: TransactionMetadata, expected: ProducerIdAndEpoch | None) -> tuple[int, int]:
    """Return the next epoch, and the last epoch to keep beside it."""
    if expected is None:
        return current.epoch + 1, NO_PRODUCER_EPOCH
    if expected.epoch == current.epoch <= LAST_EPOCH:
        return current.epoch + 1, current.epoch
    if expected.epoch == current.last_epoch:
        # The call is repeated, because the first answer was lost. Another producer would have left no last epoch.
        return current.epoch, current.last_epoch
    raise _fenced(current, expected)


# --- AddPartitionsToTxn ----------------------------------------------------------------------------------------------


def add_partitions(
    current: TransactionMetadata | None, producer: ProducerIdAndEpoch, partitions: Iterable[PartitionKey], now_ms: int
) -> TransactionMetadata | None:
    """Add partitions to a transaction, or begin it with them (AddPartitionsToTxn).

    Raises ``InvalidProducerIdMappingError``, ``ProducerFencedError``, ``ConcurrentTransactionsError``, and
    ``InvalidProducerEpochError`` after the transaction's timeout.
    """
    current = _known(current)
    _check_not_ending_for(current, producer)
    _check_not_aborted(current, producer)
    _check_producer(current, producer)
    if current.state in PREPARED:
        raise _fenced(current, producer)  # no producer has this epoch, which only fences
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
        version=TV_2,
    )


def verify(current: TransactionMetadata | None, producer: ProducerIdAndEpoch, partition: PartitionKey) -> None:
    """Check that a partition belongs to the producer's open transaction (KIP-890, part 1).

    Raises ``InvalidProducerIdMappingError``, ``ProducerFencedError``, ``ConcurrentTransactionsError``,
    ``InvalidProducerEpochError`` after the transaction's timeout, and ``AbortableTransactionError`` for a partition
    that was not added.
    """
    current = _known(current)
    _check_not_ending_for(current, producer)
    _check_not_aborted(current, producer)
    _check_producer(current, producer)
    if current.state is not TransactionState.ONGOING or partition not in current.partitions:
        topic, number = partition
        raise AbortableTransactionError(
            f"{topic}-{number} does not belong to an open transaction of {current.transactional_id}: abort the "
            "transaction, and add the partition before the first record of the next one"
        )


# --- EndTxn, fencing, timeout ----------------------------------------------------------------------------------------


def end_needs_producer_id(current: TransactionMetadata | None) -> bool:
    """Return whether ``end`` needs a new producer id for the next transaction."""
    return current is not None and not current.has_epochs_left and current.state not in PREPARED


def end(
    current: TransactionMetadata | None,
    producer: ProducerIdAndEpoch,
    *,
    committed: bool,
    new_producer_id: int,
    now_ms: int,
) -> TransactionMetadata | None:
    """Prepare the commit or the abort of a transaction (EndTxn); ``next_producer`` gives the answer.

    ``None`` means that the request is a repeated one, and its first answer was lost. A transaction that has not begun
    can be aborted, which raises the epoch.

    Raises ``InvalidProducerIdMappingError``, ``ProducerFencedError``, ``InvalidTxnStateError``, and
    ``ConcurrentTransactionsError`` while markers are being written.
    """
    current = _known(current)
    is_repeated = _is_repeated(current, producer)
    if not is_repeated:
        _check_not_ending_for(current, producer)
        _check_producer(current, producer)
        if current.state in PREPARED:
            raise _fenced(current, producer)  # no producer has this epoch, which only fences
    if is_repeated and committed != current.is_committed:
        raise _contradiction(current, committed)
    if current.state in PREPARED:
        raise _still_ending(current)
    if is_repeated:
        return None
    if current.state is not TransactionState.ONGOING and committed:
        raise _contradiction(current, committed)
    return _prepare_end(current, committed=committed, new_producer_id=new_producer_id, now_ms=now_ms)


def end_keeping_epoch(
    current: TransactionMetadata | None, producer: ProducerIdAndEpoch, *, committed: bool, now_ms: int
) -> TransactionMetadata | None:
    """Prepare the commit or the abort of a transaction of a producer that keeps its epoch (EndTxn before version 5).

    ``None`` means that the transaction has this end already, because the first answer was lost.

    Raises ``InvalidProducerIdMappingError``, ``ProducerFencedError``, ``InvalidTxnStateError``, and
    ``ConcurrentTransactionsError`` while markers are being written.
    """
    current = _known(current)
    _check_producer(current, producer)
    if current.state in PREPARED and current.version != TV_0:
        raise _fenced(current, producer)  # no producer has this epoch, which only fences
    if current.state is TransactionState.ONGOING:
        return replace(
            current,
            state=_PREPARED_BY_OUTCOME[committed],
            last_epoch=NO_PRODUCER_EPOCH,
            next_producer_id=NO_PRODUCER_ID,
            updated_ms=now_ms,
            version=TV_0,
        )
    if current.state is TransactionState.EMPTY or committed != current.is_committed:
        raise _contradiction(current, committed)
    if current.state in PREPARED:
        raise _still_ending(current)
    return None


def _prepare_end(
    current: TransactionMetadata, *, committed: bool, new_producer_id: int, now_ms: int
) -> TransactionMetadata:
    is_open = current.state is TransactionState.ONGOING
    return replace(
        current,
        state=_PREPARED_BY_OUTCOME[committed],
        epoch=current.epoch + 1,
        last_epoch=current.epoch,
        next_producer_id=NO_PRODUCER_ID if current.has_epochs_left else new_producer_id,
        partitions=current.partitions if is_open else frozenset(),
        started_ms=current.started_ms if is_open else now_ms,
        updated_ms=now_ms,
        version=TV_2,
    )


def fence(current: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Abort an open transaction because another producer takes over.

    The epoch is raised without an answer to the producer, which fences it.
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
        version=TV_2,
    )


def fence_unless_decided(current: TransactionMetadata, now_ms: int) -> TransactionMetadata | None:
    """Fence the producer of a transactional id, so that it writes no more records.

    ``None`` means that it cannot write anyway, because its transaction is decided or it was fenced before.
    """
    if current.state is TransactionState.ONGOING:
        return fence(current, now_ms)
    if current.state is not TransactionState.EMPTY or current.epoch == EPOCH_MAX:
        return None
    return replace(current, epoch=current.epoch + 1, last_epoch=NO_PRODUCER_EPOCH, updated_ms=now_ms)


def time_out(
    current: TransactionMetadata | None, producer: ProducerIdAndEpoch, now_ms: int
) -> TransactionMetadata | None:
    """Abort ``producer``'s transaction at its timeout, unless it has ended meanwhile.

    The producer may continue with the next epoch: its own abort (EndTxn) or InitProducerId gets that epoch, as if it
    had aborted the transaction itself. Its commit is refused.
    """
    if current is None or current.state is not TransactionState.ONGOING or current.producer != producer:
        return None
    aborted = fence(current, now_ms)
    return replace(aborted, last_epoch=current.epoch) if current.has_epochs_left else aborted


def next_producer(decided: TransactionMetadata) -> ProducerIdAndEpoch:
    """Return the producer id and epoch for the next transaction, after the end of the last one."""
    if decided.next_producer_id != NO_PRODUCER_ID:
        return ProducerIdAndEpoch(decided.next_producer_id, 0)
    return decided.producer


def complete(current: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Complete a transaction whose markers have all been written."""
    assert current.state in PREPARED, current
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


def is_expired(current: TransactionMetadata, now_ms: int, expiration_ms: int) -> bool:
    """Return whether a transactional id has been unused for ``transactional.id.expiration.ms``."""
    return current.state in IDLE and now_ms - current.updated_ms >= expiration_ms


# --- checks and errors -----------------------------------------------------------------------------------------------


def _is_repeated(current: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Return whether ``producer`` ended the last transaction and did not get the answer."""
    if current.last_epoch == NO_PRODUCER_EPOCH or producer.epoch != current.last_epoch:
        return False
    if current.state in PREPARED:
        return producer.producer_id == current.producer_id
    if current.state not in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
        return False
    was_rotated = current.epoch == 0
    return producer.producer_id == (current.previous_producer_id if was_rotated else current.producer_id)


def _known(current: TransactionMetadata | None) -> TransactionMetadata:
    if current is None:
        raise InvalidProducerIdMappingError(
            "the transactional id does not exist, or has expired: call init_transactions() again"
        )
    return current


def _check_not_ending_for(current: TransactionMetadata, producer: ProducerIdAndEpoch) -> None:
    """Raise ``ConcurrentTransactionsError`` for the producer of the next transaction while the last one is not
    complete.
    """
    was_told = current.last_epoch != NO_PRODUCER_EPOCH or current.version == TV_0
    if current.state in PREPARED and was_told and producer == next_producer(current):
        raise _still_ending(current)


def _check_not_aborted(current: TransactionMetadata, producer: ProducerIdAndEpoch) -> None:
    """Raise ``InvalidProducerEpochError`` if the producer's transaction was aborted, and no other producer has come.

    Partitions refuse the producer's records with the same error. The producer may continue after its own abort.
    """
    if _is_repeated(current, producer) and not current.is_committed:
        raise InvalidProducerEpochError(
            f"the transaction of {current.transactional_id} with epoch {producer.epoch} was aborted, for example at "
            "transaction.timeout.ms: abort it, and begin another one"
        )


def _check_producer(current: TransactionMetadata, producer: ProducerIdAndEpoch) -> None:
    if producer.producer_id != current.producer_id:
        raise InvalidProducerIdMappingError(
            f"transactional id {current.transactional_id} has producer id {current.producer_id}, not "
            f"{producer.producer_id}: call init_transactions() again"
        )
    if producer.epoch != current.epoch or producer.epoch > LAST_EPOCH:
        raise _fenced(current, producer)


def _fenced(current: TransactionMetadata, producer: ProducerIdAndEpoch) -> ProducerFencedError:
    return ProducerFencedError(
        f"epoch {producer.epoch} of producer {producer.producer_id} is fenced by epoch {current.epoch} of producer "
        f"{current.producer_id}, because another producer uses transactional id {current.transactional_id} or the "
        "transaction timed out (transaction.timeout.ms): use one transactional id for one producer"
    )


def _still_ending(current: TransactionMetadata) -> ConcurrentTransactionsError:
    return ConcurrentTransactionsError(
        f"markers of the last transaction of {current.transactional_id} are still being written: retry"
    )


def _contradiction(current: TransactionMetadata, committed: bool) -> InvalidTxnStateError:
    outcome = "committed" if committed else "aborted"
    return InvalidTxnStateError(
        f"the transaction of {current.transactional_id} cannot be {outcome} in state {current.state.kafka_name}: "
        "begin a transaction first, and end it within transaction.timeout.ms"
    )
