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
from millrace_broker.transactions import rules, together
from millrace_broker.transactions.metadata import (
    ENDING,
    ExternalCommit,
    PartitionKey,
    Producer,
    Transaction,
    key_of,
    transaction_of,
)
from millrace_broker.transactions.together import Decision, Member


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be written, in one batch, and to be true then. ``forgotten`` are transactional ids."""

    transactions: tuple[Transaction, ...] = ()
    forgotten: tuple[str, ...] = ()
    commit: ExternalCommit | None = None

    def records(self) -> list[StateRecord]:
        """The records that say it."""
        commit = [] if self.commit is None else [self.commit.record()]
        forgotten = [StateRecord(key_of(transactional_id), None) for transactional_id in self.forgotten]
        return [*commit, *(transaction.record() for transaction in self.transactions), *forgotten]

    @property
    def transactional_ids(self) -> tuple[str, ...]:
        """The transactional ids that it is about."""
        return (*(transaction.transactional_id for transaction in self.transactions), *self.forgotten)


class TransactionTable:
    """The transactional ids of a shard. Nothing here waits; times are passed in, in ms."""

    def __init__(self) -> None:
        self._transactions: dict[str, Transaction] = {}
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

    # --- what is in the log ----------------------------------------------------------------------------------

    def replay(self, record: StateRecord) -> None:
        """Take in a record of the log. Raises ``InvalidRecordError`` and ``UnsupportedVersionError``."""
        key = read_transaction_key(record.key)
        if isinstance(key, TransactionLogKey):
            name = key.transactional_id
            if record.value is None:
                self._transactions.pop(name, None)
            else:
                self._transactions[name] = transaction_of(name, read_transaction_value(record.value))
        elif isinstance(key, ExternalCommitKey):
            if record.value is None:
                self._commits.pop(key.external_id, None)
            else:
                value = read_external_commit(record.value)
                self._commits[key.external_id] = ExternalCommit(
                    external_id=key.external_id,
                    external_epoch=value.external_epoch,
                    committed_ms=value.commit_timestamp_ms,
                )

    def begin(self, change: Change) -> None:
        """A change is being written from now on."""
        assert not self._writing & set(change.transactional_ids), "one change at a time"
        self._writing.update(change.transactional_ids)
        if change.commit is not None:
            self._committing.add(change.commit.external_id)

    def withdraw(self, change: Change) -> None:
        """It could not be written: everything is as it was."""
        self._writing.difference_update(change.transactional_ids)
        if change.commit is not None:
            self._committing.discard(change.commit.external_id)

    def apply(self, change: Change) -> None:
        """It has been written: it is true."""
        self.withdraw(change)
        for transaction in change.transactions:
            self._transactions[transaction.transactional_id] = transaction
        for transactional_id in change.forgotten:
            del self._transactions[transactional_id]
        if change.commit is not None:
            self._commits[change.commit.external_id] = change.commit

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
        """Forget transactional ids that are not used any more, so many at once; None if there are none."""
        expired = [
            transaction.transactional_id
            for transaction in self._transactions.values()
            if rules.is_expired(transaction, now_ms, expiration_ms)
            and transaction.transactional_id not in self._writing
        ]
        return Change(forgotten=tuple(expired[:count_max])) if expired else None

    def commit_together(
        self,
        external_id: str,
        external_epoch: int,
        *,
        committed: Sequence[Member],
        aborted: Sequence[Member],
        new_producer_ids: Iterator[int],
        now_ms: int,
    ) -> tuple[Decision, Change]:
        """Commit producers as one; see ``together``."""
        if external_id in self._committing:
            raise ConcurrentTransactionsError(f"another commit of {external_id} is being written: try again")
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
        )
        return decision, Change(decision.transactions, commit=decision.commit)

    def decided(self) -> list[Transaction]:
        """The transactions whose markers have to be written: what a crash left to be done, after reading the log."""
        return [transaction for transaction in self._transactions.values() if transaction.state in ENDING]

    def open(self) -> list[Transaction]:
        """The transactions that are open."""
        return [each for each in self._transactions.values() if each.state is TransactionState.ONGOING]

    def _settled(self, transactional_id: str) -> Transaction | None:
        if transactional_id in self._writing:
            raise _being_written(transactional_id)
        return self.find(transactional_id)


def _being_written(transactional_id: str) -> ConcurrentTransactionsError:
    return ConcurrentTransactionsError(f"something of transactional id {transactional_id} is being written: try again")
