"""Where a share group's records come from: a log of this broker, or the broker that leads the partition.

A group's coordinator gives out records of any partition, wherever that is led (KIP-932 asks each leader for its own
partitions instead). It reads them from its own disk where it leads the partition or is one of its replicas in sync,
and has the leader send them otherwise. Deliveries are the coordinator's alone either way.

Invariant: no source knows of records that are not on all replicas in sync: offsets end at a high watermark.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple, Protocol

from millrace.errors import (
    MillraceError,
    NotLeaderError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    error_of,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.fetch_response import read_fetch_response
from millrace_broker.log import PartitionLog
from millrace_broker.log.reads import LogReads
from millrace_broker.metadata import TopicCatalog, TopicInfo
from millrace_broker.network import Peers
from millrace_broker.network.peer_connection import Received
from millrace_broker.purgatory import Arrivals
from millrace_broker.replication.runtime import PartitionDirectory

_logger: Final = logging.getLogger(__name__)

_POLL_MS: Final = 5_000
_CALL_S: Final = 30.0
_NOT_ASKED_YET: Final = 2**63 - 1


class Source(Protocol):
    """The records of one partition. Offsets are those known now."""

    @property
    def start_offset(self) -> int:
        """Of the first record that is still there."""
        ...

    @property
    def high_watermark(self) -> int:
        """The offset after the last one that may be read; too large before a leader was ever asked."""
        ...

    async def bounds(self) -> tuple[int, int]:
        """Both, as they are for sure. Raises what a call to the leader does."""
        ...

    async def read(self, offset: int, bytes_max: int) -> bytes:
        """Whole batches from an offset on, at least one. Raises what reading the log or a call to the leader does."""
        ...

    def watch(self) -> None:
        """Have those who wait for the partition woken when there is more."""
        ...


class Sources:
    """The sources of all partitions that share groups read. For the event loop's thread."""

    def __init__(
        self,
        broker_id: int,
        *,
        catalog: TopicCatalog,
        partitions: PartitionDirectory,
        reads: LogReads,
        peers: Peers,
        arrivals: Arrivals,
    ) -> None:
        self._broker_id: Final = broker_id
        self._catalog: Final = catalog
        self._partitions: Final = partitions
        self._reads: Final = reads
        self._peers: Final = peers
        self._arrivals: Final = arrivals
        self._elsewhere: Final[dict[tuple[bytes, int], _LedElsewhere]] = {}

    def of(self, topic: TopicInfo, number: int) -> Source:
        """The records of a partition. Raises ``UnknownTopicOrPartitionError``, ``NotLeaderError``, ``StorageError``."""
        info = topic.partitions.get(number)
        key = (topic.topic_id.bytes, number)
        if info is not None and info.leader != self._broker_id:
            if self._broker_id in info.isr:
                try:
                    return _Here(self._reads, self._partitions.led(topic, number, may_follow=True).log)
                except NotLeaderError:
                    pass  # it is to follow, but does not yet
            source = self._elsewhere.get(key)
            if source is None:
                source = self._elsewhere[key] = _LedElsewhere(
                    topic, number, catalog=self._catalog, peers=self._peers, arrivals=self._arrivals
                )
            return source
        self._elsewhere.pop(key, None)
        return _Here(self._reads, self._partitions.led(topic, number).log)

    def partition_count(self, topic: str) -> int:
        """Count the partitions of a topic; 0 if there is none of that name."""
        info = self._catalog.topics.get(topic)
        return 0 if info is None else len(info.partitions)

    def forget(self, topic: TopicInfo) -> None:
        """A topic is gone."""
        for number in topic.partitions:
            self._elsewhere.pop((topic.topic_id.bytes, number), None)


class _Here:
    """A log of this broker."""

    def __init__(self, reads: LogReads, log: PartitionLog) -> None:
        self._reads: Final = reads
        self._log: Final = log

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    async def bounds(self) -> tuple[int, int]:
        return self.start_offset, self.high_watermark

    async def read(self, offset: int, bytes_max: int) -> bytes:
        return await self._reads.run_read(self._log, offset, self._log.read, offset, bytes_max, min_one_batch=True)

    def watch(self) -> None:
        pass  # whoever appends tells


class _Answer(NamedTuple):
    error: MillraceError | None
    records: bytes
    start_offset: int
    high_watermark: int


class _LedElsewhere:
    """A partition of which nothing is here. What the leader said last is known of it."""

    def __init__(
        self, topic: TopicInfo, number: int, *, catalog: TopicCatalog, peers: Peers, arrivals: Arrivals
    ) -> None:
        self._catalog: Final = catalog
        self._peers: Final = peers
        self._arrivals: Final = arrivals
        self._topic: Final = topic
        self._number: Final = number
        self._start_offset = 0
        self._high_watermark = _NOT_ASKED_YET
        self._watching: asyncio.Task[None] | None = None

    @property
    def start_offset(self) -> int:
        return self._start_offset

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    async def bounds(self) -> tuple[int, int]:
        await self._ask(_NOT_ASKED_YET, bytes_max=0, wait_ms=0)  # nothing can be there
        return self._start_offset, self._high_watermark

    async def read(self, offset: int, bytes_max: int) -> bytes:
        return await self._ask(offset, bytes_max=bytes_max, wait_ms=0)

    def watch(self) -> None:
        if self._watching is None:
            self._watching = asyncio.create_task(
                self._watch(), name=f"millrace-watch-{self._topic.name}-{self._number}"
            )

    async def _watch(self) -> None:
        """Wait for one answer of the leader that there is more, or for a while; then those who wait look again."""
        try:
            await self._ask(self._high_watermark, bytes_max=1, wait_ms=_POLL_MS)
        except MillraceError as error:
            _logger.debug("%s-%d: %s", self._topic.name, self._number, error.message)
            self._high_watermark = _NOT_ASKED_YET  # who looks again asks, and is told why not
        finally:
            self._watching = None
            self._arrivals.wake((self._topic.name, self._number))

    async def _ask(self, offset: int, *, bytes_max: int, wait_ms: int) -> bytes:
        present = self._catalog.topic(self._topic.name).partitions.get(self._number)
        if present is None or present.leader < 0:
            raise NotLeaderError(f"{self._topic.name}-{self._number} has no leader now: try again")
        request = pb.FetchRequest(replica_id=-1, max_wait_ms=wait_ms, min_bytes=1, max_bytes=bytes_max)
        wanted = request.topics.add(name=self._topic.name, topic_id=self._topic.topic_id.bytes)
        wanted.partitions.add(
            partition=self._number, fetch_offset=offset, partition_max_bytes=bytes_max, current_leader_epoch=-1
        )
        timeout_s = _CALL_S + wait_ms / 1000
        answer = await self._peers.call(present.leader, "Fetch", request, timeout_s=timeout_s, decode=_read)
        if answer.error is not None and not isinstance(answer.error, OffsetOutOfRangeError):
            raise answer.error
        self._start_offset, self._high_watermark = answer.start_offset, answer.high_watermark
        return answer.records


def _read(data: Received) -> _Answer:
    for _, result, records in read_fetch_response(data):
        error = error_of(result.error.code, result.error.message) if result.HasField("error") else None
        return _Answer(error, records.to_pybytes(), result.log_start_offset, result.high_watermark)
    raise UnknownTopicOrPartitionError("the leader's answer names no partition")
