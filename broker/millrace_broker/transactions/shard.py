"""Transactional ids of one partition of ``__transaction_state``.

The shard has their state, their log, their timers and their markers.

Invariants

- A call is answered after its change is in the log.
- An open transaction has a timer, which aborts it. A prepared one has a task, which writes its markers.
- A change whose write has begun is completed, even if its call is cancelled.
- Within an attempt (see ``attempts``) a numbered id is assigned to one producer. The log has no record of the
  assignment. After a restart an id without a transaction may be assigned again, and its first producer is fenced.

The class is for the event loop's thread, except for ``replay``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from millrace.config.broker import BrokerConfig
from millrace.coordinator_records import TransactionState
from millrace.errors import ConcurrentTransactionsError, MillraceError, NotCoordinatorError
from millrace.records import NO_PRODUCER_ID
from millrace_broker.coordinators import LoadedBatch, StateLog
from millrace_broker.purgatory import Conditions, PartitionKey, Timer, TimerEntry
from millrace_broker.runtime import BackgroundTasks, Clock
from millrace_broker.transactions import attempts, external_commits, states
from millrace_broker.transactions.attempts import Attempt
from millrace_broker.transactions.external_commits import CommitDecision, TransactionalProducer
from millrace_broker.transactions.markers import Markers, write_markers
from millrace_broker.transactions.metadata import (
    PREPARED,
    ProducerIdAndEpoch,
    TransactionMetadata,
    numbered_id,
)
from millrace_broker.transactions.state_manager import StateChange, TransactionStateManager

_logger: Final = logging.getLogger(__name__)

_RETRY_MS: Final = 1000
"""The pause before the coordinator retries a write that has failed."""
_EXPIRED_PER_BATCH: Final = 1000
_IDLE_WAIT_MS: Final = 1000
"""The time that a call waits for the completion of the last transaction. After it the client has to retry."""

IdleConditions = Conditions[tuple[int, str]]
"""Calls that wait until an id is idle, by the partition of ``__transaction_state`` and the id."""


@dataclass(frozen=True, slots=True)
class _Addition:
    """An addition of partitions to a transaction.

    The addition waits until the transactional id is idle.
    """

    partitions: set[PartitionKey]
    added: asyncio.Future[None]


class TransactionShard:
    """Transactional ids of one partition of ``__transaction_state``; see the module."""

    def __init__(
        self,
        log: StateLog,
        markers: Markers,
        idle: IdleConditions,
        ended: Counter[str],
        *,
        config: BrokerConfig,
        clock: Clock,
        timer: Timer,
        new_producer_id: Callable[[], Awaitable[int]],
    ) -> None:
        """Take the parts of the shard; ``ended`` counts the committed, aborted and timed-out transactions."""
        self._config: Final = config
        self._clock: Final = clock
        self._timer: Final = timer
        self._new_producer_id: Final = new_producer_id
        self._log: Final = log
        self._markers: Final = markers
        self._idle: Final = idle
        self._state_manager: Final = TransactionStateManager()
        self._assigned: Final[dict[str, tuple[str, list[int]]]] = {}
        """The present attempt of each external id, and the numbers of the ids that were assigned to it."""
        self._additions: Final[dict[tuple[str, ProducerIdAndEpoch], _Addition]] = {}
        self._timers: Final[dict[str, TimerEntry]] = {}
        self._expiry: TimerEntry | None = None
        self._tasks: Final = BackgroundTasks()
        self._ended: Final = ended
        self._is_active = False

    # --- life ------------------------------------------------------------------------------------------------

    def replay(self, batch: LoadedBatch) -> None:
        """Apply a batch of the log."""
        for record in batch.records:
            self._state_manager.replay(record)

    def activate(self) -> None:
        """Begin to answer, and continue what the last coordinator has left."""
        self._is_active = True
        for transaction in self._state_manager:
            self._schedule_work(transaction.transactional_id)
        self._schedule_expiry()

    def deactivate(self) -> None:
        """Stop timers and markers, because the next coordinator continues with them."""
        self._is_active = False
        for timer in (*self._timers.values(), *([self._expiry] if self._expiry else [])):
            timer.cancel()
        self._timers.clear()
        for task in self._tasks:
            task.cancel()
        for transaction in self._state_manager:
            self._idle.check((self._log.number, transaction.transactional_id))
        for external_id in self._assigned:
            self._idle.check((self._log.number, _idle_key_of(external_id)))

    # --- views -----------------------------------------------------------------------------------------------

    @property
    def state_manager(self) -> TransactionStateManager:
        """The states of the transactional ids, for reading."""
        return self._state_manager

    # --- calls -----------------------------------------------------------------------------------------------

    async def init_producer_id(
        self, transactional_id: str, expected: ProducerIdAndEpoch | None, timeout_ms: int, external_id: str = ""
    ) -> ProducerIdAndEpoch:
        """Give a transactional id to a producer, after the abort of its open transaction; see ``states``."""
        while True:
            change = await self._decide(
                transactional_id,
                lambda: self._state_manager.init_needs_producer_id(transactional_id, expected),
                lambda new_id: self._state_manager.init_producer_id(
                    transactional_id,
                    expected,
                    timeout_ms=timeout_ms,
                    new_producer_id=new_id,
                    now_ms=self._now_ms(),
                    external_id=external_id,
                ),
            )
            assert change is not None
            await self._write(change)
            (after,) = change.transactions
            if after.state is TransactionState.EMPTY:
                return after.producer

    async def add_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Sequence[PartitionKey]
    ) -> None:
        """Add partitions to a transaction; see ``states``.

        Calls of one producer that wait until the id is idle share a change. A Produce request makes a call for each of
        its partitions, and a producer may have several such requests in flight.
        """
        key = transactional_id, producer
        waiting = self._additions.get(key)
        if waiting is not None:
            waiting.partitions.update(partitions)
            await asyncio.shield(waiting.added)
            return
        addition = self._additions[key] = _Addition(set(partitions), asyncio.get_running_loop().create_future())
        try:
            change = await self._decide(transactional_id, lambda: False, lambda _: self._add(key))
            if change is not None:
                await self._write(change)
            addition.added.set_result(None)
        except Exception as error:
            addition.added.set_exception(error)
            addition.added.exception()  # marks the exception as retrieved, because there may be no other call
            raise
        finally:
            addition.added.cancel()
            if self._additions.get(key) is addition:
                del self._additions[key]

    def _add(self, key: tuple[str, ProducerIdAndEpoch]) -> StateChange | None:
        """Decide an addition, which later calls no longer share."""
        change = self._state_manager.add_partitions(*key, self._additions[key].partitions, self._now_ms())
        del self._additions[key]
        return change

    async def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, committed: bool, keeps_epoch: bool
    ) -> ProducerIdAndEpoch:
        """Prepare the end of a transaction; return the producer id and epoch for the next.

        A task writes the markers.
        """
        change = await self._decide(
            transactional_id,
            lambda: not keeps_epoch and self._state_manager.end_needs_producer_id(transactional_id),
            lambda new_id: self._state_manager.end(
                transactional_id,
                producer,
                committed=committed,
                keeps_epoch=keeps_epoch,
                new_producer_id=new_id,
                now_ms=self._now_ms(),
            ),
        )
        if change is None:
            current = self._state_manager.find(transactional_id)
            assert current is not None
            return states.next_producer(current)
        await self._write(change)
        return states.next_producer(change.transactions[0])

    async def join_commit(self, attempt: Attempt, timeout_ms: int) -> tuple[int, TransactionalProducer | None]:
        """Add a producer to an attempt; see ``attempts``.

        Returns the last committed epoch, and the producer with its numbered id, None if the attempt's epoch is
        committed.
        """
        external_id = attempt.external_id
        attempts.check_owner(self._state_manager.last_commit(external_id), external_id, attempt.owner)
        while not attempts.was_committed(self._state_manager.last_commit(external_id), attempt.external_epoch):
            try:
                change = self._state_manager.begin_attempt(attempt, self._assigned_ids(external_id), self._now_ms())
            except ConcurrentTransactionsError:
                if not await self._wait_until_ids_idle(external_id):
                    raise
                continue
            if change is not None:
                self._assigned.pop(external_id, None)
                await self._write(change)
            transactional_id = self._assign_id(attempt)
            producer = await self.init_producer_id(transactional_id, None, timeout_ms, external_id)
            last = self._state_manager.last_commit(external_id)
            return -1 if last is None else last.external_epoch, TransactionalProducer(transactional_id, producer)
        last = self._state_manager.last_commit(external_id)
        assert last is not None
        return last.external_epoch, None

    def _assign_id(self, attempt: Attempt) -> str:
        """Return the next numbered id that this attempt has not assigned and that is free."""
        external_id = attempt.external_id
        name, places = self._assigned.get(external_id, ("", []))
        if name != attempt.name:
            places = []
            self._assigned[external_id] = (attempt.name, places)
        number = places[-1] + 1 if places else 0
        while not self._state_manager.is_free(external_id, numbered_id(external_id, number)):
            number += 1
        places.append(number)
        return numbered_id(external_id, number)

    def _assigned_ids(self, external_id: str) -> list[str]:
        """Return the numbered ids that the present attempt has assigned."""
        _, places = self._assigned.get(external_id, ("", []))
        return [numbered_id(external_id, number) for number in places]

    async def abort_attempt(self, external_id: str, external_epoch: int, attempt: str) -> None:
        """Abort an attempt and its open transactions; see ``attempts``."""
        await self._wait_until_ids_idle(external_id)
        assigned = self._assigned_ids(external_id)
        change = self._state_manager.abort_attempt(external_id, external_epoch, attempt, assigned, self._now_ms())
        if change is not None:
            self._assigned.pop(external_id, None)
            await self._write(change)

    async def commit_transactions(
        self,
        external_id: str,
        external_epoch: int,
        committed: Sequence[TransactionalProducer],
        aborted: Sequence[TransactionalProducer],
        attempt: str = "",
    ) -> CommitDecision:
        """Commit several producers as one; see ``external_commits``. Tasks write the markers."""
        members = [*committed, *aborted]
        await asyncio.gather(
            self._wait_until_ids_idle(external_id),
            *(self._wait_until_idle(member.transactional_id) for member in members),
        )
        count = external_commits.count_needing_producer_ids(members, self._state_manager.find)
        new_ids = [await self._new_producer_id() for _ in range(count)]
        if external_commits.count_needing_producer_ids(members, self._state_manager.find) > count:
            raise ConcurrentTransactionsError(f"producers of external id {external_id} have changed meanwhile: retry")
        decision, change = self._state_manager.commit_transactions(
            external_id,
            external_epoch,
            committed=committed,
            aborted=aborted,
            new_producer_ids=iter(new_ids),
            now_ms=self._now_ms(),
            attempt=attempt,
            assigned=self._assigned_ids(external_id),
        )
        if change.records():
            await self._write(change)
        if not decision.was_committed_before:
            self._assigned.pop(external_id, None)
        return decision

    async def _wait_until_ids_idle(self, external_id: str) -> bool:
        """Wait until an external id and its numbered ids are idle; return False after a second."""
        is_settled = await self._idle.until(
            (self._log.number, _idle_key_of(external_id)),
            lambda: not (self._is_active and self._state_manager.is_committing(external_id)),
            _IDLE_WAIT_MS,
        )
        names = {*self._state_manager.ids_in_use(external_id), *self._assigned_ids(external_id)}
        busy = [name for name in names if self._state_manager.is_busy(name)]
        return is_settled and all(await asyncio.gather(*map(self._wait_until_idle, busy)))

    def verify(self, transactional_id: str, producer: ProducerIdAndEpoch, partition: PartitionKey) -> None:
        """Check that a partition belongs to the producer's open transaction; see ``states``."""
        self._state_manager.verify(transactional_id, producer, partition)

    async def _decide(
        self, transactional_id: str, needs_id: Callable[[], bool], decide: Callable[[int], StateChange | None]
    ) -> StateChange | None:
        """Return a change of an idle transactional id. ``needs_id`` says whether it needs a new producer id."""
        new_id = NO_PRODUCER_ID
        has_waited = False
        while True:
            if new_id == NO_PRODUCER_ID and needs_id():
                new_id = await self._new_producer_id()
                continue
            try:
                return decide(new_id)
            except ConcurrentTransactionsError:
                if has_waited or not await self._wait_until_idle(transactional_id):
                    raise
                has_waited = True

    async def _wait_until_idle(self, transactional_id: str) -> bool:
        """Wait until a transactional id is idle; return False after a second."""
        return await self._idle.until(
            (self._log.number, transactional_id),
            lambda: not (self._is_active and self._state_manager.is_busy(transactional_id)),
            _IDLE_WAIT_MS,
        )

    def _now_ms(self) -> int:
        return self._clock.now_ms()

    # --- writing ---------------------------------------------------------------------------------------------

    async def _write(self, change: StateChange) -> None:
        """Append a change to the log, and apply it.

        If the append raises an error, the state does not change. Raises ``NotCoordinatorError`` after ``deactivate``.
        """
        if not self._is_active:
            raise NotCoordinatorError(
                f"this broker no longer coordinates the ids of {self._log.name}: find the coordinator again"
            )
        self._state_manager.begin(change)
        is_written = False
        try:
            await self._log.append(change.records())
            is_written = True
        finally:
            if is_written:
                self._state_manager.apply(change)
            else:
                self._state_manager.withdraw(change)
            for transactional_id in change.transactional_ids:
                self._schedule_work(transactional_id, has_failed=not is_written)
            for external_id in change.external_ids:
                self._idle.check((self._log.number, _idle_key_of(external_id)))

    def _schedule_work(self, transactional_id: str, *, has_failed: bool = False) -> None:
        """Set the timer, or start the task, that the state of a transactional id requires."""
        timer = self._timers.pop(transactional_id, None)
        if timer is not None:
            timer.cancel()
        current = self._state_manager.find(transactional_id)
        if current is not None and self._is_active:
            if current.state is TransactionState.ONGOING:
                self._schedule_time_out(current, _RETRY_MS if has_failed else 0)
            elif current.state in PREPARED and not has_failed:
                self._start(self._complete(current))
        self._idle.check((self._log.number, transactional_id))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work, name=f"millrace-{self._log.name}")

    # --- the coordinator's own work --------------------------------------------------------------------------

    async def _complete(self, transaction: TransactionMetadata) -> None:
        """Write the markers of a prepared transaction, and then complete it in the log."""
        if not await write_markers(self._markers, transaction, self._log.leader_epoch):
            return
        self._ended["committed" if transaction.is_committed else "aborted"] += 1
        while True:
            try:
                await self._write(self._state_manager.complete(transaction.transactional_id, self._now_ms()))
            except MillraceError as error:
                _logger.warning(
                    "%s: the transaction of %s could not be completed; the coordinator retries: %s",
                    self._log.name,
                    transaction.transactional_id,
                    error.message,
                )
                await asyncio.sleep(_RETRY_MS / 1000)
            else:
                return

    def _schedule_time_out(self, transaction: TransactionMetadata, timer_ms_min: int) -> None:
        left_ms = transaction.started_ms + transaction.timeout_ms - self._now_ms()
        # The clock may have jumped. No transaction stays open for longer than its timeout.
        delay_ms = min(max(left_ms, timer_ms_min, 0), max(transaction.timeout_ms, timer_ms_min))
        transactional_id, producer = transaction.transactional_id, transaction.producer
        self._timers[transactional_id] = self._timer.schedule(
            delay_ms, lambda: self._start(self._time_out(transactional_id, producer))
        )

    async def _time_out(self, transactional_id: str, producer: ProducerIdAndEpoch) -> None:
        change = self._state_manager.time_out(transactional_id, producer, self._now_ms())
        if change is None:
            return  # the transaction has ended, or a change is being written, after which the timer is set again
        _logger.info("%s: the transaction of %s has timed out and is aborted", self._log.name, transactional_id)
        try:
            await self._write(change)
        except MillraceError as error:
            _logger.warning("%s: the transaction could not be aborted: %s", self._log.name, error.message)
        else:
            self._ended["timed out"] += 1

    def _schedule_expiry(self) -> None:
        if self._is_active:
            interval_ms = self._config.transaction_remove_expired_transaction_cleanup_interval_ms
            self._expiry = self._timer.schedule(interval_ms, lambda: self._start(self._expire()))

    async def _expire(self) -> None:
        expiration_ms = self._config.transactional_id_expiration_ms
        try:
            while change := self._state_manager.expire(self._now_ms(), expiration_ms, _EXPIRED_PER_BATCH):
                await self._write(change)
                count = len(change.forgotten) + len(change.forgotten_commits)
                _logger.info("%s: %d transactional and external ids have expired", self._log.name, count)
        except MillraceError as error:
            _logger.warning("%s: expired transactional ids could not be deleted: %s", self._log.name, error.message)
        finally:
            self._schedule_expiry()


def _idle_key_of(external_id: str) -> str:
    """Return the key of an external id in ``IdleConditions``. No transactional id has a line break."""
    return f"\n{external_id}"
