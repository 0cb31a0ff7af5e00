"""Transactional ids of one partition of ``__transaction_state`` (Kafka's ``TransactionStateManager``).

Invariants, asserted in ``begin`` before a change is written:

- A transactional id changes only along ``states.TRANSITIONS``. A decided transaction is therefore never decided
  otherwise.
- An epoch does not decrease, unless the producer id changes.
- One change of a transactional id is written at a time. Until then, other requests for the id are refused with
  ``ConcurrentTransactionsError``. The same holds for external ids.

A change counts after ``apply``. The state is therefore always the one that reading the log gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from millrace.coordinator_records import (
    ExternalCommitKey,
    TransactionLogKey,
    TransactionState,
    read_external_commit,
    read_transaction_key,
    read_transaction_value,
)
from millrace.errors import ConcurrentTransactionsError
from millrace_broker.coordinators import StateRecord
from millrace_broker.purgatory import PartitionKey
from millrace_broker.transactions import attempts, external_commits, states
from millrace_broker.transactions.attempts import Attempt
from millrace_broker.transactions.external_commits import CommitDecision, TransactionalProducer
from millrace_broker.transactions.metadata import (
    PREPARED,
    ExternalCommit,
    ProducerIdAndEpoch,
    TransactionMetadata,
    commit_key_of,
    commit_of,
    key_of,
    transaction_of,
)


@dataclass(frozen=True, slots=True)
class StateChange:
    """Change that is written as one batch (Kafka's ``TxnTransitMetadata``).

    ``forgotten`` and ``forgotten_commits`` are the ids to delete.
    """

    transactions: tuple[TransactionMetadata, ...] = ()
    forgotten: tuple[str, ...] = ()
    commit: ExternalCommit | None = None
    forgotten_commits: tuple[str, ...] = ()

    def records(self) -> list[StateRecord]:
        """Return the records of the change."""
        commit = [] if self.commit is None else [self.commit.record()]
        forgotten = [StateRecord(key_of(transactional_id), None) for transactional_id in self.forgotten]
        forgotten += [StateRecord(commit_key_of(external_id), None) for external_id in self.forgotten_commits]
        return [*commit, *(transaction.record() for transaction in self.transactions), *forgotten]

    @property
    def transactional_ids(self) -> tuple[str, ...]:
        """The transactional ids that change."""
        return (*(transaction.transactional_id for transaction in self.transactions), *self.forgotten)

    @property
    def external_ids(self) -> tuple[str, ...]:
        """The external ids that change."""
        return (*(() if self.commit is None else (self.commit.external_id,)), *self.forgotten_commits)


class TransactionStateManager:
    """States of the transactional ids of one shard. Callers pass the time, in ms."""

    def __init__(self) -> None:
        self._transactions: dict[str, TransactionMetadata] = {}
        self._open: set[str] = set()  # the ids with an open transaction
        self._commits: dict[str, ExternalCommit] = {}
        self._writing: set[str] = set()
        self._committing: set[str] = set()

    def __iter__(self) -> Iterator[TransactionMetadata]:
        return iter(list(self._transactions.values()))

    def __len__(self) -> int:
        return len(self._transactions)

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        """Return the state of a transactional id."""
        return self._transactions.get(transactional_id)

    def last_commit(self, external_id: str) -> ExternalCommit | None:
        """Return the state of an external id."""
        return self._commits.get(external_id)

    def is_busy(self, transactional_id: str) -> bool:
        """Return whether a change of the id is being written, or markers of its last transaction are missing."""
        current = self._transactions.get(transactional_id)
        return transactional_id in self._writing or (current is not None and current.state in PREPARED)

    def is_committing(self, external_id: str) -> bool:
        """Return whether a change of the external id is being written."""
        return external_id in self._committing

    def ids_in_use(self, external_id: str) -> list[str]:
        """Return the ids that were assigned under an external id and that are open or being written.

        Ids that clients chose are not among them, whatever their names are.
        """
        return [name for name in self._open | self._writing if self._external_id_of(name) == external_id]

    def is_free(self, external_id: str, transactional_id: str) -> bool:
        """Return whether a transactional id may be assigned under an external id.

        The id is neither open nor busy, and no client has chosen it.
        """
        is_known = transactional_id in self._transactions
        if is_known and self._external_id_of(transactional_id) != external_id:
            return False
        return transactional_id not in self._open and not self.is_busy(transactional_id)

    def _external_id_of(self, transactional_id: str) -> str | None:
        current = self._transactions.get(transactional_id)
        return None if current is None else current.external_id

    # --- changes ---------------------------------------------------------------------------------------------

    def replay(self, record: StateRecord) -> None:
        """Apply a record of the log. Raises ``InvalidRecordError`` and ``UnsupportedVersionError``."""
        key = read_transaction_key(record.key)
        if isinstance(key, TransactionLogKey):
            name = key.transactional_id
            if record.value is None:
                self._forget(name)
            else:
                self._set(transaction_of(name, read_transaction_value(record.value)))
        elif isinstance(key, ExternalCommitKey):
            if record.value is None:
                self._commits.pop(key.external_id, None)
            else:
                self._commits[key.external_id] = commit_of(key.external_id, read_external_commit(record.value))

    def begin(self, change: StateChange) -> None:
        """Note that a change is being written (Kafka's ``prepareTransitionTo``)."""
        assert not self._writing & set(change.transactional_ids), "one change of an id is written at a time"
        assert not self._committing & set(change.external_ids), "one change of an id is written at a time"
        for after in change.transactions:
            states.check_transition(self._transactions.get(after.transactional_id), after)
        self._writing.update(change.transactional_ids)
        self._committing.update(change.external_ids)

    def withdraw(self, change: StateChange) -> None:
        """Drop a change that could not be written."""
        self._writing.difference_update(change.transactional_ids)
        self._committing.difference_update(change.external_ids)

    def apply(self, change: StateChange) -> None:
        """Make a written change the present state (Kafka's ``completeTransitionTo``)."""
        self.withdraw(change)
        for transaction in change.transactions:
            self._set(transaction)
        for transactional_id in change.forgotten:
            self._forget(transactional_id)
        if change.commit is not None:
            self._commits[change.commit.external_id] = change.commit
        for external_id in change.forgotten_commits:
            self._commits.pop(external_id, None)

    def _set(self, transaction: TransactionMetadata) -> None:
        name = transaction.transactional_id
        self._transactions[name] = transaction
        if transaction.state is TransactionState.ONGOING:
            self._open.add(name)
        else:
            self._open.discard(name)

    def _forget(self, transactional_id: str) -> None:
        self._transactions.pop(transactional_id, None)
        self._open.discard(transactional_id)

    # --- decisions: see ``states`` -------------------------------------------------------------------------

    def init_needs_producer_id(self, transactional_id: str, expected: ProducerIdAndEpoch | None) -> bool:
        """Return whether ``init_producer_id`` will use a new producer id."""
        return states.init_needs_producer_id(self.find(transactional_id), expected)

    def init_producer_id(
        self,
        transactional_id: str,
        expected: ProducerIdAndEpoch | None,
        *,
        timeout_ms: int,
        new_producer_id: int,
        now_ms: int,
        external_id: str = "",
    ) -> StateChange:
        """Give a transactional id to a producer.

        After a change to ``PREPARE_ABORT`` the caller has to repeat the call.
        """
        after = states.init_producer_id(
            self._find_idle(transactional_id),
            transactional_id,
            expected,
            timeout_ms=timeout_ms,
            new_producer_id=new_producer_id,
            now_ms=now_ms,
            external_id=external_id,
        )
        return StateChange((after,))

    def add_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[PartitionKey], now_ms: int
    ) -> StateChange | None:
        """Add partitions to a transaction; None if it has them."""
        after = states.add_partitions(self._find_idle(transactional_id), producer, partitions, now_ms)
        return None if after is None else StateChange((after,))

    def verify(self, transactional_id: str, producer: ProducerIdAndEpoch, partition: PartitionKey) -> None:
        """Check that a partition belongs to the producer's open transaction."""
        states.verify(self.find(transactional_id), producer, partition)

    def end_needs_producer_id(self, transactional_id: str) -> bool:
        """Return whether ``end`` needs a new producer id."""
        return states.end_needs_producer_id(self.find(transactional_id))

    def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        committed: bool,
        new_producer_id: int,
        now_ms: int,
        keeps_epoch: bool = False,
    ) -> StateChange | None:
        """Prepare the commit or the abort of a transaction; None if the request is a repeated one."""
        current = self._find_idle(transactional_id)
        if keeps_epoch:
            after = states.end_keeping_epoch(current, producer, committed=committed, now_ms=now_ms)
        else:
            after = states.end(current, producer, committed=committed, new_producer_id=new_producer_id, now_ms=now_ms)
        return None if after is None else StateChange((after,))

    def time_out(self, transactional_id: str, producer: ProducerIdAndEpoch, now_ms: int) -> StateChange | None:
        """Abort a transaction at its timeout; None if it has ended, or if a change of the id is being written."""
        if transactional_id in self._writing:
            return None
        after = states.time_out(self.find(transactional_id), producer, now_ms)
        return None if after is None else StateChange((after,))

    def complete(self, transactional_id: str, now_ms: int) -> StateChange:
        """Complete a transaction whose markers have all been written."""
        current = self._transactions[transactional_id]
        return StateChange((states.complete(current, now_ms),))

    def expire(self, now_ms: int, expiration_ms: int, count_max: int) -> StateChange | None:
        """Delete at most ``count_max`` unused ids of each kind; None if there are none."""
        expired = [
            transaction.transactional_id
            for transaction in self._transactions.values()
            if states.is_expired(transaction, now_ms, expiration_ms)
            and transaction.transactional_id not in self._writing
        ]
        commits = [
            commit.external_id
            for commit in self._commits.values()
            if attempts.is_expired(commit, now_ms) and commit.external_id not in self._committing
        ]
        if not expired and not commits:
            return None
        return StateChange(forgotten=tuple(expired[:count_max]), forgotten_commits=tuple(commits[:count_max]))

    def begin_attempt(self, attempt: Attempt, assigned: Iterable[str], now_ms: int) -> StateChange | None:
        """Begin an attempt of an epoch that is not committed; None if it has begun (see ``attempts``).

        ``assigned`` are the numbered ids of the earlier attempt. They are fenced, as are all open ones.
        """
        self._check_not_committing(attempt.external_id)
        commit = attempts.begin(self._commits.get(attempt.external_id), attempt, now_ms)
        if commit is None:
            return None
        return StateChange(
            tuple(external_commits.fence_all(self._in_use(attempt.external_id, assigned), now_ms)), commit=commit
        )

    def abort_attempt(
        self, external_id: str, external_epoch: int, attempt: str, assigned: Iterable[str], now_ms: int
    ) -> StateChange | None:
        """Abort an attempt and its open transactions; None if its epoch is committed.

        Raises ``ProducerFencedError``.
        """
        self._check_not_committing(external_id)
        last = self._commits.get(external_id)
        if attempts.was_committed(last, external_epoch):
            return None
        attempts.check_is_current(last, external_id, external_epoch, attempt)
        assert last is not None
        left = external_commits.fence_all(self._in_use(external_id, assigned), now_ms)
        return StateChange(tuple(left), commit=attempts.abandoned(last, now_ms))

    def commit_transactions(
        self,
        external_id: str,
        external_epoch: int,
        *,
        committed: Sequence[TransactionalProducer],
        aborted: Sequence[TransactionalProducer],
        new_producer_ids: Iterator[int],
        now_ms: int,
        attempt: str = "",
        assigned: Iterable[str] = (),
    ) -> tuple[CommitDecision, StateChange]:
        """Commit several producers as one; see ``external_commits``."""
        self._check_not_committing(external_id)
        for member in (*committed, *aborted):
            if member.transactional_id in self._writing:
                raise _being_written(member.transactional_id)
        decision = external_commits.decide(
            self._commits.get(external_id),
            external_id,
            external_epoch,
            committed=committed,
            aborted=aborted,
            find=self.find,
            new_producer_ids=new_producer_ids,
            now_ms=now_ms,
            attempt=attempt,
            in_use=self._in_use(external_id, assigned) if attempt else (),
        )
        return decision, StateChange(decision.transactions, commit=decision.commit)

    def prepared(self) -> list[TransactionMetadata]:
        """Return the transactions with missing markers, which a coordinator writes after it has loaded the log."""
        return [transaction for transaction in self._transactions.values() if transaction.state in PREPARED]

    def open(self) -> list[TransactionMetadata]:
        """Return the open transactions."""
        return [self._transactions[name] for name in sorted(self._open)]

    def _in_use(self, external_id: str, assigned: Iterable[str]) -> list[TransactionMetadata]:
        """Return the ids under an external id that are open or ``assigned``.

        Raises ``ConcurrentTransactionsError`` during a write.
        """
        names = sorted({*self.ids_in_use(external_id), *assigned})
        for name in names:
            if name in self._writing:
                raise _being_written(name)
        return [self._transactions[name] for name in names if self._external_id_of(name) == external_id]

    def _check_not_committing(self, external_id: str) -> None:
        if external_id in self._committing:
            raise ConcurrentTransactionsError(f"another change of external id {external_id} is being written: retry")

    def _find_idle(self, transactional_id: str) -> TransactionMetadata | None:
        if transactional_id in self._writing:
            raise _being_written(transactional_id)
        return self.find(transactional_id)


def _being_written(transactional_id: str) -> ConcurrentTransactionsError:
    return ConcurrentTransactionsError(f"another change of transactional id {transactional_id} is being written: retry")
