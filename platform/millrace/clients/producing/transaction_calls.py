"""The part of ``Producer`` that is about transactions (KIP-98, KIP-890): what an application calls."""

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
)

logger = logging.getLogger(__name__)


class TransactionCalls:
    """Transactions, for a producer with a ``transactional.id``. One call at a time, from any thread."""

    _config: ProducerConfig
    _connections: Connections
    _records: Accumulator
    _sender: Sender
    _transactions: Transactions | None

    def init_transactions(self) -> None:
        """Get ready for transactions; an earlier producer of the same ``transactional.id`` is fenced off.

        What it left open is aborted. Call it once, before all else; after an error that may pass, again. Raises
        ``InvalidTxnStateError`` without a ``transactional.id``, ``InvalidTransactionTimeoutError``,
        ``RequestTimedOutError`` after ``max.block.ms``.
        """
        transactions = self._needed_transactions()
        with transactions.operation:
            transactions.initialize()

    def join_commit(
        self, external_epoch: int, *, attempt: str, owner: str = "", retention_ms: int = 0
    ) -> CommitOutcome:
        """Get ready for a transaction that ``Admin.commit_transactions`` will commit with others of the same attempt.

        Called instead of ``init_transactions`` and before each transaction; ``coordinator.key`` is the external id, and
        ``transactional.id`` becomes a place under it that the coordinator gives. ``attempt`` names this execution of
        the external epoch. One that is new aborts what others have open, and fences them. ``owner`` is who alone may
        use the external id, ``retention_ms`` how long it is remembered when it is not used (0: for ever).

        Where ``was_committed_before`` is true there is nothing to write, and no transaction can begin. Raises
        ``CommitOwnerError``, ``ProducerFencedError``, ``InvalidTxnStateError`` while a transaction is open.
        """
        transactions = self._needed_transactions()
        if not self._config.coordinator_key:
            raise InvalidTxnStateError("this producer commits for itself: set coordinator.key to the external id")
        with transactions.operation:
            return transactions.join(external_epoch, attempt, owner, retention_ms)

    def begin_transaction(self) -> None:
        """Begin a transaction: what is sent from now on is committed or aborted together.

        Raises ``InvalidTxnStateError`` when one is open, ``ProducerFencedError``.
        """
        transactions = self._needed_transactions()
        with transactions.operation:
            transactions.begin()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata | str,
    ) -> None:
        """Commit a consumer group's offsets with the transaction: those of the next records to read.

        ``group_metadata`` is ``Consumer.group_metadata()``, by which members that are none any more are fenced, or just
        the group's id. After an error the transaction can only be aborted. Raises ``CommitFailedError`` when the group
        has rebalanced, ``InvalidTxnStateError`` outside a transaction.
        """
        transactions = self._needed_transactions()
        group = ConsumerGroupMetadata(group_id=group_metadata) if isinstance(group_metadata, str) else group_metadata
        with transactions.operation:
            transactions.send_offsets(offsets_of(offsets), group)

    def commit_transaction(self) -> None:
        """Send what is left and commit; when this returns, readers of committed records will see all of it.

        Raises ``AbortableTransactionError`` naming what failed: abort, and begin anew; ``ProducerFencedError``: close;
        ``RequestTimedOutError`` after ``max.block.ms``: call it again, for it is not known whether it happened.
        """
        transactions = self._needed_transactions()
        with transactions.operation:
            deadline = time.monotonic() + transactions.max_block_s
            transactions.begin_commit()
            self._flush_transaction(transactions, deadline)
            transactions.end(committed=True, timeout_s=deadline - time.monotonic())

    def abort_transaction(self) -> None:
        """Drop what was not sent, and abort: readers of committed records will see none of it.

        The futures of records that were not sent fail with ``TransactionAbortedError``. Raises
        ``InvalidTxnStateError`` when none is open, ``ProducerFencedError``, ``RequestTimedOutError``.
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
        if not self._sender.wait_until_sent(max(deadline - time.monotonic(), 0)):
            raise RequestTimedOutError(f"records of {name} are still under way: call abort_transaction() again")
        transactions.end(committed=False, timeout_s=deadline - time.monotonic())

    def _flush_transaction(self, transactions: Transactions, deadline: float) -> None:
        """Wait for all records of a transaction; raises when it can only be aborted."""
        self._records.drain_all()
        if not self._sender.wait_until_sent(max(deadline - time.monotonic(), 0)):
            raise RequestTimedOutError(
                f"not all records of {self._config.transactional_id} were acknowledged within max.block.ms="
                f"{self._config.max_block_ms}: call it again"
            )
        if (error := transactions.sending_error()) is not None:
            raise error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Self]:
        """Begin a transaction and commit it, or abort it when the block (or the commit) fails.

        Raises what the block, ``begin_transaction`` and ``commit_transaction`` raise.
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
        """Abort without hiding the error that led here; what cannot be aborted now times out at the broker."""
        if not transactions.state.is_open:
            return
        try:
            self.abort_transaction()
        except MillraceError as error:
            logger.warning("the transaction of %s could not be aborted: %s", self._config.transactional_id, error)

    def prepared_transaction(self) -> PreparedTransaction | None:
        """Send all of the open transaction and return what ``Admin.commit_transactions`` needs to commit it.

        ``None`` when nothing was sent: then there is nothing to commit. After that nothing more can be sent, and
        closing the producer does not abort it; ``transaction.timeout.ms`` still does. Raises
        ``AbortableTransactionError`` when a part has failed.
        """
        transactions = self._needed_transactions()
        with transactions.operation:
            transactions.begin_prepare()
            self._flush_transaction(transactions, time.monotonic() + transactions.max_block_s)
            return transactions.prepared()

    def _needed_transactions(self) -> Transactions:
        self._connections.check_open()
        if self._transactions is None:
            raise InvalidTxnStateError("this producer has no transactions: set transactional.id")
        return self._transactions
