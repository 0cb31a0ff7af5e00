"""Errors of producers and their transactions."""

from __future__ import annotations

from millrace.errors.base import MillraceError


class NotEnoughReplicasError(MillraceError):
    """Fewer replicas are in sync than ``min.insync.replicas``; nothing was appended."""

    code = 19
    retriable = True


class InvalidRequiredAcksError(MillraceError):
    """``acks`` is not 0, 1 or -1 (all)."""

    code = 21


class OutOfOrderSequenceError(MillraceError):
    """A batch of an idempotent producer does not follow the previous one."""

    code = 45


class DuplicateSequenceError(MillraceError):
    """A batch of an idempotent producer was already appended, but its offset is no longer known."""

    code = 46


class InvalidProducerEpochError(MillraceError):
    """A newer instance of this producer has taken over and fenced this one."""

    code = 47


class InvalidTxnStateError(MillraceError):
    """A batch or request does not fit the state of its producer's transaction."""

    code = 48


class TransactionCoordinatorFencedError(MillraceError):
    """A transaction marker comes from a coordinator that has been replaced."""

    code = 52


class InvalidProducerIdMappingError(MillraceError):
    """The producer id does not belong to the transactional id: initialise the transactions again."""

    code = 49


class InvalidTransactionTimeoutError(MillraceError):
    """``transaction.timeout.ms`` is above the broker's ``transaction.max.timeout.ms``."""

    code = 50


class ConcurrentTransactionsError(MillraceError):
    """The previous transaction is still being ended."""

    code = 51
    retriable = True


class UnknownProducerIdError(MillraceError):
    """The partition has no state of the producer that ends a transaction."""

    code = 59


class ProducerFencedError(MillraceError):
    """A newer producer with the same transactional id has taken over, or its transaction timed out."""

    code = 90


class OperationNotAttemptedError(MillraceError):
    """This item was not processed, because another item of the request was refused."""

    code = 55


class TransactionalIdNotFoundError(MillraceError):
    """The transactional id does not exist."""

    code = 105


class AbortableTransactionError(MillraceError):
    """The transaction cannot be committed: abort it, and begin another one."""

    code = 120


class CommitOwnerError(MillraceError):
    """Producers cannot commit together under this external id, because it has another owner."""

    code = 1070
