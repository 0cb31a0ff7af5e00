"""State machine of a transactional producer (Kafka's ``TransactionManager`` without its queues).

The machine is pure, because it calls no broker and has no clock. Each event returns the next state, or raises
``InvalidTxnStateError`` if it is not allowed in this state.

Invariants: ``FATAL_ERROR`` is final. A transaction ends only by ``ended``, and the epoch is then the coordinator's
newest. The coordinator raises the epoch at every end (KIP-890). Therefore a late batch of a former transaction is never
taken for one of the next. A partition's records are sent only after the coordinator has added the partition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from millrace.clients.model import TopicPartition
from millrace.errors import (
    AbortableTransactionError,
    InvalidTxnStateError,
    MillraceError,
    TransactionAbortedError,
)


class TransactionPhase(StrEnum):
    """Phase of a transactional producer (Kafka's ``TransactionManager.State``)."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"
    FATAL_ERROR = "fatal error"


class CoordinatorView(StrEnum):
    """State of the current transaction at the coordinator.

    ``OPEN`` means that the coordinator holds a part of the transaction that must be ended.
    """

    NOTHING = "nothing"
    PERHAPS = "perhaps"
    """A call that adds to the transaction was made, and its outcome is unknown."""
    OPEN = "open"


_Phase = TransactionPhase
_SOURCES: Final[dict[TransactionPhase, frozenset[TransactionPhase]]] = {
    _Phase.INITIALIZING: frozenset({_Phase.UNINITIALIZED, _Phase.INITIALIZING}),
    _Phase.READY: frozenset({_Phase.INITIALIZING, _Phase.COMMITTING, _Phase.ABORTING}),
    _Phase.IN_TRANSACTION: frozenset({_Phase.READY}),
    _Phase.PREPARED: frozenset({_Phase.IN_TRANSACTION, _Phase.PREPARED}),
    _Phase.COMMITTING: frozenset({_Phase.IN_TRANSACTION, _Phase.COMMITTING}),
    _Phase.ABORTING: frozenset({_Phase.IN_TRANSACTION, _Phase.PREPARED, _Phase.ABORTABLE_ERROR, _Phase.ABORTING}),
    _Phase.ABORTABLE_ERROR: frozenset(
        {_Phase.IN_TRANSACTION, _Phase.PREPARED, _Phase.COMMITTING, _Phase.ABORTABLE_ERROR}
    ),
}
"""Source phases of each phase; ``FATAL_ERROR`` is reachable from all."""

_REMEDIES: Final = {
    _Phase.UNINITIALIZED: "call init_transactions() first",
    _Phase.INITIALIZING: "init_transactions() has not succeeded: call it again",
    _Phase.READY: "call begin_transaction() first",
    _Phase.IN_TRANSACTION: "commit or abort the open transaction first",
    _Phase.PREPARED: "the transaction is prepared: commit it with Admin.commit_transactions, or abort it",
    _Phase.COMMITTING: "the transaction is being committed: call commit_transaction() again",
    _Phase.ABORTING: "the transaction is being aborted: call abort_transaction() again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    """State of a transactional producer. ``epoch`` -1 means none yet."""

    transactional_id: str
    phase: TransactionPhase = TransactionPhase.UNINITIALIZED
    producer_id: int = -1
    epoch: int = -1
    added: frozenset[TopicPartition] = frozenset()
    coordinator: CoordinatorView = CoordinatorView.NOTHING
    error: MillraceError | None = None

    # --- the application's events --------------------------------------------------------------------------------

    def initializing(self) -> TransactionState:
        """Return the state after a call of ``init_transactions``."""
        return self._to(_Phase.INITIALIZING)

    def initialized(self, producer_id: int, epoch: int) -> TransactionState:
        """Return the state with the new id and epoch; the coordinator has aborted the former epoch's transaction."""
        if self.phase is not _Phase.INITIALIZING:
            raise self._refusal("be initialized")
        return replace(self._to(_Phase.READY), producer_id=producer_id, epoch=epoch)

    def joined(self, transactional_id: str, producer_id: int, epoch: int) -> TransactionState:
        """Return the state after ``join_commit`` with the assigned transactional id.

        A transaction that was prepared before no longer belongs to this producer.
        """
        self.check_can_join()
        return TransactionState(
            transactional_id=transactional_id, phase=_Phase.READY, producer_id=producer_id, epoch=epoch
        )

    def begun(self) -> TransactionState:
        """Return the state after a call of ``begin_transaction``."""
        return self._to(_Phase.IN_TRANSACTION)

    def prepared(self) -> TransactionState:
        """Return the state after everything is sent and another process commits."""
        return self._to(_Phase.PREPARED)

    def committing(self) -> TransactionState:
        """Return the state after ``commit_transaction``; raises ``AbortableTransactionError`` if only an abort is
        possible.
        """
        return self._to(_Phase.COMMITTING)

    def aborting(self) -> TransactionState:
        """Return the state after a call of ``abort_transaction``."""
        return self._to(_Phase.ABORTING)

    def ended(self, producer_id: int, epoch: int) -> TransactionState:
        """Return the state after the end of the transaction, with id and epoch of the next one."""
        if self.phase not in (_Phase.COMMITTING, _Phase.ABORTING):
            raise self._refusal("end")
        return replace(
            self._to(_Phase.READY),
            producer_id=producer_id,
            epoch=epoch,
            added=frozenset(),
            coordinator=CoordinatorView.NOTHING,
            error=None,
        )

    # --- events of the transaction ---------------------------------------------------------------------------------

    def adding(self) -> TransactionState:
        """Return the state before a call that adds partitions or offsets to the transaction."""
        if self.coordinator is CoordinatorView.OPEN:
            return self
        return replace(self, coordinator=CoordinatorView.PERHAPS)

    def added_to(self, partitions: frozenset[TopicPartition]) -> TransactionState:
        """Return the state after the coordinator added partitions, or a group's offsets (then without partitions)."""
        return replace(self, added=self.added | partitions, coordinator=CoordinatorView.OPEN)

    def failed(self, error: MillraceError) -> TransactionState:
        """Return the state after a failure in the transaction, which can then only be aborted. The first error is
        kept.

        The state does not change if no transaction is open, or if it is already being aborted.
        """
        if self.phase not in _SOURCES[_Phase.ABORTABLE_ERROR] or self.phase is _Phase.ABORTABLE_ERROR:
            return self
        return replace(self, phase=_Phase.ABORTABLE_ERROR, error=error)

    def broken(self, error: MillraceError) -> TransactionState:
        """Return the state after a fatal error, such as fencing. The first fatal error is kept."""
        if self.phase is _Phase.FATAL_ERROR:
            return self
        return replace(self, phase=_Phase.FATAL_ERROR, error=error)

    # --- questions -------------------------------------------------------------------------------------------------

    def check_can_send(self) -> None:
        """Raise the error, if any, with which a send must fail now."""
        if self.phase is not _Phase.IN_TRANSACTION:
            raise self._refusal("send")

    def check_can_join(self) -> None:
        """Raise the error, if any, with which joining a commit must fail now, for example if a transaction is open."""
        if self.phase not in (_Phase.UNINITIALIZED, _Phase.READY, _Phase.PREPARED):
            raise self._refusal("join a commit")

    def sending_error(self) -> MillraceError | None:
        """Return the error, if any, with which waiting batches must fail now."""
        if self.phase is _Phase.ABORTING:
            return TransactionAbortedError(
                f"the transaction of {self.transactional_id} was aborted before this was sent"
            )
        if self.phase in (_Phase.ABORTABLE_ERROR, _Phase.FATAL_ERROR):
            return self._refusal("send")
        return None

    def missing(self, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the partitions that must be added to the transaction before records are sent to them."""
        return partitions - self.added

    @property
    def must_be_ended(self) -> bool:
        """True if the coordinator must end the transaction. A transaction without records needs no call."""
        return self.coordinator is not CoordinatorView.NOTHING

    @property
    def is_open(self) -> bool:
        """True if the close of the producer must abort a transaction."""
        return self.phase in (_Phase.IN_TRANSACTION, _Phase.ABORTABLE_ERROR)

    def _to(self, phase: TransactionPhase) -> TransactionState:
        if self.phase not in _SOURCES[phase]:
            raise self._refusal(f"go to {phase.value!r}")
        return replace(self, phase=phase)

    def _refusal(self, what: str) -> MillraceError:
        name = f"transactional.id={self.transactional_id}"
        if self.phase is _Phase.FATAL_ERROR and self.error is not None:
            return type(self.error)(f"{name}: {self.error.message}; close this producer and make a new one")
        if self.phase is _Phase.ABORTABLE_ERROR and self.error is not None:
            return AbortableTransactionError(
                f"{name}: abort the transaction, because a part of it failed: {self.error.message}"
            )
        return InvalidTxnStateError(f"{name} cannot {what}: it is {self.phase.value!r}; {_REMEDIES[self.phase]}")
