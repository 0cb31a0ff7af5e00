"""Transaction methods of ``Producer`` (KIP-98, KIP-890)."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Self

from millrace.clients.connections import Connections
from millrace.clients.model import ConsumerGroupMetadata, OffsetAndMetadata, PreparedTransaction, TopicPartition
from millrace.clients.producing.accumulator import Accumulator
from millrace.clients.producing.sender import Sender
from millrace.clients.producing.transactions import Transactions, offsets_of
from millrace.clients.transactions.model import CommitOutcome
from millrace.config.client import ProducerConfig
from millrace.errors import (
    AbortableTransactionError,
    InvalidTxnStateError,
    MillraceError,
    RequestTimedOutError,
    TransactionAbortedError,
    UsageError,
)

logger = logging.getLogger(__name__)


class TransactionCalls:
    """Transaction calls of a producer with a ``transactional.id``.

    One call at a time, from any thread. In a callback of the producer each of them raises ``UsageError``.
    """

    _config: ProducerConfig
    _connections: Connections
    _records: Accumulator
    _sender: Sender
    _transactions: Transactions | None

    def init_transactions(self) -> None:
        """Initialize transactions; an earlier producer with the same ``transactional.id`` is fenced.

        The coordinator aborts the earlier producer's open transaction. Call this once, before all other calls, and
        again after a retriable error. Raises ``InvalidTxnStateError`` without a ``transactional.id``,
        ``InvalidTransactionTimeoutError``, ``RequestTimedOutError`` after ``max.block.ms``.
        """
        transactions = self._needed_transactions()
        with transactions.operation:
            transactions.initialize()

    def join_commit(
        self, external_epoch: int, *, attempt: str, owner: str = "", retention_ms: int = 0
    ) -> CommitOutcome:
        """Prepare a transaction that ``Admin.commit_transactions`` will commit with others of the same attempt.

        Call it instead of ``init_transactions`` and before each transaction. ``coordinator.key`` is the external id;
        the coordinator assigns a ``transactional.id`` under it. ``attempt`` names this execution of the external
        epoch. A new attempt aborts the open transactions of other attempts, and fences them. ``owner`` alone may use
        the external id. ``retention_ms`` is how long an unused external id is kept (0: for ever).

        If ``was_committed_before`` is true, there is nothing to write, and no transaction can begin. Raises
        ``CommitOwnerError``, ``ProducerFencedError``, ``InvalidTxnStateError`` while a transaction is open.
        """
        transactions = self._needed_transactions()
        if not self._config.coordinator_key:
            raise InvalidTxnStateError(
                "this producer commits its own transactions: set coordinator.key to the external id"
            )
        with transactions.operation:
            return transactions.join(external_epoch, attempt, owner, retention_ms)

    def begin_transaction(self) -> None:
        """Begin a transaction: all later sends are committed or aborted together.

        Raises ``InvalidTxnStateError`` if one is open, ``ProducerFencedError``.
        """
        transactions = self._needed_transactions()
        with transactions.operation:
            transactions.begin()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata | str,
    ) -> None:
        """Commit a consumer group's offsets, those of the next records to read, with the transaction.

        ``group_metadata`` is ``Consumer.group_metadata()``, which fences former members, or just the group's id.
        After an error the transaction can only be aborted. Raises ``CommitFailedError`` if the group has rebalanced,
        ``InvalidTxnStateError`` outside a transaction.
        """
        transactions = self._needed_transactions()
        group = ConsumerGroupMetadata(group_id=group_metadata) if isinstance(group_metadata, str) else group_metadata
        with transactions.operation:
            transactions.send_offsets(offsets_of(offsets), group)

    def commit_transaction(self) -> None:
        """Send the remaining records and commit; after the return, readers of committed records will see the
        transaction.

        Raises ``AbortableTransactionError`` with the failure: abort, and begin a new transaction. Raises
        ``ProducerFencedError``, and ``InvalidTxnStateError`` if the broker aborted the transaction at its
        ``transaction.timeout.ms``: close the producer. Raises ``RequestTimedOutError`` after ``max.block.ms``: the
        outcome is unknown, so call it again.
        """
        transactions = self._needed_transactions()
        with transactions.operation:
            deadline = time.monotonic() + transactions.max_block_s
            transactions.begin_commit()
            self._flush_transaction(transactions, deadline)
            transactions.end(committed=True, timeout_s=deadline - time.monotonic())

    def abort_transaction(self) -> None:
        """Drop unsent records, and abort: readers of committed records will see none of the transaction.

        The futures of unsent records fail with ``TransactionAbortedError``. Raises ``InvalidTxnStateError`` if no
        transaction is open, ``ProducerFencedError``, ``RequestTimedOutError``.
        """
        transactions = self._needed_transactions()
        with transactions.operation:
            self._abort(transactions, transactions.max_block_s)

    def _abort(self, transactions: Transactions, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        transactions.begin_abort()
        name = self._config.transactional_id
        self._records.abandon(TransactionAbortedError(f"the transaction of {name} was aborted before this was sent"))
        self._sender.wake()
        if not self._sender.wait_until_idle(max(deadline - time.monotonic(), 0)):
            raise RequestTimedOutError(f"records of {name} are still in flight: call abort_transaction() again")
        transactions.end(committed=False, timeout_s=deadline - time.monotonic())

    def _flush_transaction(self, transactions: Transactions, deadline: float) -> None:
        """Wait for all records of a transaction; raises if it can only be aborted."""
        self._records.drain_all()
        if not self._sender.wait_until_idle(max(deadline - time.monotonic(), 0)):
            raise RequestTimedOutError(
                f"not all records of {self._config.transactional_id} were acknowledged within max.block.ms="
                f"{self._config.max_block_ms}: call it again"
            )
        if (error := transactions.sending_error()) is not None:
            raise error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Self]:
        """Begin a transaction and commit it, or abort it if the block (or the commit) fails.

        Raises the errors of the block, ``begin_transaction`` and ``commit_transaction``.
        """
        transactions = self._needed_transactions()
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            self._abort_after_failure(transactions)
            raise
        try:
            self.commit_transaction()
        except AbortableTransactionError:
            self._abort_after_failure(transactions)
            raise

    def _abort_after_failure(self, transactions: Transactions) -> None:
        """Abort without hiding the original error; a transaction that cannot be aborted now times out at the broker."""
        if not transactions.state.is_open:
            return
        try:
            self.abort_transaction()
        except MillraceError as error:
            logger.warning("the transaction of %s could not be aborted: %s", self._config.transactional_id, error)

    def prepared_transaction(self) -> PreparedTransaction | None:
        """Send all of the open transaction and return the data with which ``Admin.commit_transactions`` commits it.

        Returns ``None`` if nothing was sent, because there is nothing to commit. Afterwards no more records can be
        sent. Closing the producer does not abort the transaction; ``transaction.timeout.ms`` still does. Raises
        ``AbortableTransactionError`` if a part has failed.
        """
        transactions = self._needed_transactions()
        with transactions.operation:
            transactions.begin_prepare()
            self._flush_transaction(transactions, time.monotonic() + transactions.max_block_s)
            return transactions.prepared()

    def _needed_transactions(self) -> Transactions:
        """Return the transactions, for a call that may wait for a broker or for another thread's call.

        Raises ``UsageError`` in a callback. Another thread's commit waits for the callback, which would wait for the
        commit. The error comes before any change of the transaction.
        """
        self._connections.check_open()
        if self._transactions is None:
            raise InvalidTxnStateError("this producer has no transactions: set transactional.id")
        if self._sender.is_in_callback:
            raise UsageError("a producer's callback cannot call its transactions: begin, commit or abort elsewhere")
        return self._transactions
