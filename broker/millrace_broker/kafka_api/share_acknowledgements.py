"""Acknowledgements of records, as ShareFetch and ShareAcknowledge have them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple, Protocol

from millrace.acls import AclOperation, ResourceType
from millrace.errors import InvalidRequestError, MillraceError
from millrace.kafka_protocol.calls.share_fetch import AcquiredRecords
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api import known_error
from millrace_broker.api.common.access import Need, access_for
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of, text_of
from millrace_broker.kafka_api.share_coordinators import ask
from millrace_broker.kafka_api.share_sessions import SessionKey, SharedPartition
from millrace_broker.kafka_api.topics import name_of

_logger = logging.getLogger(__name__)

_MEMBER_ID_LENGTH_MAX: Final = 36
_WITH_RENEWAL: Final = 2
"""First version of both calls in which locks can be renewed (KIP-1222)."""


class AcknowledgementBatch(Protocol):
    """Offsets with one type for all, or with a type for each. Both calls have such a structure."""

    @property
    def first_offset(self) -> int:
        """The first offset."""
        ...

    @property
    def last_offset(self) -> int:
        """The last offset, inclusive."""
        ...

    @property
    def acknowledge_types(self) -> tuple[int, ...]:
        """Kafka's numbers of the types."""
        ...


class Outcome(NamedTuple):
    """Outcome of the acknowledgements of one partition.

    ``lock_ms`` is the present duration of acquisition locks, 0 if the coordinator has not answered.
    """

    error_code: int
    error_message: str | None
    lock_ms: int = 0


Acknowledgements = Mapping[SharedPartition, Sequence[AcknowledgementBatch]]


def key_of(group_id: str | None, member_id: str | None) -> SessionKey:
    """Return the member of a request. Raises ``InvalidRequestError`` for ids that Kafka refuses."""
    if group_id is None:
        raise InvalidRequestError("the request has no group id: set group.id")
    check_member_id(member_id)
    return SessionKey(group_id, member_id or "")


def check_may_read(request: KafkaRequest, group_id: str) -> None:
    """Raise ``GroupAuthorizationError`` if the client may not read for the group."""
    access = access_for(request.broker, request.context)
    if access is not None:
        access.check(Need(AclOperation.READ, ResourceType.GROUP, group_id))


def check_member_id(member_id: str | None) -> None:
    """Raise ``InvalidRequestError`` for a member id that Kafka refuses."""
    if not member_id or len(member_id) > _MEMBER_ID_LENGTH_MAX:
        raise InvalidRequestError(
            f"member id {member_id!r} is invalid: choose one of 1 to {_MEMBER_ID_LENGTH_MAX} characters, such as a UUID"
        )


async def acknowledge(
    request: KafkaRequest,
    key: SessionKey,
    wanted: Acknowledgements,
    *,
    is_renewal: bool,
    released: Iterable[SharedPartition] = (),
) -> dict[SharedPartition, Outcome]:
    """Acknowledge records, and then release the member's other records of ``released``.

    Return the outcome for each partition with acknowledgements.
    """
    outcomes: dict[SharedPartition, Outcome] = {}
    call = pb.ShareAcknowledgeRequest(group_id=key.group_id, member_id=key.member_id)
    asked = []
    for partition, batches in wanted.items():
        try:
            _check(batches, is_renewal=is_renewal, version=request.version)
            topic = call.topics.add(name=name_of(request.broker.catalog, None, partition.topic_id, has_id=True))
        except MillraceError as error:
            outcomes[partition] = Outcome(code_of(error), error.message)
            continue
        runs = [run for batch in batches for run in _runs(batch)]
        topic.partitions.add(partition=partition.number, acknowledgements=runs)
        asked.append(partition)
    for partition in released:
        known_topic = request.broker.catalog.topic_of_id(partition.topic_id)
        if known_topic is not None:  # the records of a deleted topic are gone
            call.released.add(name=known_topic.name, partitions=[partition.number])
    if not asked and not call.released:
        return outcomes
    try:
        answer: pb.ShareAcknowledgeResponse = await ask(request, key.group_id, "ShareAcknowledge", call)
    except Exception as error:  # noqa: BLE001 - the error of each partition; unexpected errors are logged
        known = known_error(error)
        _logger.info("records of a member of share group %s are not acknowledged: %s", key.group_id, known.message)
        return outcomes | dict.fromkeys(asked, Outcome(code_of(known), known.message))
    for partition, topic_result in zip(asked, answer.topics, strict=True):
        result = topic_result.partitions[0].error
        outcomes[partition] = Outcome(code_of(result), text_of(result), answer.acquisition_lock_timeout_ms)
    return outcomes


async def return_unsent(
    request: KafkaRequest, key: SessionKey, unsent: Mapping[SharedPartition, Sequence[AcquiredRecords]]
) -> None:
    """Return records that were acquired for a member but have no room in its response. Their delivery does not count.

    If that fails, their locks end later.
    """
    call = pb.ShareAcknowledgeRequest(group_id=key.group_id, member_id=key.member_id)
    for partition, runs in unsent.items():
        known_topic = request.broker.catalog.topic_of_id(partition.topic_id)
        if known_topic is not None:
            returned = [_run(each.first_offset, each.last_offset, pb.RETURN) for each in runs]
            call.topics.add(name=known_topic.name).partitions.add(partition=partition.number, acknowledgements=returned)
    if not call.topics:
        return
    try:
        answer: pb.ShareAcknowledgeResponse = await ask(request, key.group_id, "ShareAcknowledge", call)
    except MillraceError as error:
        _logger.info("records of a member of share group %s are not returned: %s", key.group_id, error.message)
        return
    for topic in answer.topics:
        for each in topic.partitions:
            if each.error.code:
                place = (topic.name, each.partition, key.group_id)
                _logger.info("records of %s-%d are not returned to share group %s: %s", *place, text_of(each.error))


def _check(batches: Sequence[AcknowledgementBatch], *, is_renewal: bool, version: int) -> None:
    """Raise ``InvalidRequestError`` for acknowledgements that Kafka refuses before it looks at the records."""
    type_max = pb.RENEW if version >= _WITH_RENEWAL else pb.REJECT
    before = -1
    for batch in batches:
        first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
        if first > last or first < before:
            raise InvalidRequestError(
                f"offsets {first}..{last} cannot be acknowledged after offset {before}: send offsets in order"
            )
        if len(types) not in (1, last - first + 1):
            raise InvalidRequestError(
                f"offsets {first}..{last} have {len(types)} types of acknowledgement: send one for all, or one for each"
            )
        if not all(0 <= each <= type_max for each in types):
            raise InvalidRequestError(
                f"offsets {first}..{last} have acknowledgement types {sorted(set(types))}: known are 0 to {type_max}"
            )
        if pb.RENEW in types and not is_renewal:
            raise InvalidRequestError(
                f"offsets {first}..{last} are to be renewed, but the request has no IsRenewAck: set it"
            )
        before = last


def _runs(batch: AcknowledgementBatch) -> Iterable[pb.AcknowledgementBatch]:
    """Yield runs of offsets with the same type."""
    if len(batch.acknowledge_types) == 1:
        kind = batch.acknowledge_types[0]
        yield _run(batch.first_offset, batch.last_offset, kind)
        return
    first = batch.first_offset
    for kind, same in groupby(batch.acknowledge_types):
        count = sum(1 for _ in same)
        yield _run(first, first + count - 1, kind)
        first += count


def _run(first: int, last: int, kind: int) -> pb.AcknowledgementBatch:
    run = pb.AcknowledgementBatch(first_offset=first, last_offset=last)
    run.type = kind  # type: ignore[assignment]  # the number was checked
    return run
