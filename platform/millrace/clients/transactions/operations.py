"""Transaction operations of ``Admin``: listing, hanging transactions and joint commits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from millrace.clients.connections import Connections
from millrace.clients.membership.coordinator import Coordinator, check_topic_errors
from millrace.clients.metadata import MetadataCache, broker_address
from millrace.clients.model import PreparedTransaction, TopicPartition
from millrace.clients.request_numbers import numbers_checked
from millrace.clients.transactions.model import (
    CommitOutcome,
    OpenTransaction,
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
)
from millrace.errors import (
    MillraceError,
    NotCoordinatorError,
    TransactionalIdNotFoundError,
    UnknownProducerIdError,
    UsageError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import check_item, error_in


class TransactionOperations:
    """Operations of ``Admin`` for transactions."""

    _connections: Connections
    _metadata: MetadataCache

    @numbers_checked()
    def list_transactions(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = (), duration_ms_min: int = -1
    ) -> list[TransactionListing]:
        """List the cluster's transactional ids, all or with these states (Ongoing, ...) and producers.

        With ``duration_ms_min`` only ids are listed whose last transaction began longer ago, or that had none. As in
        Kafka, the transaction may have ended since. Raises ``UsageError`` for an unknown state.
        """
        request = pb.ListTransactionsRequest(
            states=list(states), producer_ids=list(producer_ids), duration_ms_min=duration_ms_min
        )
        found = []
        for broker_id, address in self._brokers():
            response = self._connections.call(lambda stub: stub.ListTransactions, request, address=address)
            if response.unknown_states:
                raise UsageError(
                    f"{response.unknown_states[0]} is not a state of a transaction: the states are Empty, "
                    "Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, Dead and "
                    "PrepareEpochFence"
                )
            found += [
                TransactionListing(
                    transactional_id=transaction.transactional_id,
                    producer_id=transaction.producer_id,
                    state=transaction.state,
                    coordinator_id=broker_id,
                )
                for transaction in response.transactions
            ]
        return sorted(found, key=lambda listing: listing.transactional_id)

    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """Describe transactional ids and their open transactions; raises ``TransactionalIdNotFoundError`` for the
        first unknown.

        All brokers are asked, because a ``coordinator.key`` may select the coordinator.
        """
        wanted = list(dict.fromkeys(transactional_ids))
        request = pb.DescribeTransactionsRequest(transactional_ids=wanted)
        found: dict[str, TransactionDescription] = {}
        errors: dict[str, MillraceError] = {}
        redirections: dict[str, MillraceError] = {}
        for _, address in self._brokers():
            response = self._connections.call(lambda stub: stub.DescribeTransactions, request, address=address)
            for transaction in response.transactions:
                error = error_in(transaction.error)
                if isinstance(error, NotCoordinatorError):
                    redirections.setdefault(transaction.transactional_id, error)
                elif error is not None:
                    errors.setdefault(transaction.transactional_id, error)
                else:
                    found[transaction.transactional_id] = _transaction(transaction)
        for name in wanted:
            if name not in found:
                # The coordinator's error counts. Without one the coordinator is moving, and the call can be repeated.
                error = errors.get(name) or redirections.get(name)
                raise error or TransactionalIdNotFoundError(f"there is no transactional id {name}")
        return {name: found[name] for name in wanted}

    @numbers_checked()
    def describe_producers(
        self, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """Return the producers in the partitions' state, by producer id; raises the first partition's error."""
        found = {}
        for partition in (TopicPartition(*each) for each in partitions):
            request = pb.DescribeProducersRequest(
                topics=[pb.TopicPartitions(name=partition.topic, partitions=[partition.partition])]
            )
            response = self._connections.call(
                lambda stub: stub.DescribeProducers, request, address=self._metadata.leader_address(partition)
            )
            result = response.topics[0].partitions[0]
            check_item(result.error, str(partition))
            found[partition] = sorted(map(_producer, result.producers), key=lambda producer: producer.producer_id)
        return found

    def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], *, last_written_before_ms: int
    ) -> list[OpenTransaction]:
        """Find transactions that are open in partitions but unknown to every coordinator; they block readers for
        ever.

        Only producers whose last write was before a time, in ms, are checked. Choose a time
        ``transaction.max.timeout.ms`` ago, for example, because younger transactions may be ending just now.
        """
        suspects = [
            OpenTransaction(partition=partition, producer=producer)
            for partition, producers in self.describe_producers(partitions).items()
            for producer in producers
            if producer.transaction_start_offset >= 0 and producer.last_timestamp_ms < last_written_before_ms
        ]
        if not suspects:
            return []
        known = self._partitions_of_producers({suspect.producer.producer_id for suspect in suspects})
        return [
            suspect for suspect in suspects if suspect.partition not in known.get(suspect.producer.producer_id, set())
        ]

    def _partitions_of_producers(self, producer_ids: set[int]) -> Mapping[int, set[TopicPartition]]:
        """Return the partitions of transactions that coordinators know to be open, by producer."""
        known: dict[int, set[TopicPartition]] = {}
        for listing in self.list_transactions(producer_ids=producer_ids):
            try:
                described = self.describe_transactions([listing.transactional_id])[listing.transactional_id]
            except TransactionalIdNotFoundError:
                continue  # the id has expired meanwhile
            known.setdefault(described.producer_id, set()).update(described.partitions)
        return known

    def abort_transaction(self, partition: TopicPartition | tuple[str, int], *, start_offset: int) -> None:
        """Abort a hanging transaction in a partition, given by its first offset there.

        Leave a transaction that its coordinator still knows to the coordinator. Raises ``UnknownProducerIdError`` if
        no open transaction begins at that offset.
        """
        partition = TopicPartition(*partition)
        for producer in self.describe_producers([partition])[partition]:
            if producer.transaction_start_offset == start_offset:
                self.write_abort_marker(
                    partition,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    coordinator_epoch=producer.coordinator_epoch,
                )
                return
        raise UnknownProducerIdError(
            f"no open transaction in {partition} begins at offset {start_offset}: millrace transactions "
            f"describe-producers --topic {partition.topic} --partition {partition.partition} lists the open "
            "transactions"
        )

    @numbers_checked()
    def write_abort_marker(
        self,
        partition: TopicPartition | tuple[str, int],
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
    ) -> None:
        """Abort a producer's open transaction in a partition, regardless of its coordinator; ``abort_transaction``
        uses this.

        Raises ``InvalidProducerEpochError``, ``TransactionCoordinatorFencedError``.
        """
        partition = TopicPartition(*partition)
        marker = pb.WriteTxnMarkersRequest.Marker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            committed=False,
            topics=[pb.TopicPartitions(name=partition.topic, partitions=[partition.partition])],
            coordinator_epoch=max(coordinator_epoch, 0),
        )
        response = self._connections.call(
            lambda stub: stub.WriteTxnMarkers,
            pb.WriteTxnMarkersRequest(markers=[marker]),
            address=self._metadata.leader_address(partition),
        )
        check_topic_errors(response.results[0].topics)

    def commit_transactions(
        self,
        external_id: str,
        external_epoch: int,
        *,
        committed: Sequence[PreparedTransaction],
        aborted: Sequence[PreparedTransaction] = (),
        attempt: str = "",
    ) -> CommitOutcome:
        """Commit the prepared transactions of many producers together, and abort others: all or nothing, and once.

        ``external_id`` names the writer (a streaming query), and was the producers' ``coordinator.key``.
        ``external_epoch`` is its step (its micro-batch). An epoch that was committed before is not committed again,
        and the members of this call are aborted. If the outcome of a call is unknown, repeat it. With the ``attempt``
        of the members' ``Producer.join_commit`` all other open transactions of the attempt are aborted as well.

        Nothing is committed if an error is raised. Raises ``InvalidTxnStateError`` if one of ``committed`` is no
        longer open, for example after its ``transaction.timeout.ms``. Raises ``ProducerFencedError`` if another
        attempt has taken over.
        """
        request = pb.CommitTransactionsRequest(
            external_id=external_id,
            external_epoch=external_epoch,
            committed=[_member(member) for member in committed],
            aborted=[_member(member) for member in aborted],
            attempt=attempt,
        )
        coordinator = Coordinator(self._connections, external_id, pb.TRANSACTION)
        response = coordinator.call(lambda stub: stub.CommitTransactions, request)
        return CommitOutcome(
            was_committed_before=response.was_committed_before, last_committed_epoch=response.last_committed_epoch
        )

    def abort_commit(self, external_id: str, external_epoch: int, *, attempt: str) -> None:
        """Abort all open transactions of an attempt (see ``Producer.join_commit``); does nothing if its epoch was
        committed.

        Raises ``ProducerFencedError`` if another attempt has taken over and aborted them.
        """
        request = pb.AbortCommitRequest(external_id=external_id, external_epoch=external_epoch, attempt=attempt)
        coordinator = Coordinator(self._connections, external_id, pb.TRANSACTION)
        coordinator.call(lambda stub: stub.AbortCommit, request)

    def _brokers(self) -> Iterator[tuple[int, str]]:
        for broker in self._metadata.cluster().brokers:
            yield broker.node_id, broker_address(broker.host, broker.port)


def _member(prepared: PreparedTransaction) -> pb.CommitTransactionsRequest.Member:
    return pb.CommitTransactionsRequest.Member(
        transactional_id=prepared.transactional_id,
        producer_id=prepared.producer_id,
        producer_epoch=prepared.producer_epoch,
    )


def _transaction(transaction: pb.DescribeTransactionsResponse.Transaction) -> TransactionDescription:
    return TransactionDescription(
        transactional_id=transaction.transactional_id,
        coordinator_id=transaction.coordinator_id,
        state=transaction.state,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        timeout_ms=transaction.timeout_ms,
        start_time_ms=transaction.start_time_ms,
        partitions=tuple(
            TopicPartition(topic.name, number) for topic in transaction.topics for number in topic.partitions
        ),
    )


def _producer(producer: pb.DescribeProducersResponse.Producer) -> ProducerDescription:
    return ProducerDescription(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        last_sequence=producer.last_sequence,
        last_timestamp_ms=producer.last_timestamp_ms,
        coordinator_epoch=producer.coordinator_epoch,
        transaction_start_offset=producer.transaction_start_offset,
    )
