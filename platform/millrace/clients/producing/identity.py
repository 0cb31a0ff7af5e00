"""Who a producer is to the brokers: its id and epoch, and the sequence number of each partition's next record.

Invariants: a batch gets its sequence number when it is first sent, and keeps it through all repetitions. A sequence
number is used again only when the broker has refused the batch that had it. When that is not known, the producer takes
a new id: the old one's numbers are of no further use. A transactional producer keeps its id, and its transaction can
only be aborted then: the next one has another epoch. With each id or epoch the numbers begin anew.
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
from millrace.errors import OutOfOrderSequenceError
from millrace.protocol import millrace_pb2 as pb

_SEQUENCE_MAX: Final = 2**31 - 1


class Identity:
    """Id, epoch and numbers of one producer. ``ensure`` and ``stamp`` are for the thread that sends."""

    def __init__(self, config: ProducerConfig, connections: Connections, transactions: Transactions | None) -> None:
        self._config = config
        self._connections = connections
        self._transactions = transactions
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[TopicPartition, int] = {}

    @property
    def is_known(self) -> bool:
        """Whether ``ensure`` has nothing to ask."""
        return self._producer is not None or not self._config.enable_idempotence

    def ensure(self, timeout_ms: Callable[[], int]) -> None:
        """See to it that there is an id, if there is to be one; ``timeout_ms`` says how long asking for it may take."""
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
        """What a batch is sent with: the same each time."""
        if outgoing.stamp is None and self._producer is not None:
            sequence = self._sequences.get(outgoing.partition, 0)
            outgoing.stamp = ProducerStamp(*self._producer, sequence, self._transactions is not None)
            self._sequences[outgoing.partition] = (sequence + outgoing.batch.num_rows) & _SEQUENCE_MAX
        return outgoing.stamp

    def forget(self, outgoing: Outgoing, *, was_refused: bool) -> None:
        """A batch is given up: its sequence numbers are free again, or the producer id is of no more use."""
        stamp = outgoing.stamp
        if self._transactions is not None:
            return  # the transaction is aborted, and the next one has another epoch
        if stamp is None or self._producer != (stamp.producer_id, stamp.producer_epoch):
            return
        if was_refused and not isinstance(outgoing.last_error, OutOfOrderSequenceError):
            self._sequences[outgoing.partition] = stamp.base_sequence
        else:
            self._producer = None
