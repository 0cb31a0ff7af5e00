"""The transactional ids of one partition of ``__transaction_state``, in motion: written, timed, and ended everywhere.

Invariants

- What is answered has been written before.
- A transaction that is open has a timer, which aborts it; one that was decided has a task that writes its markers.
- A change that has begun to be written is finished, whatever becomes of the call that asked for it.
- Within an attempt (see ``attempts``) a place is given to one producer. That is known here only: after a restart one
  that was given and has no transaction yet may be given again, and its first holder is fenced.

For the event loop's thread, but for ``replay``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from millrace.config.broker import BrokerConfig
from millrace.coordinator_records import TransactionState
from millrace.errors import ConcurrentTransactionsError, MillraceError, NotCoordinatorError
from millrace.records import NO_PRODUCER_ID
from millrace_broker.coordinators import LoadedBatch, StateLog
from millrace_broker.purgatory import Conditions, Timer, TimerEntry
from millrace_broker.runtime import BackgroundTasks, Clock
from millrace_broker.transactions import attempts, rules, together
from millrace_broker.transactions.attempts import Attempt
from millrace_broker.transactions.markers import MarkerTransport, write_markers
from millrace_broker.transactions.metadata import ENDING, PartitionKey, Producer, Transaction, place_of
from millrace_broker.transactions.table import Change, TransactionTable
from millrace_broker.transactions.together import Decision, Member

_logger: Final = logging.getLogger(__name__)

_RETRY_MS: Final = 1000
"""The pause after something of the coordinator's own could not be written."""
_EXPIRED_AT_ONCE: Final = 1000
_PATIENCE_MS: Final = 1000
"""How long a call waits for the transaction before to be ended, before it is told to try again."""

Settlings = Conditions[tuple[int, str]]
"""Those who wait for a transactional id to settle: by the partition of ``__transaction_state``, and the id."""


class TransactionShard:
    """The transactional ids of one partition; see the module."""

    def __init__(
        self,
        log: StateLog,
        markers: MarkerTransport,
        settlings: Settlings,
        ended: Counter[str],
        *,
        config: BrokerConfig,
        clock: Clock,
        timer: Timer,
        new_producer_id: Callable[[], Awaitable[int]],
    ) -> None:
        """``ended`` counts how many transactions were committed, aborted and timed out."""
        self._config: Final = config
        self._clock: Final = clock
        self._timer: Final = timer
        self._new_producer_id: Final = new_producer_id
        self._log: Final = log
        self._markers: Final = markers
        self._settlings: Final = settlings
        self._table: Final = TransactionTable()
        self._given: Final[dict[str, tuple[str, list[int]]]] = {}
        """External ids: the attempt, and the numbers of the places that were given to it."""
        self._timers: Final[dict[str, TimerEntry]] = {}
        self._expiry: TimerEntry | None = None
        self._tasks: Final = BackgroundTasks()
        self._ended: Final = ended
        self._is_active = False

    # --- life ------------------------------------------------------------------------------------------------

    def replay(self, batch: LoadedBatch) -> None:
        """Take in a batch of the log."""
        for record in batch.records:
            self._table.replay(record)

    def activate(self) -> None:
        """Begin to answer; go on with what a crash has interrupted."""
        self._is_active = True
        for transaction in self._table:
            self._attend(transaction.transactional_id)
        self._schedule_expiry()

    def deactivate(self) -> None:
        """Stop timers and markers: whoever reads the log next goes on with them."""
        self._is_active = False
        for timer in (*self._timers.values(), *([self._expiry] if self._expiry else [])):
            timer.cancel()
        self._timers.clear()
        for task in self._tasks:
            task.cancel()
        for transaction in self._table:
            self._settlings.check((self._log.number, transaction.transactional_id))
        for external_id in self._given:
            self._settlings.check((self._log.number, _commit_name(external_id)))

    # --- what it knows ---------------------------------------------------------------------------------------

    @property
    def table(self) -> TransactionTable:
        """Its transactional ids, to look at."""
        return self._table

    # --- calls -----------------------------------------------------------------------------------------------

    async def init_producer_id(self, transactional_id: str, expected: Producer | None, timeout_ms: int) -> Producer:
        """Let a producer take over, once the transaction that it finds open has been aborted; see ``rules``."""
        while True:
            change = await self._decide(
                transactional_id,
                lambda: self._table.init_needs_producer_id(transactional_id, expected),
                lambda new_id: self._table.init_producer_id(
                    transactional_id,
                    expected,
                    timeout_ms=timeout_ms,
                    new_producer_id=new_id,
                    now_ms=self._now_ms(),
                ),
            )
            assert change is not None
            await self._write(change)
            (after,) = change.transactions
            if after.state is TransactionState.EMPTY:
                return after.producer

    async def add_partitions(
        self, transactional_id: str, producer: Producer, partitions: Sequence[PartitionKey]
    ) -> None:
        """Take partitions into a transaction; see ``rules``."""
        change = await self._decide(
            transactional_id,
            lambda: False,
            lambda _: self._table.add_partitions(transactional_id, producer, partitions, self._now_ms()),
        )
        if change is not None:
            await self._write(change)

    async def end(self, transactional_id: str, producer: Producer, *, committed: bool) -> Producer:
        """Decide a transaction; returns what the producer goes on with. Its markers follow."""
        change = await self._decide(
            transactional_id,
            lambda: self._table.end_needs_producer_id(transactional_id),
            lambda new_id: self._table.end(
                transactional_id, producer, committed=committed, new_producer_id=new_id, now_ms=self._now_ms()
            ),
        )
        if change is None:
            current = self._table.find(transactional_id)
            assert current is not None
            return rules.goes_on_with(current)
        await self._write(change)
        return rules.goes_on_with(change.transactions[0])

    async def join_commit(self, attempt: Attempt, timeout_ms: int) -> tuple[int, Member | None]:
        """Let one more producer take part in an attempt; see ``attempts``.

        Returns the last epoch that was committed, and the producer's place: none if the attempt's epoch was.
        """
        external_id = attempt.external_id
        attempts.check_owner(self._table.last_commit(external_id), external_id, attempt.owner)
        while not attempts.was_committed(self._table.last_commit(external_id), attempt.external_epoch):
            try:
                change = self._table.begin_attempt(attempt, self._given_places(external_id), self._now_ms())
            except ConcurrentTransactionsError:
                if not await self._places_settled(external_id):
                    raise
                continue
            if change is not None:
                self._given.pop(external_id, None)
                await self._write(change)
            place = self._give_place(attempt)
            producer = await self.init_producer_id(place, None, timeout_ms)
            last = self._table.last_commit(external_id)
            return -1 if last is None else last.external_epoch, Member(place, producer)
        last = self._table.last_commit(external_id)
        assert last is not None
        return last.external_epoch, None

    def _give_place(self, attempt: Attempt) -> str:
        """The next place that this attempt has not given yet and that has nothing left to be ended."""
        name, places = self._given.get(attempt.external_id, ("", []))
        if name != attempt.name:
            places = []
            self._given[attempt.external_id] = (attempt.name, places)
        number = places[-1] + 1 if places else 0
        while self._table.is_taken(place_of(attempt.external_id, number)):
            number += 1
        places.append(number)
        return place_of(attempt.external_id, number)

    def _given_places(self, external_id: str) -> list[str]:
        """The places that were given in the present attempt."""
        _, places = self._given.get(external_id, ("", []))
        return [place_of(external_id, number) for number in places]

    async def abort_attempt(self, external_id: str, external_epoch: int, attempt: str) -> None:
        """End an attempt and what it has open; see ``attempts``."""
        await self._places_settled(external_id)
        given = self._given_places(external_id)
        change = self._table.abort_attempt(external_id, external_epoch, attempt, given, self._now_ms())
        if change is not None:
            self._given.pop(external_id, None)
            await self._write(change)

    async def commit_together(
        self,
        external_id: str,
        external_epoch: int,
        committed: Sequence[Member],
        aborted: Sequence[Member],
        attempt: str = "",
    ) -> Decision:
        """Commit producers as one; see ``together``. Their markers follow."""
        members = [*committed, *aborted]
        await asyncio.gather(
            self._places_settled(external_id), *(self._settled(member.transactional_id) for member in members)
        )
        count = together.count_needing_producer_ids(members, self._table.find)
        new_ids = [await self._new_producer_id() for _ in range(count)]
        if together.count_needing_producer_ids(members, self._table.find) > count:
            raise ConcurrentTransactionsError(f"producers of {external_id} have changed meanwhile: try again")
        decision, change = self._table.commit_together(
            external_id,
            external_epoch,
            committed=committed,
            aborted=aborted,
            new_producer_ids=iter(new_ids),
            now_ms=self._now_ms(),
            attempt=attempt,
            given=self._given_places(external_id),
        )
        if change.records():
            await self._write(change)
        if not decision.was_committed_before:
            self._given.pop(external_id, None)
        return decision

    async def _places_settled(self, external_id: str) -> bool:
        """Wait until nothing is being written of an external id and its places; False when it takes too long."""
        is_settled = await self._settlings.until(
            (self._log.number, _commit_name(external_id)),
            lambda: not (self._is_active and self._table.is_committing(external_id)),
            _PATIENCE_MS,
        )
        names = {*self._table.places(external_id), *self._given_places(external_id)}
        writing = [name for name in names if self._table.is_busy(name)]
        return is_settled and all(await asyncio.gather(*map(self._settled, writing)))

    def verify(self, transactional_id: str, producer: Producer, partition: PartitionKey) -> None:
        """Raise unless a partition is part of the producer's open transaction; see ``rules``."""
        self._table.verify(transactional_id, producer, partition)

    async def _decide(
        self, transactional_id: str, needs_id: Callable[[], bool], decide: Callable[[int], Change | None]
    ) -> Change | None:
        """Make a decision, with a new producer id if it needs one, when nothing else is under way."""
        new_id = NO_PRODUCER_ID
        has_waited = False
        while True:
            if new_id == NO_PRODUCER_ID and needs_id():
                new_id = await self._new_producer_id()
                continue
            try:
                return decide(new_id)
            except ConcurrentTransactionsError:
                if has_waited or not await self._settled(transactional_id):
                    raise
                has_waited = True

    async def _settled(self, transactional_id: str) -> bool:
        """Wait until nothing is under way; False when it takes too long."""
        return await self._settlings.until(
            (self._log.number, transactional_id),
            lambda: not (self._is_active and self._table.is_busy(transactional_id)),
            _PATIENCE_MS,
        )

    def _now_ms(self) -> int:
        return self._clock.now_ms()

    # --- writing ---------------------------------------------------------------------------------------------

    async def _write(self, change: Change) -> None:
        """Have a change written; it is true afterwards.

        Raises what appending does, and nothing has changed then; ``NotCoordinatorError`` once this has ended.
        """
        if not self._is_active:
            raise NotCoordinatorError(f"{self._log.name} is coordinated elsewhere now: find the coordinator anew")
        self._table.begin(change)
        is_written = False
        try:
            await self._log.append(change.records())
            is_written = True
        finally:
            if is_written:
                self._table.apply(change)
            else:
                self._table.withdraw(change)
            for transactional_id in change.transactional_ids:
                self._attend(transactional_id, has_failed=not is_written)
            for external_id in change.external_ids:
                self._settlings.check((self._log.number, _commit_name(external_id)))

    def _attend(self, transactional_id: str, *, has_failed: bool = False) -> None:
        """See that what a transactional id needs is under way, after a change or the failure to write one."""
        timer = self._timers.pop(transactional_id, None)
        if timer is not None:
            timer.cancel()
        current = self._table.find(transactional_id)
        if current is not None and self._is_active:
            if current.state is TransactionState.ONGOING:
                self._schedule_time_out(current, _RETRY_MS if has_failed else 0)
            elif current.state in ENDING and not has_failed:
                self._start(self._finish(current))
        self._settlings.check((self._log.number, transactional_id))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work, name=f"millrace-{self._log.name}")

    # --- the coordinator's own work --------------------------------------------------------------------------

    async def _finish(self, transaction: Transaction) -> None:
        """Write the markers of a decided transaction, and write down that they are there."""
        if not await write_markers(self._markers, transaction, self._log.leader_epoch):
            return
        self._ended["committed" if transaction.is_committed else "aborted"] += 1
        while True:
            try:
                await self._write(self._table.complete(transaction.transactional_id, self._now_ms()))
            except MillraceError as error:
                _logger.warning("%s: the end of %s: %s", self._log.name, transaction.transactional_id, error.message)
                await asyncio.sleep(_RETRY_MS / 1000)
            else:
                return

    def _schedule_time_out(self, transaction: Transaction, timer_ms_min: int) -> None:
        left_ms = transaction.started_ms + transaction.timeout_ms - self._now_ms()
        # The clock may have jumped: no transaction is open for longer than it may be.
        delay_ms = min(max(left_ms, timer_ms_min, 0), max(transaction.timeout_ms, timer_ms_min))
        transactional_id, producer = transaction.transactional_id, transaction.producer
        self._timers[transactional_id] = self._timer.schedule(
            delay_ms, lambda: self._start(self._time_out(transactional_id, producer))
        )

    async def _time_out(self, transactional_id: str, producer: Producer) -> None:
        change = self._table.time_out(transactional_id, producer, self._now_ms())
        if change is None:
            return  # it has ended, or something is being written, after which the time is looked at again
        _logger.info("%s: the transaction of %s timed out and is aborted", self._log.name, transactional_id)
        try:
            await self._write(change)
        except MillraceError as error:
            _logger.warning("%s: %s", self._log.name, error.message)
        else:
            self._ended["timed out"] += 1

    def _schedule_expiry(self) -> None:
        if self._is_active:
            interval_ms = self._config.transaction_remove_expired_transaction_cleanup_interval_ms
            self._expiry = self._timer.schedule(interval_ms, lambda: self._start(self._expire()))

    async def _expire(self) -> None:
        expiration_ms = self._config.transactional_id_expiration_ms
        try:
            while change := self._table.expire(self._now_ms(), expiration_ms, _EXPIRED_AT_ONCE):
                await self._write(change)
                count = len(change.forgotten) + len(change.forgotten_commits)
                _logger.info("%s: %d transactional and external ids have expired", self._log.name, count)
        except MillraceError as error:
            _logger.warning("%s: transactional ids are kept for now: %s", self._log.name, error.message)
        finally:
            self._schedule_expiry()


def _commit_name(external_id: str) -> str:
    """What those wait under who wait for an external id: no transactional id, for these have no line breaks."""
    return f"\n{external_id}"
