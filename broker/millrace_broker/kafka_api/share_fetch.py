"""Kafka's ShareFetch call (KIP-932).

The call acquires records for a member of a share group, and returns them as rows. The request's acknowledgements are
processed first. A request that renews locks fetches nothing (KIP-1222), so that its answer is not late.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from millrace.config.topic import KafkaValueFormat
from millrace.errors import (
    InvalidRequestError,
    MillraceError,
    NotLeaderError,
    ShareSessionLimitReachedError,
    StorageError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnsupportedForFormatError,
)
from millrace.kafka_protocol.calls.share_fetch import (
    AcquiredRecords,
    LeaderIdAndEpoch,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import error_in
from millrace.records import end_of_batches, scan_headers
from millrace_broker.api import known_error
from millrace_broker.api.fetch import response_bytes_max
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import NONE, code_of
from millrace_broker.kafka_api.fetched_rows import ResponseRows
from millrace_broker.kafka_api.row_batches import WantedOffsets
from millrace_broker.kafka_api.share_acknowledgements import (
    Outcome,
    acknowledge,
    check_may_read,
    key_of,
    return_unsent,
)
from millrace_broker.kafka_api.share_coordinators import ask
from millrace_broker.kafka_api.share_sessions import (
    FINAL_EPOCH,
    ConnectionKey,
    SessionKey,
    SharedPartition,
    ShareSession,
)
from millrace_broker.kafka_api.topics import name_of
from millrace_broker.metadata import TopicInfo
from millrace_broker.quotas import pause
from millrace_broker.replication.core.fetch_session import FIRST_EPOCH

_BATCH_OPTIMIZED, _RECORD_LIMIT = 0, 1
_PAUSE_MS_MAX: Final = 500
"""Longest wait before an error of the coordinator is answered, because clients fetch again at once."""
_KNOWN_TO_CLIENTS: Final = frozenset(
    error.code for error in (NotLeaderError, UnknownTopicOrPartitionError, UnknownTopicIdError, StorageError)
)
"""Errors of a partition after which all clients fetch again."""
_NOT_ACKNOWLEDGED: Final = Outcome(NONE, None)


class _Fetched(NamedTuple):
    """Records of a partition for the member, or its error."""

    records: bytes | memoryview = b""
    acquired: tuple[AcquiredRecords, ...] = ()
    error_code: int = NONE
    error_message: str | None = None


async def handle(message: ShareFetchRequest, request: KafkaRequest) -> ShareFetchResponse:
    """Acknowledge, then acquire records of the session's partitions.

    Raises ``InvalidRequestError``, ``ShareSessionNotFoundError``, ``InvalidShareSessionEpochError``,
    ``ShareSessionLimitReachedError``, and the errors of the group's coordinator.
    """
    key = key_of(message.group_id, message.member_id)
    check_may_read(request, key.group_id)
    _check(message)
    acknowledged = {
        SharedPartition(topic.topic_id, each.partition_index): each.acknowledgement_batches
        for topic in message.topics
        for each in topic.partitions
        if each.acknowledgement_batches
    }
    session = await _session(message, request, key, has_acknowledgements=bool(acknowledged))
    is_last = message.share_session_epoch == FINAL_EPOCH
    outcomes = await acknowledge(
        request,
        key,
        acknowledged,
        is_renewal=message.is_renew_ack,
        released=session.partitions if is_last else (),
    )
    if is_last:
        request.state.share_sessions.end(session)
    lock_ms = max((each.lock_ms for each in outcomes.values()), default=0)
    fetched: dict[SharedPartition, _Fetched] = {}
    if not is_last and not message.is_renew_ack:
        wait_ms = 0 if any(each.error_code for each in outcomes.values()) else message.max_wait_ms
        try:
            fetched, lock_ms = await _fetched(message, request, key, session.partitions, wait_ms)
        except MillraceError:
            await pause(min(wait_ms, _PAUSE_MS_MAX) / 1000)
            if not outcomes:
                raise
    news = [
        partition
        for partition, each in fetched.items()
        if session.has_news(partition, has_records=bool(each.acquired), error_code=each.error_code)
    ]
    topics: dict[UUID, list[PartitionData]] = {}
    for partition in dict.fromkeys([*news, *outcomes]):
        data = _data(partition.number, fetched.get(partition, _Fetched()), outcomes.get(partition, _NOT_ACKNOWLEDGED))
        topics.setdefault(partition.topic_id, []).append(data)
    return ShareFetchResponse(
        throttle_time_ms=0,
        error_code=NONE,
        acquisition_lock_timeout_ms=lock_ms,
        responses=tuple(
            ShareFetchableTopicResponse(topic_id=topic_id, partitions=tuple(partitions))
            for topic_id, partitions in topics.items()
        ),
        node_endpoints=(),
    )


def _check(message: ShareFetchRequest) -> None:
    """Raise ``InvalidRequestError`` for a request that Kafka refuses."""
    if message.share_acquire_mode not in (_BATCH_OPTIMIZED, _RECORD_LIMIT):
        raise InvalidRequestError(f"acquire mode {message.share_acquire_mode}: 0 is batch_optimized, 1 record_limit")
    limits = (message.max_bytes, message.min_bytes, message.max_records, message.max_wait_ms)
    if message.is_renew_ack and any(limits):
        raise InvalidRequestError(
            "the request renews locks, so it fetches nothing: set MaxBytes, MinBytes, MaxRecords and MaxWaitMs to 0"
        )


async def _session(
    message: ShareFetchRequest, request: KafkaRequest, key: SessionKey, *, has_acknowledgements: bool
) -> ShareSession:
    """Find or begin the session of a request. Raises the errors of ``ShareSessions``, ``InvalidRequestError``."""
    sessions, epoch = request.state.share_sessions, message.share_session_epoch
    if epoch == FINAL_EPOCH:
        return sessions.find(key)
    named = [
        SharedPartition(topic.topic_id, each.partition_index) for topic in message.topics for each in topic.partitions
    ]
    if epoch == FIRST_EPOCH and has_acknowledgements:
        raise InvalidRequestError("the first request of a share session has acknowledgements: send them later")
    forgotten = [
        SharedPartition(topic.topic_id, each) for topic in message.forgotten_topics_data for each in topic.partitions
    ]
    try:
        if epoch == FIRST_EPOCH:
            connection = ConnectionKey(request.context.listener_name, request.context.client_address)
            return sessions.begin(key, connection, named, partial(_release, request, key))
        session = sessions.proceed(key, epoch)
        sessions.update(session, named, forgotten)
    except ShareSessionLimitReachedError:
        await pause(message.max_wait_ms / 1000)
        raise
    return session


def _release(request: KafkaRequest, key: SessionKey, partitions: Sequence[SharedPartition]) -> None:
    """Release the records of a member whose connection was lost, in the background."""
    releasing = acknowledge(request, key, {}, is_renewal=False, released=partitions)
    request.state.background.start(releasing, name=f"millrace-release-{key.group_id}-{key.member_id}")


async def _fetched(
    message: ShareFetchRequest,
    request: KafkaRequest,
    key: SessionKey,
    partitions: Sequence[SharedPartition],
    wait_ms: int,
) -> tuple[dict[SharedPartition, _Fetched], int]:
    """Acquire records of the partitions. Return them with the duration of their locks.

    Raises the errors of the group's coordinator.
    """
    found: dict[SharedPartition, _Fetched] = {}
    call = pb.ShareFetchRequest(
        group_id=key.group_id,
        member_id=key.member_id,
        max_wait_ms=wait_ms,
        max_bytes=message.max_bytes,
        max_records=message.max_records,
        whole_batches=message.share_acquire_mode == _BATCH_OPTIMIZED,
    )
    asked: list[tuple[SharedPartition, TopicInfo]] = []
    for partition in partitions:
        try:
            topic = _topic(request, partition)
        except MillraceError as error:
            found[partition] = _refused(error)
            continue
        call.topics.add(
            name=topic.name,
            topic_id=topic.topic_id.bytes,
            partitions=[pb.ShareFetchRequest.PartitionFetch(partition=partition.number)],
        )
        asked.append((partition, topic))
    if not asked:
        if not found:
            await pause(min(wait_ms, _PAUSE_MS_MAX) / 1000)
        return found, 0
    answer: pb.ShareFetchResponse = await ask(request, key.group_id, "ShareFetch", call, wait_ms=wait_ms)
    rows = ResponseRows(request, response_bytes_max(request.broker, message.max_bytes, request.context))
    unsent: dict[SharedPartition, Sequence[AcquiredRecords]] = {}
    for (partition, topic), answered in zip(asked, answer.topics, strict=True):
        found[partition], unsent[partition] = await _filled(rows, topic, answered.partitions[0])
    await return_unsent(request, key, {partition: runs for partition, runs in unsent.items() if runs})
    request.context.response_lease.settle(sum(len(each.records) for each in found.values()))
    return found, answer.acquisition_lock_timeout_ms


def _topic(request: KafkaRequest, partition: SharedPartition) -> TopicInfo:
    """Return the topic of a partition. Raises ``UnknownTopicIdError``, ``UnsupportedForFormatError``."""
    topic = request.broker.partitions.topic(name_of(request.broker.catalog, None, partition.topic_id, has_id=True))
    if topic.is_typed and topic.config.kafka_value_format is KafkaValueFormat.NONE:
        raise UnsupportedForFormatError(
            f"topic {topic.name} is typed and has no kafka.value.format: set it, or read it with a client of millrace"
        )
    return topic


async def _filled(
    rows: ResponseRows, topic: TopicInfo, answered: pb.ShareFetchResponse.PartitionRecords
) -> tuple[_Fetched, Sequence[AcquiredRecords]]:
    """Return the records that have room in the response, and the acquired ones that have none."""
    refusal = error_in(answered.error)
    if refusal is not None:
        return _refused(refusal), ()
    if not answered.acquired:
        return _Fetched(), ()
    wanted = WantedOffsets(answered.acquired[0].first_offset, answered.acquired[-1].last_offset)
    try:
        records = await rows.of(topic, answered.partition, answered.records, wanted=wanted)
    except Exception as error:  # noqa: BLE001 - the partition's error; unexpected errors are logged
        # The first batch is faulty. Its records stay locked, so that their delivery limit ends their deliveries.
        headers = (header for _, header in scan_headers(answered.records))
        after = next((each.next_offset for each in headers if each.last_offset >= wanted.first), wanted.first)
        return _refused(known_error(error)), _acquired_from(answered, after)
    end = end_of_batches(records, wanted.first)
    runs = [(each.first_offset, each.last_offset, each.delivery_count) for each in answered.acquired]
    sent = tuple(
        AcquiredRecords(first_offset=first, last_offset=min(last, end - 1), delivery_count=count)
        for first, last, count in runs
        if first < end
    )
    return _Fetched(records if sent else b"", sent), _acquired_from(answered, end)


def _acquired_from(answered: pb.ShareFetchResponse.PartitionRecords, offset: int) -> tuple[AcquiredRecords, ...]:
    return tuple(
        AcquiredRecords(
            first_offset=max(each.first_offset, offset),
            last_offset=each.last_offset,
            delivery_count=each.delivery_count,
        )
        for each in answered.acquired
        if each.last_offset >= offset
    )


def _refused(error: MillraceError) -> _Fetched:
    """Return the error of a partition. A retriable one becomes one after which all clients fetch again."""
    is_unknown = error.retriable and error.code not in _KNOWN_TO_CLIENTS
    return _Fetched(error_code=NotLeaderError.code if is_unknown else code_of(error), error_message=error.message)


def _data(number: int, fetched: _Fetched, acknowledged: Outcome) -> PartitionData:
    return PartitionData(
        partition_index=number,
        error_code=fetched.error_code,
        error_message=fetched.error_message,
        acknowledge_error_code=acknowledged.error_code,
        acknowledge_error_message=acknowledged.error_message,
        current_leader=LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1),
        records=fetched.records,
        acquired_records=fetched.acquired,
    )


def refuse(message: ShareFetchRequest, version: int, error_code: int) -> ShareFetchResponse:
    """Answer with the error."""
    return ShareFetchResponse(
        throttle_time_ms=0, error_code=error_code, acquisition_lock_timeout_ms=0, responses=(), node_endpoints=()
    )
