"""Checks for the table in ``access_rules``.

Each function returns a check or a part of a check. Such parts are the names of items, the rights that items need, the
answers for denied items, and removers of hidden parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from millrace.acls import CLUSTER_NAME, AclOperation, ResourceType
from millrace.coordinator_records import INTERNAL_TOPICS
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.fetch_response import TopicAnswer
from millrace_broker.api.common.access import (
    Access,
    Answer,
    Items,
    Names,
    Need,
    NeedOf,
    Right,
    Whole,
    keep,
)
from millrace_broker.api.common.errors import error_message
from millrace_broker.broker import Broker

READ: Final = AclOperation.READ
WRITE: Final = AclOperation.WRITE
CREATE: Final = AclOperation.CREATE
DELETE: Final = AclOperation.DELETE
ALTER: Final = AclOperation.ALTER
DESCRIBE: Final = AclOperation.DESCRIBE
DESCRIBE_CONFIGS: Final = AclOperation.DESCRIBE_CONFIGS
ALTER_CONFIGS: Final = AclOperation.ALTER_CONFIGS
TOPIC: Final = ResourceType.TOPIC
GROUP: Final = ResourceType.GROUP
CLUSTER: Final = ResourceType.CLUSTER
TRANSACTIONAL_ID: Final = ResourceType.TRANSACTIONAL_ID

NONE: Final = -1


# --- whole requests ----------------------------------------------------------------------------------------------


def of_cluster(operation: AclOperation, *instead: Right) -> Whole:
    """Return the check of a right to the cluster, or of one of the others."""
    return Whole(Right(operation, CLUSTER), lambda broker, request: (CLUSTER_NAME,), instead)


def of_group(operation: AclOperation) -> Whole:
    """Return the check of the request's group."""
    return Whole(Right(operation, GROUP), lambda broker, request: (request.group_id,))


def of_topic(operation: AclOperation) -> Whole:
    """Return the check of the request's topic."""
    return Whole(Right(operation, TOPIC), lambda broker, request: (request.topic,))


def of_transactional_id(names: Names | None = None) -> Whole:
    """Return the check of a request with a transactional id. Without one, nothing is checked."""
    own: Names = lambda broker, request: filter(None, (request.transactional_id,))  # noqa: E731 - as a default
    return Whole(Right(WRITE, TRANSACTIONAL_ID), names or own)


def external_ids(broker: Broker, request: Any) -> Iterable[str]:
    """Return the external id of a commit, and the transactional ids of its members."""
    yield request.external_id
    if isinstance(request, pb.CommitTransactionsRequest):
        yield from (each.transactional_id for members in (request.committed, request.aborted) for each in members)


def without_id(broker: Broker, request: pb.InitProducerIdRequest) -> Iterable[str]:
    """Return the cluster for an idempotent producer without transactions."""
    return () if request.transactional_id else (CLUSTER_NAME,)


def schema_topic(broker: Broker, request: pb.GetSchemasRequest) -> Iterable[str]:
    """Return the topic whose schemas are asked for. The handler checks a request for schemas by their ids."""
    return filter(None, (request.topic,))


def of_subscription(names: Callable[[Any], Iterable[str] | None]) -> Whole:
    """Return the check of the topics that a member subscribes to."""
    return Whole(Right(DESCRIBE, TOPIC), lambda broker, request: names(request) or ())


# --- items -------------------------------------------------------------------------------------------------------


def partition_errors(kind: Callable[..., Any], **failed: Any) -> Answer:
    """Return the maker of a topic's part of a response in which each partition has the error."""

    def answer(item: Any, error: pb.Error) -> Any:
        made = kind(name=item.name)
        for each in item.partitions:
            number = each if isinstance(each, int) else each.partition
            made.partitions.add(partition=number, error=error, **failed)
        return made

    return answer


def fetch_errors(item: pb.FetchRequest.TopicFetch, error: pb.Error) -> TopicAnswer:
    """Return a topic's part of a fetch response in which each partition has the error."""
    topic = TopicAnswer(item.name, item.topic_id)
    for each in item.partitions:
        topic.add_partition(each.partition).result.error.CopyFrom(error)
    return topic


def topic_items(
    operation: AclOperation,
    response: Callable[[], Any],
    answer: Answer,
    *,
    is_all_or_none: bool = False,
    is_answered: Callable[[Any], bool] = lambda request: True,
) -> Items:
    """Return the check of the topics of a request with their partitions."""
    return Items(
        field="topics",
        need=lambda broker, request, item: Need(operation, TOPIC, item.name),
        rights=(Right(operation, TOPIC),),
        answers="topics",
        answer=answer,
        response=response,
        is_all_or_none=is_all_or_none,
        is_answered=is_answered,
    )


def named_items(
    right: Right,
    field: str,
    answers: str,
    response: Callable[[], Any],
    kind: Callable[..., Any],
    key: str = "name",
    **failed: Any,
) -> Items:
    """Return the check of items that are names, or have one in the field ``key``."""

    def name_of(item: Any) -> str:
        return item if isinstance(item, str) else str(getattr(item, key))

    return Items(
        field=field,
        need=lambda broker, request, item: Need(*right, name_of(item)),
        rights=(right,),
        answers=answers,
        answer=lambda item, error: kind(**{key: name_of(item)}, error=error, **failed),
        response=response,
    )


def _config_need(operation: AclOperation) -> Callable[[pb.ConfigResource], Need | None]:
    def need(resource: pb.ConfigResource) -> Need | None:
        if resource.type == pb.TOPIC:
            return Need(operation, TOPIC, resource.name)
        if resource.type == pb.GROUP_RESOURCE:
            return Need(operation, GROUP, resource.name)
        return Need(operation, CLUSTER)

    return need


def config_items(
    operation: AclOperation,
    field: str,
    response: Callable[[], Any],
    kind: Callable[..., Any],
    resource_of: Callable[[Any], pb.ConfigResource],
) -> Items:
    """Return the check of configuration resources, each by its type."""
    need = _config_need(operation)
    return Items(
        field=field,
        need=lambda broker, request, item: need(resource_of(item)),
        rights=tuple(Right(operation, each) for each in (TOPIC, GROUP, CLUSTER)),
        answers="results",
        answer=lambda item, error: kind(resource=resource_of(item), error=error),
        response=response,
    )


def coordinator_need(broker: Broker, request: pb.FindCoordinatorRequest, key: str) -> Need:
    """Return the right to describe the group or transactional id, which a look-up of its coordinator needs."""
    return Need(DESCRIBE, TRANSACTIONAL_ID if request.key_type == pb.TRANSACTION else GROUP, key)


def create_need(broker: Broker, request: pb.MetadataRequest, name: str) -> Need | None:
    """Return the right to create a topic, if the request would create it."""
    is_created = (
        request.allow_auto_topic_creation
        and broker.config.auto_create_topics_enable
        and name not in INTERNAL_TOPICS
        and name not in broker.catalog.topics
    )
    return Need(CREATE, TOPIC, name) if is_created else None


def metadata_items(need: NeedOf, operation: AclOperation, instead: Right | None = None) -> Items:
    """Return a check of the topics that a Metadata request names."""
    return Items(
        field="topics",
        need=need,
        rights=(Right(operation, TOPIC), *((instead,) if instead else ())),
        answers="topics",
        answer=lambda name, error: pb.Topic(name=name, error=error),
        response=pb.MetadataResponse,
        instead=instead,
        none="no_topics",
    )


# --- parts of responses ------------------------------------------------------------------------------------------


def hide_topics(access: Access, request: pb.MetadataRequest, response: pb.MetadataResponse) -> None:
    """Leave out topics of a request for all topics."""
    if not request.topics:
        keep(response.topics, lambda each: access.allows(Need(DESCRIBE, TOPIC, each.name), is_logged=False))


def hide_groups(access: Access, request: pb.ListGroupsRequest, response: pb.ListGroupsResponse) -> None:
    """Leave out groups, unless the client may describe the cluster."""
    if not access.allows(Need(DESCRIBE, CLUSTER), is_logged=False):
        keep(response.groups, lambda each: access.allows(Need(DESCRIBE, GROUP, each.group_id), is_logged=False))


def hide_transactions(
    access: Access, request: pb.ListTransactionsRequest, response: pb.ListTransactionsResponse
) -> None:
    """Leave out transactional ids."""
    keep(
        response.transactions,
        lambda each: access.allows(Need(DESCRIBE, TRANSACTIONAL_ID, each.transactional_id), is_logged=False),
    )


def hide_transaction_topics(
    access: Access, request: pb.DescribeTransactionsRequest, response: pb.DescribeTransactionsResponse
) -> None:
    """Leave out topics of transactions."""
    for each in response.transactions:
        keep(each.topics, lambda topic: access.allows(Need(DESCRIBE, TOPIC, topic.name), is_logged=False))


def no_offset(number: int, error: pb.Error) -> pb.OffsetFetchResponse.PartitionOffset:
    """Return the answer for a partition whose committed offset the client may not see."""
    committed = pb.CommittedOffset(partition=number, offset=NONE, leader_epoch=NONE)
    return pb.OffsetFetchResponse.PartitionOffset(committed=committed, error=error, commit_timestamp_ms=NONE)


def no_start(number: int, error: pb.Error) -> pb.DescribeShareGroupOffsetsResponse.PartitionOffset:
    """Return the answer for a partition whose start offset the client may not see."""
    return pb.DescribeShareGroupOffsetsResponse.PartitionOffset(partition=number, start_offset=NONE, error=error)


def _remove(topics: Any, names: set[str]) -> None:
    keep(topics, lambda topic: topic.name not in names)


def hide_offsets(
    partition_of: Callable[[Any], int], answer: Callable[[int, pb.Error], Any]
) -> Callable[[Access, Any, Any], None]:
    """Return the remover of topics whose committed offsets the client may not see.

    A topic that the request names gets the error. If the request asks for all topics, such a topic is left out.
    """

    def hide(access: Access, request: Any, response: Any) -> None:
        for wanted, group in zip(request.groups, response.groups, strict=True):
            hidden = {
                topic.name
                for topic in group.topics
                if not access.allows(Need(DESCRIBE, TOPIC, topic.name), is_logged=not wanted.all_topics)
            }
            if wanted.all_topics:
                _remove(group.topics, hidden)
                continue
            for topic in group.topics:
                if topic.name in hidden:
                    error = error_message(access.denied(Need(DESCRIBE, TOPIC, topic.name)))
                    failed = [answer(partition_of(each), error) for each in topic.partitions]
                    topic.CopyFrom(type(topic)(name=topic.name, partitions=failed))  # without the id, for example

    return hide
