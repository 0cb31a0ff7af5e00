"""Raw calls of transactions.

There is a scripted producer, and readers of its records.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millrace.protocol import millrace_pb2 as pb
from millrace.records import AbortedTransaction, decode_range

from .waiting import eventually

COMMITTED, UNCOMMITTED = pb.READ_COMMITTED, pb.READ_UNCOMMITTED


class Producer:
    """A transactional producer that follows the test's script, right or wrong."""

    def __init__(self, calls: Any, name: str = "", key: str = "", timeout_ms: int = 60_000) -> None:
        self.calls = calls
        self.name = name or f"producer-{uuid.uuid4().hex[:8]}"
        self.key = key
        self.timeout_ms = timeout_ms
        self.id, self.epoch = -1, -1
        self.sequences: dict[tuple[str, int], int] = {}

    def init(self, *, keeps: bool = False) -> Producer:
        answer = self.calls.call(
            "InitProducerId",
            pb.InitProducerIdRequest(
                transactional_id=self.name,
                transaction_timeout_ms=self.timeout_ms,
                producer_id=self.id if keeps else -1,
                producer_epoch=self.epoch if keeps else -1,
                coordinator_key=self.key,
            ),
        )
        self._goes_on(answer)
        return self

    def _goes_on(self, answer: Any) -> None:
        self.id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences.clear()

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "transactional_id": self.name,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "coordinator_key": self.key,
        }

    def add(self, topic: str, *partitions: int) -> list[int]:
        topics = [pb.TopicPartitions(name=topic, partitions=partitions or [0])]
        request = pb.AddPartitionsToTxnRequest(topics=topics, **self.fields)
        answer = self.calls.call("AddPartitionsToTxn", request)
        return [partition.error.code for topic in answer.topics for partition in topic.partitions]

    def send(
        self, topic: str, *values: bytes, partition: int = 0, is_transactional: bool = True, name: str | None = None
    ) -> pb.ProduceResponse.PartitionResult:
        sequence = self.sequences.get((topic, partition), 0)
        batch = self.calls.batch(
            *values,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        data = pb.ProduceRequest.PartitionData(partition=partition, records=batch)
        request = pb.ProduceRequest(
            transactional_id=self.name if name is None else name,
            coordinator_key=self.key,
            acks=-1,
            topics=[pb.ProduceRequest.TopicData(name=topic, partitions=[data])],
        )
        result: pb.ProduceResponse.PartitionResult = self.calls.call("Produce", request).topics[0].partitions[0]
        if not result.error.code:
            self.sequences[topic, partition] = sequence + len(values)
        return result

    def write(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Add the partition and write to it."""
        assert self.add(topic, partition) == [0]
        result = self.send(topic, *values, partition=partition)
        assert not result.error.code, result.error.message

    def end(self, *, committed: bool = True) -> Producer:
        answer = self.calls.call("EndTxn", pb.EndTxnRequest(committed=committed, **self.fields))
        self._goes_on(answer)
        return self

    def end_error(self, *, committed: bool = True) -> Exception:
        """Return the error that refuses the end."""
        error: Exception = self.calls.error("EndTxn", pb.EndTxnRequest(committed=committed, **self.fields))
        return error

    @property
    def member(self) -> pb.CommitTransactionsRequest.Member:
        return pb.CommitTransactionsRequest.Member(
            transactional_id=self.name, producer_id=self.id, producer_epoch=self.epoch
        )


def fetch(calls: Any, topic: str, level: Any = COMMITTED, partition: int = 0, **options: Any) -> Any:
    request = calls.fetch_request({topic: {partition: options.pop("offset", 0)}}, **options)
    request.isolation_level = level
    return calls.call("Fetch", request).topics[0].partitions[0]


def values_of(fetched: Any) -> list[bytes]:
    listed = [
        AbortedTransaction(each.producer_id, each.first_offset, each.last_offset)
        for each in fetched.aborted_transactions
    ]
    batches = decode_range(pa.py_buffer(fetched.records), 0, 2**62, lambda _: pa.schema([]), aborted=listed)
    return [value for batch in batches for value in batch.columns.column("value").to_pylist()]


def committed(calls: Any, topic: str, partition: int = 0) -> list[bytes]:
    """Return the records of a read_committed reader once all markers are written."""
    end: list[Any] = []

    def is_all_decided() -> bool:
        end[:] = [fetch(calls, topic, partition=partition, max_wait_ms=100)]
        return bool(end[0].last_stable_offset == end[0].high_watermark)

    eventually(is_all_decided)
    values, offset = [], 0
    while offset < end[0].high_watermark:  # a fetch ends with its segment
        fetched = fetch(calls, topic, partition=partition, offset=offset)
        values += values_of(fetched)
        offset = calls.offsets_in(fetched.records)[-1].stop
    return values


def describe(calls: Any, name: str) -> Any:
    answer = calls.call("DescribeTransactions", pb.DescribeTransactionsRequest(transactional_ids=[name]))
    return answer.transactions[0]


def wait_for_state(calls: Any, name: str, *states: str) -> Any:
    eventually(
        lambda: describe(calls, name).state in states, " or ".join(states), progress=lambda: describe(calls, name).state
    )
    return describe(calls, name)


def together(query: str, epoch: int, committed: Sequence[Producer], aborted: Sequence[Producer] = ()) -> Any:
    """Build the request that commits producers together."""
    return pb.CommitTransactionsRequest(
        external_id=query,
        external_epoch=epoch,
        committed=[each.member for each in committed],
        aborted=[each.member for each in aborted],
    )
