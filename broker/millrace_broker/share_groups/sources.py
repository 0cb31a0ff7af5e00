"""Sources of records for share groups.

A source is a log of this broker, or the leader on another broker. A group's coordinator delivers records of all
partitions, whichever broker leads them. KIP-932 lets the leader of each partition deliver instead. The coordinator
reads its own disk if it is the leader or an in-sync replica, and otherwise fetches from the leader. The coordinator
alone has the delivery states.

Invariant: offsets of a source end at a high watermark, so that all in-sync replicas have its records. If the group
reads committed records only, they end at a last stable offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from millrace.errors import (
    MillraceError,
    NotLeaderError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.fetch_response import read_fetch_response
from millrace.protocol.item_errors import check_item, error_in
from millrace.records import AbortedTransaction, CommittedFilter
from millrace.segments import transaction_index
from millrace_broker.log import PartitionLog
from millrace_broker.log.read_threads import LogReads
from millrace_broker.metadata import TopicCatalog, TopicInfo
from millrace_broker.network import Peers
from millrace_broker.network.peer_connection import Received
from millrace_broker.purgatory import Arrivals
from millrace_broker.replication.runtime import PartitionDirectory
from millrace_broker.share_groups.members import SubscribedTopic

_logger: Final = logging.getLogger(__name__)

_POLL_MS: Final = 5_000
_CALL_S: Final = 30.0
_NOT_ASKED_YET: Final = 2**63 - 1
_NOTHING_ABORTED: Final = CommittedFilter(())

_SourceKey = tuple[bytes, int, bool]
"""Topic id, partition, and whether only committed records are read."""


class Read(NamedTuple):
    """Record batches that were read, with a filter.

    The filter selects the batches that members may get.
    """

    records: bytes
    filter: CommittedFilter


class Source(Protocol):
    """Records of one partition, with the offsets that are known now."""

    @property
    def start_offset(self) -> int:
        """The log start offset."""
        ...

    @property
    def end_offset(self) -> int:
        """The offset after the last record that may be read; too large before the first answer of a leader."""
        ...

    async def bounds(self) -> tuple[int, int]:
        """Return the present start offset and high watermark. Raises the errors of a call to the leader."""
        ...

    async def offset_for_time(self, timestamp_ms: int) -> int:
        """Return the offset of the first record of that time or later, or else the high watermark.

        Raises the errors of a search or of a call to the leader.
        """
        ...

    async def read(self, offset: int, bytes_max: int) -> Read:
        """Return whole record batches from an offset on, at least one.

        Raises the errors of a read or of a call to the leader.
        """
        ...

    def watch(self) -> None:
        """Wake the waiting fetches of this partition when it has more records."""
        ...


class Sources:
    """Sources of all partitions that share groups read.

    The class is for the event loop's thread.
    """

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
        self._remote: Final[dict[_SourceKey, _RemoteSource]] = {}

    def of(self, topic: TopicInfo, number: int, *, is_committed: bool = False) -> Source:
        """Return the source of a partition, with committed records only if ``is_committed``.

        Raises ``UnknownTopicOrPartitionError``, ``NotLeaderError``, ``StorageError``.
        """
        info = topic.partitions.get(number)
        if info is not None and info.leader != self._broker_id:
            if self._broker_id in info.isr:
                try:
                    log = self._partitions.led(topic, number, may_follow=True).log
                    return _LocalSource(self._reads, log, is_committed=is_committed)
                except NotLeaderError:
                    pass  # this broker does not follow the leader yet
            key = (topic.topic_id.bytes, number, is_committed)
            source = self._remote.get(key)
            if source is None:
                source = self._remote[key] = _RemoteSource(
                    topic,
                    number,
                    broker_id=self._broker_id,
                    catalog=self._catalog,
                    peers=self._peers,
                    arrivals=self._arrivals,
                    is_committed=is_committed,
                )
            return source
        self._forget(topic, number)
        return _LocalSource(self._reads, self._partitions.led(topic, number).log, is_committed=is_committed)

    def find_topic(self, name: str) -> SubscribedTopic | None:
        """Return the topic of a name; None if there is none."""
        info = self._catalog.topics.get(name)
        return None if info is None else SubscribedTopic(info.topic_id, len(info.partitions))

    def forget(self, topic: TopicInfo) -> None:
        """Forget the sources of a deleted topic."""
        for number in topic.partitions:
            self._forget(topic, number)

    def _forget(self, topic: TopicInfo, number: int) -> None:
        for is_committed in (False, True):
            self._remote.pop((topic.topic_id.bytes, number, is_committed), None)


class _LocalSource:
    """Log of this broker."""

    def __init__(self, reads: LogReads, log: PartitionLog, *, is_committed: bool) -> None:
        self._reads: Final = reads
        self._log: Final = log
        self._is_committed: Final = is_committed

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self._log.last_stable_offset if self._is_committed else self._log.high_watermark

    async def bounds(self) -> tuple[int, int]:
        return self.start_offset, self._log.high_watermark

    async def offset_for_time(self, timestamp_ms: int) -> int:
        log = self._log
        found = await self._reads.run_search(log, log.log_start_offset, log.offset_for_time, timestamp_ms)
        high_watermark = log.high_watermark
        return high_watermark if found is None else min(found[0], high_watermark)

    async def read(self, offset: int, bytes_max: int) -> Read:
        if self._is_committed:
            return await self._reads.run_search(self._log, offset, self._read_committed, offset, bytes_max)
        records = await self._reads.run_read(self._log, offset, self._log.read, offset, bytes_max)
        return Read(records, _NOTHING_ABORTED)

    def _read_committed(self, offset: int, bytes_max: int) -> Read:
        records = self._log.read(offset, bytes_max, end_offset=self.end_offset)
        return Read(records, _filter_of(self._log.aborted_within(offset, records)))

    def watch(self) -> None:
        pass  # an append wakes the fetches


class _Answer(NamedTuple):
    error: MillraceError | None
    read: Read
    start_offset: int
    high_watermark: int
    last_stable_offset: int


class _RemoteSource:
    """Partition of another broker, with the offsets of the leader's last answer."""

    def __init__(
        self,
        topic: TopicInfo,
        number: int,
        *,
        broker_id: int,
        catalog: TopicCatalog,
        peers: Peers,
        arrivals: Arrivals,
        is_committed: bool,
    ) -> None:
        self._catalog: Final = catalog
        self._peers: Final = peers
        self._arrivals: Final = arrivals
        self._topic: Final = topic
        self._number: Final = number
        self._broker_id: Final = broker_id
        self._is_committed: Final = is_committed
        self._start_offset = 0
        self._high_watermark = 0
        self._end_offset = _NOT_ASKED_YET
        self._watching: asyncio.Task[None] | None = None

    @property
    def start_offset(self) -> int:
        return self._start_offset

    @property
    def end_offset(self) -> int:
        return self._end_offset

    async def bounds(self) -> tuple[int, int]:
        await self._ask(_NOT_ASKED_YET, bytes_max=0, wait_ms=0)  # no log is so long, so the answer has no records
        return self._start_offset, self._high_watermark

    async def offset_for_time(self, timestamp_ms: int) -> int:
        request = pb.ListOffsetsRequest(replica_id=self._broker_id)
        wanted = request.topics.add(name=self._topic.name).partitions.add(partition=self._number)
        wanted.timestamp = timestamp_ms
        answer: pb.ListOffsetsResponse = await self._peers.call(
            self._leader(), "ListOffsets", request, timeout_s=_CALL_S
        )
        (result,) = answer.topics[0].partitions
        check_item(result.error)
        return result.offset if result.offset >= 0 else (await self.bounds())[1]

    async def read(self, offset: int, bytes_max: int) -> Read:
        return await self._ask(offset, bytes_max=bytes_max, wait_ms=0)

    def watch(self) -> None:
        if self._watching is None:
            self._watching = asyncio.create_task(
                self._watch(), name=f"millrace-watch-{self._topic.name}-{self._number}"
            )

    async def _watch(self) -> None:
        """Wait until the leader answers that it has more records, or for a few seconds, and wake the waiting
        fetches.
        """
        try:
            await self._ask(self._end_offset, bytes_max=1, wait_ms=_POLL_MS)
        except MillraceError as error:
            _logger.debug("%s-%d: %s", self._topic.name, self._number, error.message)
            self._end_offset = _NOT_ASKED_YET  # the next fetch calls the leader, and gets its error
        finally:
            self._watching = None
            self._arrivals.wake((self._topic.name, self._number))

    def _leader(self) -> int:
        present = self._catalog.topic(self._topic.name).partitions.get(self._number)
        if present is None or present.leader < 0:
            raise NotLeaderError(f"{self._topic.name}-{self._number} has no leader at present: retry")
        return present.leader

    async def _ask(self, offset: int, *, bytes_max: int, wait_ms: int) -> Read:
        request = pb.FetchRequest(replica_id=-1, max_wait_ms=wait_ms, min_bytes=1, max_bytes=bytes_max, by_broker=True)
        wanted = request.topics.add(name=self._topic.name, topic_id=self._topic.topic_id.bytes)
        wanted.partitions.add(
            partition=self._number, fetch_offset=offset, partition_max_bytes=bytes_max, current_leader_epoch=-1
        )
        if self._is_committed:
            request.isolation_level = pb.READ_COMMITTED
        timeout_s = _CALL_S + wait_ms / 1000
        answer = await self._peers.call(self._leader(), "Fetch", request, timeout_s=timeout_s, decode=_read)
        if answer.error is not None and not isinstance(answer.error, OffsetOutOfRangeError):
            raise answer.error
        self._start_offset, self._high_watermark = answer.start_offset, answer.high_watermark
        self._end_offset = answer.last_stable_offset if self._is_committed else answer.high_watermark
        return answer.read


def _read(data: Received) -> _Answer:
    for _, result, records in read_fetch_response(data):
        read = Read(records.to_pybytes(), _filter_of(result.aborted_transactions))
        return _Answer(
            error_in(result.error), read, result.log_start_offset, result.high_watermark, result.last_stable_offset
        )
    raise UnknownTopicOrPartitionError("the leader's answer names no partition")


def _filter_of(aborted: Iterable[pb.AbortedTransaction | transaction_index.AbortedTransaction]) -> CommittedFilter:
    """Return the filter that leaves out the transactions of an answer or of an index."""
    return CommittedFilter(
        AbortedTransaction(each.producer_id, each.first_offset, each.last_offset) for each in aborted
    )
