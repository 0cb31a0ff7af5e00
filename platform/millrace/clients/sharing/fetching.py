"""Fetches of a share group's records from its coordinator, with acknowledgements.

Invariant: at most one fetch is in flight; another thread only stores its response.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import pyarrow as pa

from millrace.clients.connections import ms_until
from millrace.clients.consuming.connections import ConsumerConnections
from millrace.clients.membership.coordinator import Coordinator
from millrace.clients.metadata import MetadataCache
from millrace.clients.model import ConsumerRecord, TopicPartition
from millrace.clients.schema_cache import SchemaCache
from millrace.clients.sharing.acknowledgements import Run
from millrace.clients.signal import Signal
from millrace.clients.tables import batch_to_records
from millrace.clients.transport import PendingCall, unary
from millrace.config.client import ShareConsumerConfig
from millrace.errors import MillraceError, UnreadableValueError, WakeupError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import error_in
from millrace.records import DecodedBatch, decode_range

_SHARE_FETCH: Final = unary(lambda stub: stub.ShareFetch)

Said = Mapping[TopicPartition, list[Run]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Response for one partition.

    It has the records, the acquired runs, and the errors of the fetch and the acknowledgement.
    """

    partition: TopicPartition
    records: list[ConsumerRecord]
    acquired: list[range]
    error: MillraceError | None = None
    acknowledge_error: MillraceError | None = None


class ShareFetcher:
    """Sender of fetches with acknowledgements, which decodes their responses. It runs in the caller's thread."""

    def __init__(
        self,
        config: ShareConsumerConfig,
        connections: ConsumerConnections,
        coordinator: Coordinator,
        metadata: MetadataCache,
        signal: Signal,
    ) -> None:
        self._config = config
        self._connections = connections
        self._coordinator = coordinator
        self._metadata = metadata
        self._signal = signal
        self._schemas = SchemaCache(connections)
        self._under_way: PendingCall[pb.ShareFetchResponse] | None = None
        self._answer: tuple[list[TopicPartition], pb.ShareFetchResponse | None, MillraceError | None] | None = None

    def send(self, member_id: str, partitions: Iterable[TopicPartition], said: Said) -> set[TopicPartition]:
        """Fetch records of these partitions and send acknowledgements; returns the partitions of the request.

        Nothing is sent while a fetch is in flight. Raises the errors of the coordinator lookup.
        """
        asked = sorted({*partitions, *said})
        if self.is_busy or not asked:
            return set()
        request = pb.ShareFetchRequest(
            group_id=self._config.group_id,
            member_id=member_id,
            max_wait_ms=self._config.fetch_max_wait_ms,
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=self._config.fetch_max_bytes,
            max_records=self._config.max_poll_records,
        )
        for partition in asked:
            topic = _topic_of(request.topics, partition.topic)
            topic.partitions.add(partition=partition.partition, acknowledgements=_batches(said.get(partition, ())))
        self._under_way = self._connections.begin(
            _SHARE_FETCH,
            request,
            address=self._coordinator.address(),
            timeout_s=self._config.request_timeout_ms / 1000,
            on_done=partial(self._on_done, asked),
            cancellable=True,
        )
        return set(asked)

    def _on_done(
        self,
        asked: list[TopicPartition],
        response: pb.ShareFetchResponse | None,
        error: MillraceError | None,
    ) -> None:
        self._answer = asked, response, error
        self._signal.ring()

    def take_in(self) -> list[Given]:
        """Process and return the received response. After ``WakeupError`` the next call processes it again."""
        if self._answer is None:
            return []
        asked, response, error = self._answer
        if error is not None:
            self._coordinator.notice(error)
        if response is None:
            given = [Given(partition=each, records=[], acquired=[], error=error) for each in asked]
        else:
            given = [
                self._given(TopicPartition(topic.name, result.partition), result)
                for topic in response.topics
                for result in topic.partitions
            ]
        self._answer = self._under_way = None
        return given

    def _given(self, partition: TopicPartition, result: pb.ShareFetchResponse.PartitionRecords) -> Given:
        try:
            return self._decoded(partition, result)
        except WakeupError:
            raise
        except MillraceError as error:
            # The acquired records are redelivered after their lock expires.
            return Given(partition=partition, records=[], acquired=[], error=error)

    def _decoded(self, partition: TopicPartition, result: pb.ShareFetchResponse.PartitionRecords) -> Given:
        acquired = {
            offset: run.delivery_count
            for run in result.acquired
            for offset in range(run.first_offset, run.last_offset + 1)
        }
        records: list[ConsumerRecord] = []
        unreadable: list[UnreadableValueError] = []
        if acquired:
            key_columns = self._metadata.topic(partition.topic).key_columns
            batches = decode_range(
                pa.py_buffer(result.records),
                min(acquired),
                max(acquired) + 1,
                self._schemas.schema_of,
                verify=self._config.check_crcs,
            )
            for batch in batches:
                readable, failures = _readable(partition, batch, key_columns)
                unreadable += failures
                records += [
                    record._replace(delivery_count=acquired[record.offset])
                    for record in readable
                    if record.offset in acquired
                ]
        runs = [range(run.first_offset, run.last_offset + 1) for run in result.acquired]
        if unreadable:
            # They stay locked, and are delivered again until their limit.
            runs = [range(offset, offset + 1) for offset in acquired.keys() - {each.offset for each in unreadable}]
        return Given(
            partition=partition,
            records=records,
            acquired=runs,
            error=error_in(result.error) or next(iter(unreadable), None),
            acknowledge_error=error_in(result.acknowledge_error),
        )

    def acknowledge(
        self, member_id: str, said: Said, timeout_s: float | None = None
    ) -> dict[TopicPartition, MillraceError | None]:
        """Send acknowledgements, and wait for the response for ``timeout_s`` (``default.api.timeout.ms``).

        Raises ``WakeupError``.
        """
        limit_ms = self._config.default_api_timeout_ms if timeout_s is None else timeout_s * 1000
        deadline = time.monotonic() + limit_ms / 1000
        request = pb.ShareAcknowledgeRequest(group_id=self._config.group_id, member_id=member_id)
        for partition in sorted(said):
            topic = _topic_of(request.topics, partition.topic)
            topic.partitions.add(partition=partition.partition, acknowledgements=_batches(said[partition]))
        try:
            address = self._coordinator.address(ms_until(deadline))
            response = self._connections.call(
                lambda stub: stub.ShareAcknowledge, request, address=address, timeout_ms=ms_until(deadline)
            )
        except WakeupError:
            raise
        except MillraceError as error:
            self._coordinator.notice(error)
            return dict.fromkeys(said, error)
        return {
            TopicPartition(answer.name, each.partition): error_in(each.error)
            for answer in response.topics
            for each in answer.partitions
        }

    @property
    def is_busy(self) -> bool:
        """True if a fetch is in flight, or its response is not processed."""
        return self._under_way is not None

    def close(self) -> None:
        """Cancel the fetch in flight."""
        if self._under_way is not None:
            self._under_way.cancel()


def _readable(
    partition: TopicPartition, batch: DecodedBatch, key_columns: Sequence[str]
) -> tuple[list[ConsumerRecord], list[UnreadableValueError]]:
    """Convert the records of a batch; returns also the errors of those that Python has no values for."""
    records: list[ConsumerRecord] = []
    errors: list[UnreadableValueError] = []
    while True:
        try:
            return records + batch_to_records(partition, batch, key_columns), errors
        except UnreadableValueError as error:
            errors.append(error)
            records += batch_to_records(partition, batch.slice(0, error.offset), key_columns)
            batch = batch.slice(error.offset + 1, batch.header.next_offset)


def _topic_of(topics: Any, name: str) -> Any:
    """Return the entry of a topic in a request; partitions come sorted."""
    return topics[-1] if topics and topics[-1].name == name else topics.add(name=name)


def _batches(runs: Iterable[Run]) -> list[pb.AcknowledgementBatch]:
    return [
        pb.AcknowledgementBatch(
            first_offset=run.first, last_offset=run.last, type=cast("pb.AcknowledgeType.ValueType", int(run.type))
        )
        for run in runs
    ]
