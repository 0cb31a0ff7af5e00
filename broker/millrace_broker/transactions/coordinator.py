"""The coordinator of transactions: what handlers call. It finds the shard of a transactional id, which does the rest.

A transactional id lives in the partition of ``__transaction_state`` that its *coordinator key* belongs to: by default
that is the id itself, and for producers that are committed together the external id (see ``together``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.config.broker import BrokerConfig
from millrace.coordinator_records import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from millrace.errors import CoordinatorLoadInProgressError, InvalidRequestError, TransactionalIdNotFoundError
from millrace_broker.coordinators import ShardFactory, StateLog, partition_of
from millrace_broker.metadata import ProducerIds
from millrace_broker.network import Peers
from millrace_broker.purgatory import PurgatoryStatistics, Timer
from millrace_broker.replication.runtime import PartitionDirectory
from millrace_broker.runtime import Clock, Executors
from millrace_broker.transactions import rules
from millrace_broker.transactions.attempts import Attempt
from millrace_broker.transactions.elsewhere import verify
from millrace_broker.transactions.markers import Markers, OffsetCommits
from millrace_broker.transactions.metadata import Marker, PartitionKey, Producer, Transaction
from millrace_broker.transactions.shard import Settlings, TransactionShard
from millrace_broker.transactions.together import Decision, Member


@dataclass(frozen=True, slots=True)
class TransactionStatistics:
    """Transactional ids by the names of their states; how many transactions ended how since the start; who waits."""

    by_state: Mapping[str, int]
    ended: Mapping[str, int]
    waiting: PurgatoryStatistics


class TransactionCoordinator:
    """The transactional ids that this broker coordinates. For the event loop's thread."""

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
        self._settlings: Final = Settlings("transaction to be ended", timer)
        self._shards: Final = shards.shards(TRANSACTIONS_TOPIC, self._make_shard)
        self._ended: Final[Counter[str]] = Counter()

    def _make_shard(self, log: StateLog) -> TransactionShard:
        return TransactionShard(
            log,
            self._markers,
            self._settlings,
            self._ended,
            config=self._config,
            clock=self._clock,
            timer=self._timer,
            new_producer_id=self._new_producer_id,
        )

    async def _new_producer_id(self) -> int:
        return await self._executors.administer(self._producer_ids.next_id)

    def start(self) -> None:
        """Begin to read what transactions there are, and go on with them."""
        self._shards.start()

    def release(self) -> None:
        """Answer all who wait, now that the broker is about to stop."""
        self._settlings.close()

    async def close(self) -> None:
        """Finish what is being written; what was decided is ended everywhere after the next start."""
        self.release()
        await self._shards.close()

    # --- calls -----------------------------------------------------------------------------------------------

    async def init_producer_id(
        self, transactional_id: str, expected: Producer | None, *, timeout_ms: int, coordinator_key: str = ""
    ) -> Producer:
        """Let a producer take over a transactional id; see ``rules``. Raises also ``InvalidRequestError``."""
        _check_id(transactional_id)
        rules.check_timeout(timeout_ms, self._config.transaction_max_timeout_ms)
        await self._shards.ensure_topic()
        shard = await self._shard(coordinator_key or transactional_id)
        return await self._executors.to_the_end(shard.init_producer_id(transactional_id, expected, timeout_ms))

    async def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[PartitionKey],
        *,
        coordinator_key: str = "",
    ) -> None:
        """Take partitions into a producer's transaction; see ``rules``."""
        _check_id(transactional_id)
        shard = await self._shard(coordinator_key or transactional_id)
        await self._executors.to_the_end(shard.add_partitions(transactional_id, producer, partitions))

    async def add_offsets(
        self, transactional_id: str, producer: Producer, group_id: str, *, coordinator_key: str = ""
    ) -> None:
        """Take the offsets of a group into a producer's transaction: the partition where they are committed."""
        topic = await self._topics.ensure(OFFSETS_TOPIC)
        partition = (OFFSETS_TOPIC, partition_of(group_id, len(topic.partitions)))
        await self.add_partitions(transactional_id, producer, [partition], coordinator_key=coordinator_key)

    async def end(
        self, transactional_id: str, producer: Producer, *, committed: bool, coordinator_key: str = ""
    ) -> Producer:
        """Commit or abort a producer's transaction; returns the id and epoch with which it goes on; see ``rules``."""
        _check_id(transactional_id)
        shard = await self._shard(coordinator_key or transactional_id)
        return await self._executors.to_the_end(shard.end(transactional_id, producer, committed=committed))

    async def join_commit(self, attempt: Attempt, *, timeout_ms: int) -> tuple[int, Member | None]:
        """Let one more producer take part in an attempt; see ``TransactionShard.join_commit``."""
        rules.check_timeout(timeout_ms, self._config.transaction_max_timeout_ms)
        await self._shards.ensure_topic()
        shard = await self._shard(attempt.external_id)
        return await self._executors.to_the_end(shard.join_commit(attempt, timeout_ms))

    async def abort_attempt(self, external_id: str, external_epoch: int, attempt: str) -> None:
        """Abort what an attempt has open; see ``attempts``."""
        shard = await self._shard(external_id)
        await self._executors.to_the_end(shard.abort_attempt(external_id, external_epoch, attempt))

    async def commit_together(
        self,
        external_id: str,
        external_epoch: int,
        committed: Sequence[Member],
        aborted: Sequence[Member],
        attempt: str = "",
    ) -> Decision:
        """Commit producers as one, under an external id; see ``together``."""
        await self._shards.ensure_topic()
        shard = await self._shard(external_id)
        return await self._executors.to_the_end(
            shard.commit_together(external_id, external_epoch, committed, aborted, attempt)
        )

    async def verify(
        self, transactional_id: str, producer: Producer, partition: PartitionKey, *, coordinator_key: str = ""
    ) -> None:
        """Raise unless a partition is part of the producer's open transaction; see ``rules``."""
        _check_id(transactional_id)
        number = self._shards.number_of(coordinator_key or transactional_id)
        elsewhere = self._partitions.leader_elsewhere((TRANSACTIONS_TOPIC, number))
        if elsewhere is not None:
            await verify(self._peers, elsewhere, transactional_id, producer, partition, coordinator_key=coordinator_key)
            return
        await self.verify_here(transactional_id, producer, partition, coordinator_key=coordinator_key)

    async def verify_here(
        self, transactional_id: str, producer: Producer, partition: PartitionKey, *, coordinator_key: str = ""
    ) -> None:
        """As ``verify``, where this broker coordinates the transactional id. Raises ``NotCoordinatorError`` too."""
        _check_id(transactional_id)
        shard = await self._shard(coordinator_key or transactional_id)
        shard.verify(transactional_id, producer, partition)

    async def verify_offsets(
        self, transactional_id: str, producer: Producer, group_id: str, *, coordinator_key: str = ""
    ) -> None:
        """Raise unless the offsets of a group are part of the producer's open transaction."""
        partition = (OFFSETS_TOPIC, partition_of(group_id, self._offsets.partition_count))
        await self.verify(transactional_id, producer, partition, coordinator_key=coordinator_key)

    async def write_marker(self, partition: PartitionKey, marker: Marker) -> None:
        """Write a marker that another coordinator, or an administrator, sends for a partition that is led here."""
        await self._markers.write_here(partition, marker)

    async def _shard(self, key: str) -> TransactionShard:
        """The shard of a key; waits a moment for one that is being read."""
        return await self._shards.soon(self._shards.number_of(key))

    # --- views -----------------------------------------------------------------------------------------------

    def transactions(self) -> Iterator[Transaction]:
        """All transactional ids. Raises ``CoordinatorLoadInProgressError`` while others are being read."""
        if self._shards.is_loading:
            raise CoordinatorLoadInProgressError("transactions are being read: try again")
        for shard in self._shards.all():
            yield from shard.table

    def describe(self, transactional_id: str) -> Transaction:
        """A transactional id, whatever its coordinator key is.

        Raises ``TransactionalIdNotFoundError``, ``CoordinatorLoadInProgressError``.
        """
        if self._shards.is_loading:
            raise CoordinatorLoadInProgressError("transactions are being read: try again")
        for shard in self._shards.all():
            found = shard.table.find(transactional_id)
            if found is not None:
                return found
        raise TransactionalIdNotFoundError(f"no transactional id {transactional_id!r} is coordinated here")

    def statistics(self) -> TransactionStatistics:
        """The present numbers."""
        return TransactionStatistics(
            by_state=Counter(each.state.kafka_name for shard in self._shards.all() for each in shard.table),
            ended=dict(self._ended),
            waiting=self._settlings.statistics(),
        )


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise InvalidRequestError("an empty transactional id: set transactional.id")
