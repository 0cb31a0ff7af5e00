"""Errors of producers and their transactions."""

from __future__ import annotations

from millrace.errors.base import MillraceError


class NotEnoughReplicasError(MillraceError):
    """Fewer replicas are in sync than ``min.insync.replicas``; nothing was appended."""

    code = 19
    retriable = True


class InvalidRequiredAcksError(MillraceError):
    """``acks`` is not one of 0, 1, -1 (all)."""

    code = 21


class OutOfOrderSequenceError(MillraceError):
    """An idempotent producer's batch does not follow the one before it."""

    code = 45


class DuplicateSequenceError(MillraceError):
    """An idempotent producer's batch was already appended, too long ago for its offset to be known."""

    code = 46


class InvalidProducerEpochError(MillraceError):
    """A newer instance of this producer has taken over (fencing)."""

    code = 47


class InvalidTxnStateError(MillraceError):
    """A batch or request does not fit the state of its producer's transaction."""

    code = 48


class TransactionCoordinatorFencedError(MillraceError):
    """A transaction marker comes from a coordinator that another has replaced."""

    code = 52


class InvalidProducerIdMappingError(MillraceError):
    """The producer id is not that of the transactional id: initialise the transactions anew."""

    code = 49


class InvalidTransactionTimeoutError(MillraceError):
    """``transaction.timeout.ms`` is above what the broker allows (``transaction.max.timeout.ms``)."""

    code = 50


class ConcurrentTransactionsError(MillraceError):
    """The transaction before this one is still being ended."""

    code = 51
    retriable = True


class UnknownProducerIdError(MillraceError):
    """Nothing is known (any more) of the producer that ends a transaction in a partition."""

    code = 59


class ProducerFencedError(MillraceError):
    """A newer producer with the same transactional id has taken over, or its transaction timed out."""

    code = 90


class OperationNotAttemptedError(MillraceError):
    """Nothing was done about this item, because another one of the request was refused."""

    code = 55


class TransactionalIdNotFoundError(MillraceError):
    """There is no such transactional id."""

    code = 105


class AbortableTransactionError(MillraceError):
    """The transaction cannot be committed any more: abort it, and begin another one."""

    code = 120


class CommitOwnerError(MillraceError):
    """Producers cannot be committed together under this external id: it belongs to somebody else."""

    code = 1070
