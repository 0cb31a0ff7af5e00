"""All transactional ids of one partition of ``__transaction_state``: what is true, and what is being written.

Invariants

- The table is what one gets by reading the log, as far as ``apply`` was called: a change counts once it is written.
- While a change of a transactional id is being written nothing else is decided about it: whoever asks is told to try
  again (``ConcurrentTransactionsError``). The same holds for external ids.
- An epoch of a transactional id never goes back, unless its producer id changes; a transaction that was decided is
  never decided otherwise.
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
from millrace_broker.transactions import attempts, rules, together
from millrace_broker.transactions.attempts import Attempt
from millrace_broker.transactions.metadata import (
    ENDING,
    ExternalCommit,
    PartitionKey,
    Producer,
    Transaction,
    commit_key_of,
    commit_of,
    is_place_of,
    key_of,
    transaction_of,
)
from millrace_broker.transactions.together import Decision, Member


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be written, in one batch, and to be true then. ``forgotten`` are transactional (external) ids."""

    transactions: tuple[Transaction, ...] = ()
    forgotten: tuple[str, ...] = ()
    commit: ExternalCommit | None = None
    forgotten_commits: tuple[str, ...] = ()

    def records(self) -> list[StateRecord]:
        """The records that say it."""
        commit = [] if self.commit is None else [self.commit.record()]
        forgotten = [StateRecord(key_of(transactional_id), None) for transactional_id in self.forgotten]
        forgotten += [StateRecord(commit_key_of(external_id), None) for external_id in self.forgotten_commits]
        return [*commit, *(transaction.record() for transaction in self.transactions), *forgotten]

    @property
    def transactional_ids(self) -> tuple[str, ...]:
        """The transactional ids that it is about."""
        return (*(transaction.transactional_id for transaction in self.transactions), *self.forgotten)

    @property
    def external_ids(self) -> tuple[str, ...]:
        """The external ids that it is about."""
        return (*(() if self.commit is None else (self.commit.external_id,)), *self.forgotten_commits)


class TransactionTable:
    """The transactional ids of a shard. Nothing here waits; times are passed in, in ms."""

    def __init__(self) -> None:
        self._transactions: dict[str, Transaction] = {}
        self._open: set[str] = set()  # those of them whose transaction is
        self._commits: dict[str, ExternalCommit] = {}
        self._writing: set[str] = set()
        self._committing: set[str] = set()

    def __iter__(self) -> Iterator[Transaction]:
        return iter(list(self._transactions.values()))

    def __len__(self) -> int:
        return len(self._transactions)

    def find(self, transactional_id: str) -> Transaction | None:
        """What is true of a transactional id."""
        return self._transactions.get(transactional_id)

    def last_commit(self, external_id: str) -> ExternalCommit | None:
        """What was committed last under an external id."""
        return self._commits.get(external_id)

    def is_busy(self, transactional_id: str) -> bool:
        """Whether it will be otherwise soon: something is being written, or a transaction is being ended."""
        current = self._transactions.get(transactional_id)
        return transactional_id in self._writing or (current is not None and current.state in ENDING)

    def is_committing(self, external_id: str) -> bool:
        """Whether something of an external id is being written."""
        return external_id in self._committing

    def places(self, external_id: str) -> list[str]:
        """The places of an external id that are open, or of which something is being written."""
        return [name for name in self._open | self._writing if is_place_of(external_id, name)]

    def is_taken(self, transactional_id: str) -> bool:
        """Whether a transactional id is in use, or will be otherwise soon."""
        return transactional_id in self._open or self.is_busy(transactional_id)

    # --- what is in the log ----------------------------------------------------------------------------------

    def replay(self, record: StateRecord) -> None:
        """Take in a record of the log. Raises ``InvalidRecordError`` and ``UnsupportedVersionError``."""
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

    def begin(self, change: Change) -> None:
        """A change is being written from now on."""
        assert not self._writing & set(change.transactional_ids), "one change at a time"
        self._writing.update(change.transactional_ids)
        self._committing.update(change.external_ids)

    def withdraw(self, change: Change) -> None:
        """It could not be written: everything is as it was."""
        self._writing.difference_update(change.transactional_ids)
        self._committing.difference_update(change.external_ids)

    def apply(self, change: Change) -> None:
        """It has been written: it is true."""
        self.withdraw(change)
        for transaction in change.transactions:
            self._set(transaction)
        for transactional_id in change.forgotten:
            self._forget(transactional_id)
        if change.commit is not None:
            self._commits[change.commit.external_id] = change.commit
        for external_id in change.forgotten_commits:
            self._commits.pop(external_id, None)

    def _set(self, transaction: Transaction) -> None:
        name = transaction.transactional_id
        self._transactions[name] = transaction
        if transaction.state is TransactionState.ONGOING:
            self._open.add(name)
        else:
            self._open.discard(name)

    def _forget(self, transactional_id: str) -> None:
        self._transactions.pop(transactional_id, None)
        self._open.discard(transactional_id)

    # --- what is to be decided: see ``rules`` ------------------------------------------------------------------

    def init_needs_producer_id(self, transactional_id: str, expected: Producer | None) -> bool:
        """Whether ``init_producer_id`` will take a new producer id."""
        return rules.init_needs_producer_id(self.find(transactional_id), expected)

    def init_producer_id(
        self, transactional_id: str, expected: Producer | None, *, timeout_ms: int, new_producer_id: int, now_ms: int
    ) -> Change:
        """Let a producer take over; a change to ``PREPARE_ABORT`` means that it has to ask again."""
        after = rules.init_producer_id(
            self._settled(transactional_id),
            transactional_id,
            expected,
            timeout_ms=timeout_ms,
            new_producer_id=new_producer_id,
            now_ms=now_ms,
        )
        return Change((after,))

    def add_partitions(
        self, transactional_id: str, producer: Producer, partitions: Iterable[PartitionKey], now_ms: int
    ) -> Change | None:
        """Take partitions into a transaction; None if they are in it."""
        after = rules.add_partitions(self._settled(transactional_id), producer, partitions, now_ms)
        return None if after is None else Change((after,))

    def verify(self, transactional_id: str, producer: Producer, partition: PartitionKey) -> None:
        """Raise unless a partition is part of the producer's open transaction."""
        rules.verify(self.find(transactional_id), producer, partition)

    def end_needs_producer_id(self, transactional_id: str) -> bool:
        """Whether ``end`` will need a new producer id."""
        return rules.end_needs_producer_id(self.find(transactional_id))

    def end(
        self, transactional_id: str, producer: Producer, *, committed: bool, new_producer_id: int, now_ms: int
    ) -> Change | None:
        """Decide a transaction; None if it had been decided so before."""
        after = rules.end(
            self._settled(transactional_id),
            producer,
            committed=committed,
            new_producer_id=new_producer_id,
            now_ms=now_ms,
        )
        return None if after is None else Change((after,))

    def time_out(self, transactional_id: str, producer: Producer, now_ms: int) -> Change | None:
        """The time of a transaction is up; None if it has ended, or something of it is being written."""
        if transactional_id in self._writing:
            return None
        after = rules.time_out(self.find(transactional_id), producer, now_ms)
        return None if after is None else Change((after,))

    def complete(self, transactional_id: str, now_ms: int) -> Change:
        """All markers of a decided transaction have been written."""
        current = self._transactions[transactional_id]
        return Change((rules.complete(current, now_ms),))

    def expire(self, now_ms: int, expiration_ms: int, count_max: int) -> Change | None:
        """Forget ids that are not used any more, so many of each kind at once; None if there are none."""
        expired = [
            transaction.transactional_id
            for transaction in self._transactions.values()
            if rules.is_expired(transaction, now_ms, expiration_ms)
            and transaction.transactional_id not in self._writing
        ]
        commits = [
            commit.external_id
            for commit in self._commits.values()
            if attempts.is_expired(commit, now_ms) and commit.external_id not in self._committing
        ]
        if not expired and not commits:
            return None
        return Change(forgotten=tuple(expired[:count_max]), forgotten_commits=tuple(commits[:count_max]))

    def begin_attempt(self, attempt: Attempt, given: Iterable[str], now_ms: int) -> Change | None:
        """Let an attempt take part in its epoch, which was not committed; None if it has begun. See ``attempts``.

        ``given`` are places that were given to others; they are retired with those that are open.
        """
        self._check_not_committing(attempt.external_id)
        commit = attempts.begin(self._commits.get(attempt.external_id), attempt, now_ms)
        if commit is None:
            return None
        return Change(tuple(together.retired(self._in_use(attempt.external_id, given), now_ms)), commit=commit)

    def abort_attempt(
        self, external_id: str, external_epoch: int, attempt: str, given: Iterable[str], now_ms: int
    ) -> Change | None:
        """End an attempt and what it has open; None if its epoch was committed. Raises ``ProducerFencedError``."""
        self._check_not_committing(external_id)
        last = self._commits.get(external_id)
        if attempts.was_committed(last, external_epoch):
            return None
        attempts.check_is_present(last, external_id, external_epoch, attempt)
        assert last is not None
        left = together.retired(self._in_use(external_id, given), now_ms)
        return Change(tuple(left), commit=attempts.given_up(last, now_ms))

    def commit_together(
        self,
        external_id: str,
        external_epoch: int,
        *,
        committed: Sequence[Member],
        aborted: Sequence[Member],
        new_producer_ids: Iterator[int],
        now_ms: int,
        attempt: str = "",
        given: Iterable[str] = (),
    ) -> tuple[Decision, Change]:
        """Commit producers as one; see ``together``."""
        self._check_not_committing(external_id)
        for member in (*committed, *aborted):
            if member.transactional_id in self._writing:
                raise _being_written(member.transactional_id)
        decision = together.decide(
            self._commits.get(external_id),
            external_id,
            external_epoch,
            committed=committed,
            aborted=aborted,
            find=self.find,
            new_producer_ids=new_producer_ids,
            now_ms=now_ms,
            attempt=attempt,
            places=self._in_use(external_id, given) if attempt else (),
        )
        return decision, Change(decision.transactions, commit=decision.commit)

    def decided(self) -> list[Transaction]:
        """The transactions whose markers have to be written: what a crash left to be done, after reading the log."""
        return [transaction for transaction in self._transactions.values() if transaction.state in ENDING]

    def open(self) -> list[Transaction]:
        """The transactions that are open."""
        return [self._transactions[name] for name in sorted(self._open)]

    def _in_use(self, external_id: str, given: Iterable[str]) -> list[Transaction]:
        """The places of an external id that are open or were given. Raises while something of one is being written."""
        names = sorted({*self.places(external_id), *given})
        for name in names:
            if name in self._writing:
                raise _being_written(name)
        return [self._transactions[name] for name in names if name in self._transactions]

    def _check_not_committing(self, external_id: str) -> None:
        if external_id in self._committing:
            raise ConcurrentTransactionsError(f"something of {external_id} is being written: try again")

    def _settled(self, transactional_id: str) -> Transaction | None:
        if transactional_id in self._writing:
            raise _being_written(transactional_id)
        return self.find(transactional_id)


def _being_written(transactional_id: str) -> ConcurrentTransactionsError:
    return ConcurrentTransactionsError(f"something of transactional id {transactional_id} is being written: try again")
