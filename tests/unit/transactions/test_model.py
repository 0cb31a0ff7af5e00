"""Model test of the transaction coordinator under crashes, retries, fencing and timeouts.

The model includes the partitions of the transactions. Each step that writes may be interrupted: the record is in the
log or not, and the coordinator crashes before it knows. Only the log decides the reference: its first outcome of a
transaction must be the outcome in every partition.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from millrace.coordinator_records import TransactionState, read_transaction_key, read_transaction_value
from millrace.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    MillraceError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from millrace.records import read_header
from millrace.records.rows import Record, build_rows_batch
from millrace_broker.coordinators import StateRecord
from millrace_broker.log.producer_states import ProducerStates, append_batch, end_transaction
from millrace_broker.transactions import Attempt, states
from millrace_broker.transactions.external_commits import TransactionalProducer
from millrace_broker.transactions.metadata import (
    LAST_EPOCH,
    PREPARED,
    ProducerIdAndEpoch,
    TransactionMetadata,
    transaction_of,
)
from millrace_broker.transactions.state_manager import StateChange, TransactionStateManager

IDS = ("query-1", "query-2", "other")
ATTEMPTS = ("red", "green", "blue")
PARTITIONS = (("a", 0), ("a", 1), ("b", 0))
TIMEOUT_MS = 1000
FATE = st.sampled_from(["well", "well", "well", "dies before", "dies after", "fails"])


class DiedError(Exception):
    """The crash of a coordinator during a write."""


class Partition:
    """One partition of a topic.

    A partition has records and the outcome of their transactions.
    """

    def __init__(self) -> None:
        self.producers = ProducerStates()
        self.offset = 0
        self.open: dict[int, list[ProducerIdAndEpoch]] = defaultdict(list)
        self.outcomes: list[tuple[ProducerIdAndEpoch, bool]] = []

    def append(self, producer: ProducerIdAndEpoch) -> None:
        entry = self.producers.get(producer.producer_id)
        sequence = entry.last_sequence + 1 if entry.epoch == producer.epoch else 0
        batch = build_rows_batch(
            [Record(key=None, value=b"", timestamp_ms=1)],
            base_offset=self.offset,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        self.producers.update(append_batch(entry, read_header(batch)), 0)
        self.open[producer.producer_id].append(producer)
        self.offset += 1

    def end(self, producer_id: int, epoch: int, *, committed: bool) -> None:
        entry, _ = end_transaction(
            self.producers.get(producer_id),
            epoch=epoch,
            coordinator_epoch=0,
            is_aborted=not committed,
            offset=self.offset,
            timestamp_ms=1,
        )
        self.producers.update(entry, 0)
        self.outcomes += [(producer, committed) for producer in self.open.pop(producer_id, [])]
        self.offset += 1


class Coordinators(RuleBasedStateMachine):
    """Clients of three transactional ids. Two ids belong to one query, which commits them together."""

    clients = Bundle("clients")
    in_flight = Bundle("in_flight")

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.next_ids = count(100)
        self.log: list[StateRecord] = []
        self.manager = TransactionStateManager()
        self.partitions = {partition: Partition() for partition in PARTITIONS}
        self.decided: dict[ProducerIdAndEpoch, bool] = {}
        """The first outcome in the log for the transaction of a producer id and epoch."""
        self.epochs: dict[int, int] = {}
        self.external: dict[str, list[int]] = defaultdict(list)
        self._append(
            StateChange(
                (
                    TransactionMetadata(
                        transactional_id=IDS[0],
                        producer_id=1,
                        epoch=LAST_EPOCH - 2,
                        timeout_ms=TIMEOUT_MS,
                        updated_ms=0,
                        external_id="query",
                    ),
                )
            )
        )
        self._read_again()

    # --- the log -------------------------------------------------------------------------------------------

    def _append(self, change: StateChange) -> None:
        for record in change.records():
            key = read_transaction_key(record.key)
            if record.value is not None and hasattr(key, "transactional_id"):
                self._check_written(transaction_of(key.transactional_id, read_transaction_value(record.value)))
        if change.commit is not None and change.commit.external_epoch not in (-1, *self.external["query"][-1:]):
            self.external[change.commit.external_id].append(change.commit.external_epoch)
        self.log += change.records()

    def _check_written(self, after: TransactionMetadata) -> None:
        assert self.epochs.get(after.producer_id, -1) <= after.epoch, "epochs never decrease"
        self.epochs[after.producer_id] = after.epoch
        before = self.manager.find(after.transactional_id)
        if after.state in PREPARED:
            assert before is not None
            if before.state is TransactionState.ONGOING:
                self._decide(before.producer, committed=after.is_committed)
        if after.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
            assert before is not None
            assert before.is_committed == after.is_committed
            assert all(not partition.open.get(before.producer_id) for partition in self.partitions.values()), (
                "no transaction is open once it is complete"
            )

    def _decide(self, producer: ProducerIdAndEpoch, *, committed: bool) -> None:
        assert producer not in self.decided, "a transaction is decided once"
        self.decided[producer] = committed

    def _read_again(self) -> None:
        """Crash and load the state from the log."""
        before = {each.transactional_id: replace(each, last_epoch=-1) for each in self.manager}
        self.manager = TransactionStateManager()
        for record in self.log:
            self.manager.replay(record)
        after = {each.transactional_id: replace(each, last_epoch=-1) for each in self.manager}
        for transactional_id, known in before.items():
            assert after.get(transactional_id, known).epoch >= known.epoch or known.epoch >= LAST_EPOCH - 1

    def _write(self, change: StateChange, fate: str) -> None:
        self.manager.begin(change)
        if fate == "fails":
            self.manager.withdraw(change)
            raise DiedError
        if fate != "dies before":
            self._append(change)
        if fate != "well":
            self._read_again()
            raise DiedError
        self.manager.apply(change)

    # --- clients -------------------------------------------------------------------------------------------

    @rule(target=clients, name=st.sampled_from(IDS), fate=FATE)
    def begins(self, name: str, fate: str) -> object:
        return self._init(name, None, fate)

    @rule(target=clients, client=clients, fate=FATE)
    def goes_on(self, client: TransactionalProducer, fate: str) -> object:
        return self._init(client.transactional_id, client.producer, fate)

    def _init(self, name: str, expected: ProducerIdAndEpoch | None, fate: str) -> object:
        with suppress(DiedError, ConcurrentTransactionsError, ProducerFencedError):
            change = self.manager.init_producer_id(
                name,
                expected,
                timeout_ms=TIMEOUT_MS,
                new_producer_id=next(self.next_ids),
                now_ms=self.now_ms,
                external_id="query" if name in IDS[:2] else "",
            )
            self._write(change, fate)
            (after,) = change.transactions
            if after.state is TransactionState.EMPTY:
                assert after.epoch <= LAST_EPOCH
                return TransactionalProducer(name, after.producer)
        return multiple()

    @rule(client=clients, partitions=st.sets(st.sampled_from(PARTITIONS), min_size=1), fate=FATE)
    def adds(self, client: TransactionalProducer, partitions: set[tuple[str, int]], fate: str) -> None:
        with suppress(
            DiedError,
            ConcurrentTransactionsError,
            ProducerFencedError,
            InvalidProducerEpochError,
            InvalidProducerIdMappingError,
        ):
            change = self.manager.add_partitions(client.transactional_id, client.producer, partitions, self.now_ms)
            if change is not None:
                self._write(change, fate)

    @rule(client=clients, partitions=st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3))
    def writes(self, client: TransactionalProducer, partitions: list[tuple[str, int]]) -> None:
        """Add partitions one by one, and write to each at once, as clients usually do."""
        for partition in partitions:
            self.adds(client, {partition}, "well")
            with suppress(MillraceError):
                self.manager.verify(client.transactional_id, client.producer, partition)
                self.partitions[partition].append(client.producer)

    @rule(target=in_flight, client=clients, partition=st.sampled_from(PARTITIONS))
    def sends(self, client: TransactionalProducer, partition: tuple[str, int]) -> object:
        """Append a verified request, perhaps much later."""
        try:
            self.manager.verify(client.transactional_id, client.producer, partition)
        except MillraceError:
            return multiple()
        assert client.producer not in self.decided
        return partition, client.producer

    @rule(sent=consumes(in_flight))
    def arrives(self, sent: tuple[tuple[str, int], ProducerIdAndEpoch]) -> None:
        partition, producer = sent
        with suppress(InvalidProducerEpochError, OutOfOrderSequenceError):
            self.partitions[partition].append(producer)

    @rule(target=clients, client=clients, committed=st.booleans(), fate=FATE)
    def ends(self, client: TransactionalProducer, committed: bool, fate: str) -> object:
        name, producer = client
        with suppress(
            DiedError,
            ConcurrentTransactionsError,
            ProducerFencedError,
            InvalidProducerIdMappingError,
            InvalidTxnStateError,
        ):
            change = self.manager.end(
                name, producer, committed=committed, new_producer_id=next(self.next_ids), now_ms=self.now_ms
            )
            if change is not None:
                self._write(change, fate)
            if producer in self.decided:
                assert self.decided[producer] is committed, "the log confirms the answer to a client"
            else:
                assert not committed, "only written records can be committed"
            current = self.manager.find(name)
            assert current is not None
            return TransactionalProducer(name, states.next_producer(current))
        return multiple()

    @rule(external_epoch=st.integers(0, 4), name=st.sampled_from(ATTEMPTS), fate=FATE)
    def begins_an_attempt(self, external_epoch: int, name: str, fate: str) -> None:
        attempt = Attempt(external_id="query", external_epoch=external_epoch, name=name)
        with suppress(DiedError, ProducerFencedError):
            change = self.manager.begin_attempt(attempt, IDS[:2], self.now_ms)
            if change is not None:
                self._write(change, fate)
                assert not self.manager.ids_in_use("query"), "a new owner finds no open transaction"

    @rule(
        members=st.lists(clients, max_size=3),
        is_committed=st.lists(st.booleans(), min_size=3, max_size=3),
        external_epoch=st.integers(0, 4),
        attempt=st.sampled_from(("", *ATTEMPTS)),
        fate=FATE,
    )
    def commits_together(
        self,
        members: list[TransactionalProducer],
        is_committed: list[bool],
        external_epoch: int,
        attempt: str,
        fate: str,
    ) -> None:
        distinct = {member.transactional_id: member for member in members}.values()
        chosen = list(zip(distinct, is_committed, strict=False))
        before = list(self.external["query"])
        committed = [member for member, wanted in chosen if wanted]
        with suppress(DiedError, ConcurrentTransactionsError, InvalidTxnStateError, ProducerFencedError):
            decision, change = self.manager.commit_transactions(
                "query",
                external_epoch,
                committed=committed,
                aborted=[member for member, wanted in chosen if not wanted],
                new_producer_ids=self.next_ids,
                now_ms=self.now_ms,
                attempt=attempt,
                assigned=IDS[:2],
            )
            assert decision.was_committed_before is any(epoch >= external_epoch for epoch in before)
            if change.records():
                self._write(change, fate)
            if not decision.was_committed_before:
                assert all(self.decided[member.producer] for member in committed)
                assert not (attempt and self.manager.ids_in_use("query")), "no transaction of the attempt stays open"
        assert self.external["query"] == sorted(set(self.external["query"])), "an epoch is committed once"

    # --- the coordinator's own ---------------------------------------------------------------------------------

    @rule(data=st.data(), fate=FATE)
    def writes_a_marker(self, data: st.DataObject, fate: str) -> None:
        """Write one marker.

        Markers are sent one by one, and again after a crash. The last one completes the transaction.
        """
        decided = self.manager.prepared()
        if not decided:
            return
        transaction = data.draw(st.sampled_from(decided))
        for partition in data.draw(st.permutations(sorted(transaction.partitions))):
            self.partitions[partition].end(
                transaction.producer_id, transaction.epoch, committed=transaction.is_committed
            )
            if fate == "dies before":
                self._read_again()
                return
        with suppress(DiedError):
            self._write(self.manager.complete(transaction.transactional_id, self.now_ms), fate)

    @rule(elapsed_ms=st.integers(1, TIMEOUT_MS), fate=FATE)
    def time_passes(self, elapsed_ms: int, fate: str) -> None:
        self.now_ms += elapsed_ms
        for transaction in self.manager.open():
            if self.now_ms - transaction.started_ms >= transaction.timeout_ms:
                change = self.manager.time_out(transaction.transactional_id, transaction.producer, self.now_ms)
                assert change is not None
                with suppress(DiedError):
                    self._write(change, fate)

    @rule(fate=FATE)
    def ids_expire(self, fate: str) -> None:
        change = self.manager.expire(self.now_ms, 20 * TIMEOUT_MS, 10)
        if change is not None:
            with suppress(DiedError):
                self._write(change, fate)

    @rule()
    def dies(self) -> None:
        self._read_again()

    @invariant()
    def every_record_has_its_transactions_fate(self) -> None:
        for partition in self.partitions.values():
            for producer, committed in partition.outcomes:
                assert self.decided[producer] is committed

    def teardown(self) -> None:
        """Check that all decided transactions have markers everywhere and no transaction is open."""
        for transaction in self.manager.open():
            self._write(self._timed_out(transaction), "well")
        for transaction in self.manager.prepared():
            for partition in transaction.partitions:
                self.partitions[partition].end(
                    transaction.producer_id, transaction.epoch, committed=transaction.is_committed
                )
            self._write(self.manager.complete(transaction.transactional_id, self.now_ms), "well")
        assert not any(partition.producers.first_open_offset() is not None for partition in self.partitions.values())
        self.every_record_has_its_transactions_fate()

    def _timed_out(self, transaction: TransactionMetadata) -> StateChange:
        change = self.manager.time_out(transaction.transactional_id, transaction.producer, self.now_ms)
        assert change is not None
        return change


def test_each_transaction_is_decided_once_under_random_events() -> None:
    run_state_machine_as_test(Coordinators, settings=settings(max_examples=150, stateful_step_count=40))
