"""Transaction coordinator of this broker, Kafka's ``TransactionCoordinator``.

Handlers call it. It finds the shard of a transactional id, which does the rest.

The *coordinator key* gives the partition of ``__transaction_state``. By default it is the transactional id. Producers
that are committed as one have the external id as key (see ``external_commits``).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.config.broker import BrokerConfig
from millrace.coordinator_records import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from millrace.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidRequestError,
    TransactionalIdNotFoundError,
)
from millrace_broker.coordinators import ShardFactory, StateLog, in_time, partition_of
from millrace_broker.metadata import ProducerIds
from millrace_broker.network import Peers
from millrace_broker.purgatory import PartitionKey, PurgatoryStatistics, Timer
from millrace_broker.replication.runtime import PartitionDirectory
from millrace_broker.runtime import Clock, Executors
from millrace_broker.transactions import states
from millrace_broker.transactions.attempts import Attempt
from millrace_broker.transactions.external_commits import CommitDecision, TransactionalProducer
from millrace_broker.transactions.markers import Markers, OffsetCommits
from millrace_broker.transactions.metadata import (
    ProducerIdAndEpoch,
    TransactionMarker,
    TransactionMetadata,
)
from millrace_broker.transactions.peer_calls import add_offsets, add_partition
from millrace_broker.transactions.shard import IdleConditions, TransactionShard


@dataclass(frozen=True, slots=True)
class TransactionStatistics:
    """Numbers of transactional ids, ended transactions and waiting calls.

    Transactional ids are counted by state, ended transactions by outcome.
    """

    by_state: Mapping[str, int]
    ended: Mapping[str, int]
    waiting: PurgatoryStatistics


class TransactionCoordinator:
    """Transactional ids that this broker coordinates, for the event loop's thread."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        timer: Timer,
        executors: Executors,
        partitions: PartitionDirectory,
        peers: Peers,
        markers: Markers,
        offsets: OffsetCommits,
        producer_ids: ProducerIds,
        shards: ShardFactory,
    ) -> None:
        self._config: Final = config
        self._clock: Final = clock
        self._timer: Final = timer
        self._executors: Final = executors
        self._partitions: Final = partitions
        self._peers: Final = peers
        self._markers: Final = markers
        self._offsets: Final = offsets
        self._producer_ids: Final = producer_ids
        self._topics: Final = shards.topics
        self._idle: Final = IdleConditions("transaction to be ended", timer)
        self._shards: Final = shards.shards(TRANSACTIONS_TOPIC, self._make_shard)
        self._ended: Final[Counter[str]] = Counter()

    def _make_shard(self, log: StateLog) -> TransactionShard:
        return TransactionShard(
            log,
            self._markers,
            self._idle,
            self._ended,
            config=self._config,
            clock=self._clock,
            timer=self._timer,
            new_producer_id=self._new_producer_id,
        )

    async def _new_producer_id(self) -> int:
        return await self._executors.administer(self._producer_ids.next_id)

    def start(self) -> None:
        """Load the transactional ids, and continue with their transactions."""
        self._shards.start()

    def release(self) -> None:
        """Answer all waiting calls, because the broker is about to stop."""
        self._idle.close()

    async def close(self) -> None:
        """Complete the writes that have begun. Missing markers are written after the next start."""
        self.release()
        await self._shards.close()

    # --- calls -----------------------------------------------------------------------------------------------

    async def init_producer_id(
        self, transactional_id: str, expected: ProducerIdAndEpoch | None, *, timeout_ms: int, coordinator_key: str = ""
    ) -> ProducerIdAndEpoch:
        """Give a transactional id to a producer; see ``states``. Raises ``InvalidRequestError`` too."""
        _check_id(transactional_id)
        states.check_timeout(timeout_ms, self._config.transaction_max_timeout_ms)
        await self._shards.ensure_topic()
        shard = await self._shard(coordinator_key or transactional_id)
        return await in_time(shard.init_producer_id(transactional_id, expected, timeout_ms), self._executors)

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[PartitionKey],
        *,
        coordinator_key: str = "",
    ) -> None:
        """Add partitions to a producer's transaction; see ``states``."""
        _check_id(transactional_id)
        shard = await self._shard(coordinator_key or transactional_id)
        await in_time(shard.add_partitions(transactional_id, producer, partitions), self._executors)

    async def add_offsets(
        self, transactional_id: str, producer: ProducerIdAndEpoch, group_id: str, *, coordinator_key: str = ""
    ) -> None:
        """Add the offsets of a group to a producer's transaction, as a partition of ``__consumer_offsets``."""
        topic = await self._topics.ensure(OFFSETS_TOPIC)
        partition = (OFFSETS_TOPIC, partition_of(group_id, len(topic.partitions)))
        await self.add_partitions(transactional_id, producer, [partition], coordinator_key=coordinator_key)

    async def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        committed: bool,
        coordinator_key: str = "",
        keeps_epoch: bool = False,
    ) -> ProducerIdAndEpoch:
        """Commit or abort a transaction; return the producer id and epoch for the next one; see ``states``.

        ``keeps_epoch`` is true for producers before KIP-890.
        """
        _check_id(transactional_id)
        shard = await self._shard(coordinator_key or transactional_id)
        return await in_time(
            shard.end(transactional_id, producer, committed=committed, keeps_epoch=keeps_epoch), self._executors
        )

    async def join_commit(self, attempt: Attempt, *, timeout_ms: int) -> tuple[int, TransactionalProducer | None]:
        """Add a producer to an attempt; see ``TransactionShard.join_commit``."""
        states.check_timeout(timeout_ms, self._config.transaction_max_timeout_ms)
        await self._shards.ensure_topic()
        shard = await self._shard(attempt.external_id)
        return await in_time(shard.join_commit(attempt, timeout_ms), self._executors)

    async def abort_attempt(self, external_id: str, external_epoch: int, attempt: str) -> None:
        """Abort an attempt and its open transactions; see ``attempts``."""
        shard = await self._shard(external_id)
        await in_time(shard.abort_attempt(external_id, external_epoch, attempt), self._executors)

    async def commit_transactions(
        self,
        external_id: str,
        external_epoch: int,
        committed: Sequence[TransactionalProducer],
        aborted: Sequence[TransactionalProducer],
        attempt: str = "",
    ) -> CommitDecision:
        """Commit several producers as one, under an external id; see ``external_commits``."""
        await self._shards.ensure_topic()
        shard = await self._shard(external_id)
        return await in_time(
            shard.commit_transactions(external_id, external_epoch, committed, aborted, attempt), self._executors
        )

    async def verify(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partition: PartitionKey, *, coordinator_key: str = ""
    ) -> None:
        """Check that a partition belongs to the producer's open transaction, here or at another coordinator."""
        _check_id(transactional_id)
        leader = self._coordinator_elsewhere(coordinator_key or transactional_id)
        if leader is not None:
            await add_partition(
                self._peers,
                leader,
                transactional_id,
                producer,
                partition,
                coordinator_key=coordinator_key,
                verify_only=True,
            )
            return
        await self.verify_here(transactional_id, producer, partition, coordinator_key=coordinator_key)

    async def join(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partition: PartitionKey, *, coordinator_key: str = ""
    ) -> None:
        """Add a partition to the producer's transaction, here or at another coordinator (KIP-890, part 2)."""
        _check_id(transactional_id)
        leader = self._coordinator_elsewhere(coordinator_key or transactional_id)
        if leader is None:
            await self.add_partitions(transactional_id, producer, [partition], coordinator_key=coordinator_key)
        else:
            await add_partition(
                self._peers, leader, transactional_id, producer, partition, coordinator_key=coordinator_key
            )

    async def join_offsets(
        self, transactional_id: str, producer: ProducerIdAndEpoch, group_id: str, *, coordinator_key: str = ""
    ) -> None:
        """Add the offsets of a group to the producer's transaction, here or at another coordinator."""
        _check_id(transactional_id)
        leader = self._coordinator_elsewhere(coordinator_key or transactional_id)
        if leader is None:
            await self.add_offsets(transactional_id, producer, group_id, coordinator_key=coordinator_key)
        else:
            await add_offsets(
                self._peers, leader, transactional_id, producer, group_id, coordinator_key=coordinator_key
            )

    def _coordinator_elsewhere(self, key: str) -> int | None:
        return self._partitions.leader_elsewhere((TRANSACTIONS_TOPIC, self._shards.number_of(key)))

    async def verify_here(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partition: PartitionKey, *, coordinator_key: str = ""
    ) -> None:
        """Check the same for a transactional id of this broker. Raises ``NotCoordinatorError`` too."""
        _check_id(transactional_id)
        shard = await self._shard(coordinator_key or transactional_id)
        shard.verify(transactional_id, producer, partition)

    async def verify_offsets(
        self, transactional_id: str, producer: ProducerIdAndEpoch, group_id: str, *, coordinator_key: str = ""
    ) -> None:
        """Check that the offsets of a group belong to the producer's open transaction."""
        partition = (OFFSETS_TOPIC, partition_of(group_id, self._offsets.partition_count))
        await self.verify(transactional_id, producer, partition, coordinator_key=coordinator_key)

    async def write_marker(self, partition: PartitionKey, marker: TransactionMarker) -> None:
        """Write a marker for a partition of this broker, for another coordinator or an administrator."""
        await self._markers.write_here(partition, marker)

    async def _shard(self, key: str) -> TransactionShard:
        """Return the shard of a key, after a short wait if it is being loaded."""
        return await self._shards.wait_for_shard(self._shards.number_of(key))

    # --- views -----------------------------------------------------------------------------------------------

    def transactions(self) -> Iterator[TransactionMetadata]:
        """Yield all transactional ids. Raises ``CoordinatorLoadInProgressError`` while some are being loaded."""
        if self._shards.is_loading:
            raise CoordinatorLoadInProgressError("transactions are being loaded: retry")
        for shard in self._shards.all():
            yield from shard.state_manager

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """Return a transactional id, whatever its coordinator key is.

        Raises ``TransactionalIdNotFoundError``, ``CoordinatorLoadInProgressError``, and ``NotCoordinatorError`` for an
        id that is not here and that another broker coordinates if it has no coordinator key.
        """
        if self._shards.is_loading:
            raise CoordinatorLoadInProgressError("transactions are being loaded: retry")
        for shard in self._shards.all():
            found = shard.state_manager.find(transactional_id)
            if found is not None:
                return found
        with contextlib.suppress(CoordinatorNotAvailableError):  # without the topic there are no ids
            self._shards.shard_of(transactional_id)
        raise TransactionalIdNotFoundError(
            f"transactional id {transactional_id!r} does not exist at this coordinator: list ids with "
            "`millrace transactions list`"
        )

    def statistics(self) -> TransactionStatistics:
        """Return the present numbers."""
        return TransactionStatistics(
            by_state=Counter(each.state.kafka_name for shard in self._shards.all() for each in shard.state_manager),
            ended=dict(self._ended),
            waiting=self._idle.statistics(),
        )


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise InvalidRequestError("the transactional id is empty: set transactional.id")
