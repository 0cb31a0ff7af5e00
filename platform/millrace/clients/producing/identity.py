"""Producer id, epoch and sequence numbers of an idempotent producer.

Invariants: a batch gets its sequence number when it is first sent, and keeps it for all retries. A sequence number is
reused only if each attempt ended with an error that proves that the broker did not append the batch. Otherwise the
producer takes a new id and discards the old one's sequence numbers. A transactional producer keeps its id; its
transaction can then only be aborted, and the next transaction has another epoch. Sequence numbers start at 0 with each
id or epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millrace.clients.connections import Connections
from millrace.clients.model import TopicPartition
from millrace.clients.producing.outgoing import Outgoing
from millrace.clients.producing.transactions import Transactions
from millrace.clients.producing.wire import ProducerStamp
from millrace.config.client import ProducerConfig
from millrace.protocol import millrace_pb2 as pb

_SEQUENCE_MAX: Final = 2**31 - 1


class Identity:
    """Id, epoch and sequence numbers of one producer. Only the sending thread calls ``ensure`` and ``stamp``."""

    def __init__(self, config: ProducerConfig, connections: Connections, transactions: Transactions | None) -> None:
        self._config = config
        self._connections = connections
        self._transactions = transactions
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[TopicPartition, int] = {}

    @property
    def is_known(self) -> bool:
        """True if ``ensure`` needs no request."""
        return self._producer is not None or not self._config.enable_idempotence

    def ensure(self, timeout_ms: Callable[[], int]) -> None:
        """Get a producer id if the configuration needs one; ``timeout_ms`` returns the timeout of the request."""
        if self._transactions is not None:
            producer = self._transactions.identity
        elif self._config.enable_idempotence:
            producer = self._producer or self._new_producer(timeout_ms())
        else:
            return
        if producer != self._producer:
            self._sequences.clear()
            self._producer = producer

    def _new_producer(self, timeout_ms: int) -> tuple[int, int]:
        request = pb.InitProducerIdRequest(producer_id=-1, producer_epoch=-1)
        response = self._connections.call(lambda stub: stub.InitProducerId, request, timeout_ms=timeout_ms)
        return response.producer_id, response.producer_epoch

    def stamp(self, outgoing: Outgoing) -> ProducerStamp | None:
        """Return the stamp of a batch, the same for each attempt."""
        if outgoing.stamp is None and self._producer is not None:
            sequence = self._sequences.get(outgoing.partition, 0)
            outgoing.stamp = ProducerStamp(*self._producer, sequence, self._transactions is not None)
            self._sequences[outgoing.partition] = (sequence + outgoing.batch.num_rows) & _SEQUENCE_MAX
        return outgoing.stamp

    def forget(self, outgoing: Outgoing) -> None:
        """Release the sequence numbers of a failed batch, or discard the producer id if the outcome is unknown."""
        stamp = outgoing.stamp
        if self._transactions is not None:
            return  # the transaction is aborted, and the next one has another epoch
        if not outgoing.outcome_unknown:
            self.release(outgoing)
        elif stamp is not None and self._producer == (stamp.producer_id, stamp.producer_epoch):
            self._producer = None

    def release(self, outgoing: Outgoing) -> None:
        """Release the sequence numbers of a batch that the log certainly does not contain."""
        stamp = outgoing.stamp
        if stamp is not None and self._producer == (stamp.producer_id, stamp.producer_epoch):
            self._sequences[outgoing.partition] = stamp.base_sequence
