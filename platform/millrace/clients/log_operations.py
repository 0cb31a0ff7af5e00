"""Log operations of ``Admin``: offsets, deletion of records, and ranges of records."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime

from millrace.clients.backoff import backoff_s
from millrace.clients.connections import Connections
from millrace.clients.epoch_ends import epoch_ends
from millrace.clients.leaders import MOVED, LeaderCall, ask_leaders, await_leader_epochs
from millrace.clients.metadata import MetadataCache
from millrace.clients.model import LocatedRange, OffsetAndTimestamp, TopicPartition
from millrace.clients.offsets import isolation_number, list_offsets
from millrace.clients.ranges import located_range
from millrace.clients.record_deletion import delete_records
from millrace.clients.request_numbers import numbers_checked
from millrace.clients.transport import PendingCall, unary
from millrace.config.client import ClientConfig, Isolation
from millrace.errors import MillraceError
from millrace.protocol import millrace_pb2 as pb
from millrace.records import end_of_batches

_READ_CHUNK = unary(lambda stub: stub.ReadRangeChunk)


class LogOperations:
    """Operations of ``Admin`` for the logs of partitions."""

    _config: ClientConfig
    _connections: Connections
    _metadata: MetadataCache

    @numbers_checked()
    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, str | int | datetime],
        *,
        isolation_level: str = Isolation.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Look up offsets: ``"earliest"``, ``"latest"``, ``"max-timestamp"``, or the first at or after a time.

        A time is in ms or a ``datetime`` with zone. The offset is -1 if no record is that new. Tiered topics also have
        ``"earliest-local"``, ``"latest-tiered"`` and ``"earliest-pending-upload"``. The numbers of ListOffsets, -1 to
        -6, stand for these words.
        """
        return list_offsets(self._connections, self._metadata, wanted, isolation_level=isolation_level)

    @numbers_checked()
    def epoch_ends(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Look up the offset (exclusive) at which a leader epoch ends in each partition's log (KIP-320).

        An epoch without records ends at the end of the previous one, and the last epoch ends at the end of the log.
        None means that the log does not know the epoch. A reader beyond the returned offset has read records that the
        log lost.
        """
        return epoch_ends(self._connections, self._metadata, wanted)

    def await_leader_epochs(self, epochs: Mapping[TopicPartition, int]) -> None:
        """Fetch metadata until the leader epoch of each partition is at least the given one (KIP-320).

        A reader that stored leader epochs calls this method when a leader answers with an older epoch. The method
        returns after ``default.api.timeout.ms`` in any case.
        """
        await_leader_epochs(self._connections, self._metadata, epochs)

    @numbers_checked()
    def delete_records(self, before: Mapping[TopicPartition, int | str]) -> dict[TopicPartition, int]:
        """Delete the records of partitions before an offset; ``"latest"`` (or -1) deletes all of them.

        Returns the new log start offsets; an offset before the log start changes nothing. Raises the first error
        after all partitions were tried: ``OffsetOutOfRangeError`` for an offset above the high watermark,
        ``PolicyViolationError`` for a topic that is only compacted.
        """
        starts, failed = delete_records(
            self._connections, self._metadata, before, timeout_ms=self._config.request_timeout_ms
        )
        for error in failed.values():
            raise error
        return starts

    @numbers_checked()
    def locate_range(
        self,
        topic: str,
        partition: int,
        start_offset: int,
        end_offset: int = -1,
        *,
        split_bytes: int = 0,
        topic_id: uuid.UUID | None = None,
        isolation_level: str = Isolation.READ_UNCOMMITTED,
    ) -> LocatedRange:
        """Find the extents of segment files that hold a range of offsets, split to about ``split_bytes`` (0: no
        split).

        ``end_offset`` is exclusive; -1 means the high watermark (or last stable offset). With ``topic_id``, a topic
        that was created again raises ``InconsistentTopicIdError``. With read_committed the result includes the
        aborted transactions that overlap the range. Raises ``OffsetOutOfRangeError``.
        """
        request = pb.LocateRangeRequest(
            topic=topic,
            topic_id=topic_id.bytes if topic_id else b"",
            partition=partition,
            start_offset=start_offset,
            end_offset=end_offset,
            split_bytes=split_bytes,
            isolation_level=isolation_number(isolation_level),
        )
        wanted = TopicPartition(topic, partition)
        call = LeaderCall(
            lambda stub: stub.LocateRange,
            lambda partitions: request,
            lambda response, partitions: {wanted: located_range(response)},
        )
        located = ask_leaders(self._connections, self._metadata, [wanted], call)[wanted]
        if isinstance(located, MillraceError):
            raise located
        return located

    def read_range(
        self,
        topic: str,
        partition: int,
        start_offset: int,
        end_offset: int,
        *,
        topic_id: uuid.UUID | None = None,
        isolation_level: str = Isolation.READ_UNCOMMITTED,
    ) -> Iterator[bytes]:
        """Stream the batches of a range as chunks of whole batches; the first and last batch may exceed the range.

        With read_committed the range must end before the last stable offset. The stream still contains the records of
        aborted transactions; ``locate_range`` lists those transactions.

        If the connection breaks, the stream continues after the last received batch. Without progress for
        ``socket.connection.setup.timeout.ms`` it raises ``BrokerUnavailableError``.
        """
        attempt, waited_s = 0, 0.0
        position = start_offset
        while position < end_offset:
            request = pb.ReadRangeRequest(
                topic=topic,
                topic_id=topic_id.bytes if topic_id else b"",
                partition=partition,
                start_offset=position,
                end_offset=end_offset,
                isolation_level=isolation_number(isolation_level),
            )
            try:
                for records in self._read_at_leader(request):
                    attempt, waited_s = 0, 0.0
                    yield records
                    position = max(position, end_of_batches(records, 0))
                return
            except MOVED:
                if waited_s >= self._config.socket_connection_setup_timeout_ms / 1000:
                    raise
                self._metadata.forget(topic)
                wait_s = backoff_s(self._config, attempt)
                self._connections.wait(wait_s)
                attempt, waited_s = attempt + 1, waited_s + wait_s

    def _read_at_leader(self, request: pb.ReadRangeRequest) -> Iterator[bytes]:
        address = self._metadata.leader_address(TopicPartition(request.topic, request.partition))
        pending: PendingCall[pb.ReadRangeResponse] | None = self._begin_chunk(request, address)
        try:
            while pending is not None:
                records = pending.result().records
                position = end_of_batches(records, 0)
                pending = None
                if request.start_offset < position < request.end_offset:
                    following = pb.ReadRangeRequest()
                    following.CopyFrom(request)
                    following.start_offset = position
                    request, pending = following, self._begin_chunk(following, address)
                yield records  # while the broker reads the next chunk
        finally:
            if pending is not None:
                pending.cancel()

    def _begin_chunk(self, request: pb.ReadRangeRequest, address: str) -> PendingCall[pb.ReadRangeResponse]:
        timeout_s = self._config.request_timeout_ms / 1000
        return self._connections.begin(_READ_CHUNK, request, address=address, timeout_s=timeout_s, cancellable=True)
