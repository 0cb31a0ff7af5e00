"""Driver of the transaction state machine, with retried coordinator calls.

The application's calls (init, begin, commit, abort, offsets) are serialized, whatever threads they come from. Between
them the sender asks whether it may send, and reports failures. No lock is held during a call to the broker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from millrace.clients.backoff import backoff_s
from millrace.clients.connections import Connections
from millrace.clients.grouped_by_topic import topic_commits, topic_partitions
from millrace.clients.membership.coordinator import Coordinator, check_topic_errors
from millrace.clients.model import ConsumerGroupMetadata, OffsetAndMetadata, PreparedTransaction, TopicPartition
from millrace.clients.producing.transaction_state import CoordinatorView, TransactionPhase, TransactionState
from millrace.clients.transactions.model import CommitOutcome
from millrace.config.client import ProducerConfig
from millrace.errors import (
    BrokerUnavailableError,
    ClientClosedError,
    ClusterAuthorizationError,
    CommitFailedError,
    ConcurrentTransactionsError,
    FencedInstanceIdError,
    IllegalGenerationError,
    InvalidGroupIdError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    MillraceError,
    ProducerFencedError,
    RequestTimedOutError,
    SchemaMismatchError,
    TransactionAbortedError,
    TransactionalIdAuthorizationError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    UsageError,
)
from millrace.protocol import millrace_pb2 as pb

if TYPE_CHECKING:
    import grpc

    from millrace.protocol.millrace_pb2_grpc import BrokerStub

    Method = grpc.UnaryUnaryMultiCallable

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

_CONCURRENT_WAIT_S: Final = 0.02
"""Retry interval while the previous transaction ends; like Kafka's, it is shorter than ``retry.backoff.ms``."""
_FATAL_FOR_BATCHES: Final = (
    ClusterAuthorizationError,
    InvalidProducerIdMappingError,
    ProducerFencedError,
    TransactionalIdAuthorizationError,
    UnsupportedVersionError,
)
"""Errors of a batch after which a producer is unusable (Kafka's ``maybeTransitionToErrorState``).

After an authorization error of a topic or group, the transaction can be aborted and the producer used on.
"""
_FATAL: Final = (*_FATAL_FOR_BATCHES, InvalidTransactionTimeoutError, InvalidTxnStateError, UsageError)
"""Errors of a coordinator after which a producer is unusable."""
_WRONG_CALLS: Final = (SchemaMismatchError, UsageError)
"""Errors of sends that Kafka's producer throws before it changes the transaction (its ``SerializationException``)."""
_LEFT_GROUP: Final = (FencedInstanceIdError, IllegalGenerationError, UnknownMemberError)


class Transactions:
    """Transactions of one producer. Thread safe.

    ``on_leaving`` is called when records can no longer be sent, because a transaction is being ended or has failed.
    """

    def __init__(self, config: ProducerConfig, connections: Connections, on_leaving: Callable[[], None]) -> None:
        self._config = config
        self._connections = connections
        self._coordinator = Coordinator(connections, config.coordinator_key or config.transactional_id, pb.TRANSACTION)
        self._lock = threading.Lock()
        self._state = TransactionState(transactional_id=config.transactional_id)
        self._on_leaving = on_leaving
        self.operation: Final = threading.RLock()
        """Lock held during each of the application's calls."""

    @property
    def state(self) -> TransactionState:
        """Current state of the producer."""
        return self._state

    @property
    def identity(self) -> tuple[int, int]:
        """Producer id and epoch of new batches."""
        state = self._state
        return state.producer_id, state.epoch

    @property
    def _id(self) -> str:
        return self._state.transactional_id

    @property
    def max_block_s(self) -> float:
        """Time limit of the application's calls."""
        return self._config.max_block_ms / 1000

    def check_can_send(self) -> None:
        """Raise the error, if any, with which a send must fail now."""
        self._state.check_can_send()

    # --- the application's calls -----------------------------------------------------------------------------------

    def initialize(self) -> None:
        """Get id and epoch; an earlier producer of the transactional id is fenced and its open transaction aborted."""
        self._change(TransactionState.initializing)
        request = pb.InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=self._config.transaction_timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
            coordinator_key=self._config.coordinator_key,
        )
        answer = self._call("init_transactions", lambda stub: stub.InitProducerId, request, self.max_block_s)
        self._change(lambda state: state.initialized(answer.producer_id, answer.producer_epoch))

    def join(self, external_epoch: int, attempt: str, owner: str, retention_ms: int) -> CommitOutcome:
        """Get a transactional id, producer id and epoch for a joint commit; the former state is discarded."""
        self._state.check_can_join()
        request = pb.JoinCommitRequest(
            external_id=self._config.coordinator_key,
            external_epoch=external_epoch,
            owner=owner,
            attempt=attempt,
            transaction_timeout_ms=self._config.transaction_timeout_ms,
            retention_ms=retention_ms,
        )
        answer = self._call("join_commit", lambda stub: stub.JoinCommit, request, self.max_block_s)
        if not answer.was_committed_before:
            place = answer.transactional_id, answer.producer_id, answer.producer_epoch
            self._change(lambda state: state.joined(*place))
        return CommitOutcome(
            was_committed_before=answer.was_committed_before, last_committed_epoch=answer.last_committed_epoch
        )

    def begin(self) -> None:
        """Begin a transaction for the records that are sent from now on."""
        self._change(TransactionState.begun)

    def begin_commit(self) -> None:
        """Refuse further records; raises ``AbortableTransactionError``."""
        self._change(TransactionState.committing)

    def begin_abort(self) -> None:
        """Refuse further records, and drop the waiting ones."""
        self._change(TransactionState.aborting)

    def end(self, *, committed: bool, timeout_s: float) -> None:
        """End the transaction at the coordinator, after all sends are complete, and take the next epoch from it.

        Raises ``AbortableTransactionError`` if a part of a transaction that was to be committed has failed.
        """
        state = self._state
        if committed and state.coordinator is CoordinatorView.PERHAPS:
            self.part_failed(
                RequestTimedOutError("it is not known whether the coordinator added all of it to the transaction")
            )
            state = self._state
        if state.phase is not (TransactionPhase.COMMITTING if committed else TransactionPhase.ABORTING):
            state.check_can_send()
        producer_id, epoch = state.producer_id, state.epoch
        if state.must_be_ended:
            request = pb.EndTxnRequest(
                transactional_id=self._id,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=committed,
                coordinator_key=self._config.coordinator_key,
            )
            what = "commit_transaction" if committed else "abort_transaction"
            is_unsure = state.coordinator is CoordinatorView.PERHAPS
            try:
                answer = self._call(
                    what, lambda stub: stub.EndTxn, request, timeout_s, spared=InvalidTxnStateError if is_unsure else ()
                )
                producer_id, epoch = answer.producer_id, answer.producer_epoch
            except InvalidTxnStateError:
                if not is_unsure:
                    raise
                # The call that might have opened the transaction failed, so there is nothing to abort.
        self._change(lambda state: state.ended(producer_id, epoch))

    def begin_prepare(self) -> None:
        """Refuse further records, because ``Admin.commit_transactions`` ends the transaction."""
        self._change(TransactionState.prepared)

    def prepared(self) -> PreparedTransaction | None:
        """Return the transaction to commit, after everything is sent; ``None`` if it is empty."""
        state = self._state
        if not state.must_be_ended:
            return None
        return PreparedTransaction(transactional_id=self._id, producer_id=state.producer_id, producer_epoch=state.epoch)

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata) -> None:
        """Commit a group's offsets with the transaction; a failure makes the transaction abortable."""
        if not group.group_id:
            raise InvalidGroupIdError("the offsets belong to a group: pass group metadata with its id")
        self.check_can_send()
        if not offsets:
            return
        deadline = time.monotonic() + self.max_block_s
        producer_id, epoch = self.identity
        self._change(TransactionState.adding)
        add = pb.AddOffsetsToTxnRequest(
            transactional_id=self._id,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id=group.group_id,
            coordinator_key=self._config.coordinator_key,
        )
        commit = pb.TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=group.group_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            generation_id=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=topic_commits(offsets),
            coordinator_key=self._config.coordinator_key,
        )
        what = "send_offsets_to_transaction"
        try:
            self._call(what, lambda stub: stub.AddOffsetsToTxn, add, self.max_block_s)
            self._change(lambda state: state.added_to(frozenset()))
            self._call(
                what,
                lambda stub: stub.TxnOffsetCommit,
                commit,
                deadline - time.monotonic(),
                coordinator=Coordinator(self._connections, group.group_id, pb.GROUP),
                check=lambda answer: check_topic_errors(answer.topics),
            )
        except _LEFT_GROUP as error:
            failure = CommitFailedError(
                f"offsets of group {group.group_id} were not committed, because the group has rebalanced: "
                f"abort the transaction, and poll again ({error.message})"
            )
            self.part_failed(failure)
            raise failure from error
        except ClientClosedError:
            raise
        except MillraceError as error:
            self.part_failed(error)
            raise

    # --- the sender's questions and reports ------------------------------------------------------------------------

    def sending_error(self) -> MillraceError | None:
        """Return the error, if any, with which waiting batches must fail."""
        return self._state.sending_error()

    def check_can_drain(self) -> None:
        """Raise the error with which new batches must fail, for example after the end of their transaction."""
        state = self._state
        if (error := state.sending_error()) is not None:
            raise error
        if state.phase not in (TransactionPhase.COMMITTING, TransactionPhase.PREPARED):
            state.check_can_send()

    def add_partitions(self, partitions: Iterable[TopicPartition], timeout_ms: int) -> None:
        """Add partitions to the transaction at the coordinator before anything is sent to them.

        Makes one call, or none; a retriable error is raised like any other. A permanent error makes the transaction
        abortable, or the producer unusable.
        """
        missing = self._state.missing(frozenset(partitions))
        if not missing:
            return
        state = self._change(TransactionState.adding)
        request = pb.AddPartitionsToTxnRequest(
            transactional_id=self._id,
            producer_id=state.producer_id,
            producer_epoch=state.epoch,
            topics=topic_partitions(missing),
            coordinator_key=self._config.coordinator_key,
        )
        try:
            answer = self._connections.once(
                lambda stub: stub.AddPartitionsToTxn,
                request,
                address=self._coordinator.address(timeout_ms),
                timeout_ms=timeout_ms,
            )
            check_topic_errors(answer.topics)
        except MillraceError as error:
            self._coordinator.notice(error)
            if not error.retriable or isinstance(error, UnknownTopicOrPartitionError):
                raise self._note(error) from error
            raise
        self._change(lambda state: state.added_to(missing))

    def batch_failed(self, error: MillraceError) -> None:
        """Record that a batch of the transaction is lost, or that records could not become a batch."""
        if isinstance(error, _FATAL_FOR_BATCHES):
            self._break(error)
        elif not isinstance(error, (ClientClosedError, TransactionAbortedError)):
            self.part_failed(error)

    def send_refused(self, error: MillraceError) -> None:
        """Record that a send was refused as a whole, before any of its records was accepted.

        As in Kafka's producer, the transaction then fails, unless the records or the call were wrong. In that case the
        caller gets the error, and can send other records.
        """
        if not isinstance(error, _WRONG_CALLS):
            self.batch_failed(error)

    def part_failed(self, error: MillraceError) -> None:
        """Record that the transaction can only be aborted."""
        self._change(lambda state: state.failed(error))

    # --- calls -------------------------------------------------------------------------------------------------------

    def _change(self, event: Callable[[TransactionState], TransactionState]) -> TransactionState:
        with self._lock:
            before, self._state = self._state, event(self._state)
            state = self._state
        if before.phase is TransactionPhase.IN_TRANSACTION is not state.phase:
            self._on_leaving()
        return state

    def _break(self, error: MillraceError) -> None:
        self._change(lambda state: state.broken(error))

    def _note(self, error: MillraceError) -> MillraceError:
        """Apply a permanent error to the state, and return the error for the application.

        After an ``InvalidProducerEpochError`` the transaction can be aborted, as after that of a batch. The broker may
        have aborted it at its timeout; then the producer can be used on.
        """
        if isinstance(error, _FATAL):
            self._break(error)
        elif not isinstance(error, ClientClosedError):
            self.part_failed(error)
        return error

    def _call(
        self,
        what: str,
        method: Callable[[BrokerStub], Method[Asked, Answer]],
        request: Asked,
        timeout_s: float,
        *,
        coordinator: Coordinator | None = None,
        check: Callable[[Answer], None] = lambda answer: None,
        spared: type[MillraceError] | tuple[()] = (),
    ) -> Answer:
        """Call the coordinator until it answers, with retries of retriable errors.

        A permanent error is applied to the state, unless it is one of ``spared``.
        """
        asked = coordinator or self._coordinator
        deadline = time.monotonic() + timeout_s
        attempt = 0
        while True:
            left_ms = max(int((deadline - time.monotonic()) * 1000), 1)
            try:
                answer = self._connections.once(method, request, address=asked.address(left_ms), timeout_ms=left_ms)
                check(answer)
                return answer
            except spared:
                raise
            except MillraceError as error:
                asked.notice(error)
                if not error.retriable:
                    raise self._note(error) from error
                is_concurrent = isinstance(error, ConcurrentTransactionsError)
                wait_s = _CONCURRENT_WAIT_S if is_concurrent else backoff_s(self._config, attempt)
                if time.monotonic() + wait_s > deadline:
                    kind = BrokerUnavailableError if isinstance(error, BrokerUnavailableError) else RequestTimedOutError
                    raise kind(
                        f"{what} of transactional.id={self._id} did not succeed within max.block.ms="
                        f"{self._config.max_block_ms}: {error.message}; call it again"
                    ) from error
            attempt += 1
            self._connections.wait(wait_s)


def offsets_of(
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return offsets to commit from a caller's arguments; raises ``UsageError`` for negative ones."""
    found = {}
    for partition, given in offsets.items():
        committed = OffsetAndMetadata(offset=given) if isinstance(given, int) else given
        if committed.offset < 0:
            raise UsageError(f"offset {committed.offset} of {partition} cannot be committed: it is 0 or more")
        found[TopicPartition(*partition)] = committed
    return found
