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
    """A batch of an idempotent producer was already appended.

    Its offset is no longer known.
    """

    code = 46


class InvalidProducerEpochError(MillraceError):
    """A newer instance has fenced this producer, or its transaction timed out.

    The transaction can be aborted. The abort raises ``ProducerFencedError`` if there is a newer instance.
    """

    code = 47


class InvalidTxnStateError(MillraceError):
    """A batch or request does not fit its transaction's state."""

    code = 48


class TransactionCoordinatorFencedError(MillraceError):
    """A transaction marker comes from a coordinator that has been replaced."""

    code = 52


class InvalidProducerIdMappingError(MillraceError):
    """The producer id does not belong to the transactional id.

    The producer must initialise its transactions again.
    """

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
    """A newer producer has taken over, or the transaction timed out.

    The newer producer has the same transactional id.
    """

    code = 90


class OperationNotAttemptedError(MillraceError):
    """This item was not processed, because another item was refused.

    Both items are of the same request.
    """

    code = 55


class TransactionalIdNotFoundError(MillraceError):
    """The transactional id does not exist."""

    code = 105


class AbortableTransactionError(MillraceError):
    """The transaction cannot be committed: abort it, and begin another one."""

    code = 120


class CommitOwnerError(MillraceError):
    """The external id has another owner. Producers cannot commit under it."""

    code = 1070
