"""Table of what each call needs, by the name of the call. ``access`` enforces it.

The rules of Kafka's calls are those of Kafka 3.9 ("Operations and Resources on Protocols" in its security guide, and
``KafkaApis``). A test compares them. Calls that brokers send to each other need ``CLUSTER_ACTION``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from millrace.acls import AclOperation, ResourceType
from millrace.errors import AuthorizationError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.fetch_response import FetchAnswer
from millrace_broker.api.common.access import (
    Asked,
    Handler,
    Hidden,
    Items,
    Need,
    Right,
    Rule,
    Whole,
    access_for,
    enforced,
)
from millrace_broker.api.common.access_checks import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    NONE,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    config_items,
    coordinator_need,
    create_need,
    external_ids,
    fetch_errors,
    hide_groups,
    hide_offsets,
    hide_topics,
    hide_transaction_topics,
    hide_transactions,
    metadata_items,
    named_items,
    no_offset,
    no_start,
    of_cluster,
    of_group,
    of_subscription,
    of_topic,
    of_transactional_id,
    partition_errors,
    schema_topic,
    topic_items,
    without_id,
)
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker

_OPEN: Final = Rule()
_BROKERS_ONLY: Final = Rule((of_cluster(AclOperation.CLUSTER_ACTION),))


def _by_replica(request: Any) -> bool:
    return request.replica_id >= 0  # type: ignore[no-any-return]


def _forwarded(request: Any) -> bool:
    return request.is_forwarded  # type: ignore[no-any-return]


def _by_broker(request: Any) -> bool:
    return request.by_broker  # type: ignore[no-any-return]


RULES: Final[dict[str, Rule]] = {
    "ApiVersions": _OPEN,
    "SaslHandshake": _OPEN,
    "SaslAuthenticate": _OPEN,
    "DescribeCluster": _OPEN,
    "Metadata": Rule(
        (
            metadata_items(lambda broker, request, name: Need(DESCRIBE, TOPIC, name), DESCRIBE),
            metadata_items(create_need, CREATE, Right(CREATE, CLUSTER)),
            Hidden(rights=(Right(DESCRIBE, TOPIC),), hide=hide_topics),
        )
    ),
    # --- administration
    "CreateTopics": Rule(
        (
            replace(
                named_items(
                    Right(CREATE, TOPIC), "topics", "results", pb.CreateTopicsResponse, pb.CreateTopicsResponse.Result
                ),
                rights=(Right(CREATE, TOPIC), Right(CREATE, CLUSTER)),
                instead=Right(CREATE, CLUSTER),
            ),
        )
    ),
    "DeleteTopics": Rule(
        (
            named_items(
                Right(DELETE, TOPIC), "names", "results", pb.DeleteTopicsResponse, pb.DeleteTopicsResponse.Result
            ),
        )
    ),
    "CreatePartitions": Rule(
        (
            named_items(
                Right(ALTER, TOPIC),
                "topics",
                "results",
                pb.CreatePartitionsResponse,
                pb.CreatePartitionsResponse.Result,
            ),
        )
    ),
    "DeleteRecords": Rule(
        (
            topic_items(
                DELETE,
                pb.DeleteRecordsResponse,
                partition_errors(pb.DeleteRecordsResponse.TopicResult, low_watermark=NONE),
            ),
        )
    ),
    "DescribeConfigs": Rule(
        (
            config_items(
                DESCRIBE_CONFIGS,
                "resources",
                pb.DescribeConfigsResponse,
                pb.DescribeConfigsResponse.Result,
                lambda item: item,
            ),
        )
    ),
    "AlterConfigs": Rule(
        (
            config_items(
                ALTER_CONFIGS,
                "alterations",
                pb.AlterConfigsResponse,
                pb.AlterConfigsResponse.Result,
                lambda item: item.resource,
            ),
        )
    ),
    "ListConfigResources": Rule((of_cluster(DESCRIBE_CONFIGS),)),
    "DescribeUserScramCredentials": Rule((of_cluster(DESCRIBE),)),
    "AlterUserScramCredentials": Rule((of_cluster(ALTER),)),
    "CreateDelegationToken": Rule((Asked((Right(AclOperation.CREATE_TOKENS, ResourceType.USER),)),)),
    "RenewDelegationToken": _OPEN,
    "ExpireDelegationToken": _OPEN,
    "DescribeDelegationToken": Rule(
        (
            Asked(
                (Right(DESCRIBE, ResourceType.DELEGATION_TOKEN), Right(AclOperation.DESCRIBE_TOKENS, ResourceType.USER))
            ),
        )
    ),
    "DescribeClientQuotas": Rule((of_cluster(DESCRIBE_CONFIGS),)),
    "AlterClientQuotas": Rule((of_cluster(ALTER_CONFIGS),)),
    "DescribeLogDirs": Rule((of_cluster(DESCRIBE),)),
    "AlterReplicaLogDirs": Rule((of_cluster(ALTER),)),
    "ElectLeaders": Rule((of_cluster(ALTER),), _forwarded),
    "AlterPartitionReassignments": Rule((of_cluster(ALTER),), _forwarded),
    "ListPartitionReassignments": Rule((of_cluster(DESCRIBE),), _forwarded),
    "DescribeAcls": Rule((of_cluster(DESCRIBE),)),
    "CreateAcls": Rule((of_cluster(ALTER),)),
    "DeleteAcls": Rule((of_cluster(ALTER),)),
    # --- schemas, which Kafka does not have
    "EvolveSchema": Rule((of_topic(ALTER),)),
    "GetSchemas": Rule((Whole(Right(DESCRIBE, TOPIC), schema_topic), Asked((Right(DESCRIBE, TOPIC),)))),
    "RegisterPayloadSchemas": Rule((of_cluster(ALTER),)),
    "DeletePayloadSchemas": Rule((of_cluster(ALTER),)),
    "GetPayloadSchemas": Rule((of_cluster(DESCRIBE, Right(DESCRIBE, TOPIC)),)),
    # --- records
    "InitProducerId": Rule(
        (
            of_transactional_id(),
            Whole(Right(AclOperation.IDEMPOTENT_WRITE, CLUSTER), without_id, (Right(WRITE, TOPIC),)),
        )
    ),
    "Produce": Rule(
        (
            of_transactional_id(),
            topic_items(
                WRITE,
                pb.ProduceResponse,
                partition_errors(
                    pb.ProduceResponse.TopicResult, base_offset=NONE, log_append_time_ms=NONE, log_start_offset=NONE
                ),
                is_answered=lambda request: request.acks != 0,
            ),
        )
    ),
    "Fetch": Rule(
        (topic_items(READ, FetchAnswer, fetch_errors),),
        lambda request: _by_replica(request) or _by_broker(request),
    ),
    "ListOffsets": Rule(
        (
            topic_items(
                DESCRIBE,
                pb.ListOffsetsResponse,
                partition_errors(pb.ListOffsetsResponse.TopicOffsets, offset=NONE, timestamp=NONE, leader_epoch=NONE),
            ),
        ),
        lambda request: request.HasField("replica_id"),
    ),
    "OffsetForLeaderEpoch": Rule(
        (
            topic_items(
                DESCRIBE,
                pb.OffsetForLeaderEpochResponse,
                partition_errors(
                    pb.OffsetForLeaderEpochResponse.TopicEnds,
                    end=pb.EpochEndOffset(leader_epoch=NONE, end_offset=NONE),
                ),
            ),
        ),
        _by_replica,
    ),
    "LocateRange": Rule((of_topic(READ),)),
    "ReadRange": Rule((of_topic(READ),)),
    "ReadRangeChunk": Rule((of_topic(READ),)),
    # --- transactions
    "FindCoordinator": Rule(
        (
            Items(
                field="keys",
                need=coordinator_need,
                rights=(Right(DESCRIBE, GROUP), Right(DESCRIBE, TRANSACTIONAL_ID)),
                answers="coordinators",
                answer=lambda key, error: pb.FindCoordinatorResponse.Coordinator(key=key, error=error),
                response=pb.FindCoordinatorResponse,
            ),
        )
    ),
    "AddPartitionsToTxn": Rule(
        (
            of_transactional_id(),
            topic_items(WRITE, pb.AddPartitionsToTxnResponse, partition_errors(pb.TopicErrors), is_all_or_none=True),
        ),
        lambda request: request.verify_only or _by_broker(request),
    ),
    "AddOffsetsToTxn": Rule((of_transactional_id(), of_group(READ)), _by_broker),
    "EndTxn": Rule((of_transactional_id(),)),
    "TxnOffsetCommit": Rule(
        (
            of_transactional_id(),
            of_group(READ),
            topic_items(READ, pb.TxnOffsetCommitResponse, partition_errors(pb.TopicErrors)),
        )
    ),
    "JoinCommit": Rule((of_transactional_id(external_ids),)),
    "CommitTransactions": Rule((of_transactional_id(external_ids),)),
    "AbortCommit": Rule((of_transactional_id(external_ids),)),
    "WriteTxnMarkers": Rule((of_cluster(ALTER, Right(AclOperation.CLUSTER_ACTION, CLUSTER)),)),
    "ListTransactions": Rule((Hidden(rights=(Right(DESCRIBE, TRANSACTIONAL_ID),), hide=hide_transactions),)),
    "DescribeTransactions": Rule(
        (
            named_items(
                Right(DESCRIBE, TRANSACTIONAL_ID),
                "transactional_ids",
                "transactions",
                pb.DescribeTransactionsResponse,
                pb.DescribeTransactionsResponse.Transaction,
                "transactional_id",
                start_time_ms=NONE,
            ),
            Hidden(rights=(Right(DESCRIBE, TOPIC),), hide=hide_transaction_topics),
        )
    ),
    "DescribeProducers": Rule(
        (
            topic_items(
                READ,
                pb.DescribeProducersResponse,
                partition_errors(pb.DescribeProducersResponse.TopicProducers),
            ),
        )
    ),
    # --- groups
    "JoinGroup": Rule((of_group(READ),)),
    "SyncGroup": Rule((of_group(READ),)),
    "Heartbeat": Rule((of_group(READ),)),
    "LeaveGroup": Rule((of_group(READ),)),
    "OffsetCommit": Rule(
        (
            of_group(READ),
            topic_items(READ, pb.OffsetCommitResponse, partition_errors(pb.TopicErrors)),
        )
    ),
    "OffsetFetch": Rule(
        (
            named_items(
                Right(DESCRIBE, GROUP),
                "groups",
                "groups",
                pb.OffsetFetchResponse,
                pb.OffsetFetchResponse.Group,
                "group_id",
            ),
            Hidden(
                rights=(Right(DESCRIBE, TOPIC),), hide=hide_offsets(lambda each: each.committed.partition, no_offset)
            ),
        )
    ),
    "OffsetDelete": Rule(
        (
            of_group(DELETE),
            topic_items(READ, pb.OffsetDeleteResponse, partition_errors(pb.TopicErrors)),
        )
    ),
    "ListGroups": Rule((Hidden(rights=(Right(DESCRIBE, CLUSTER), Right(DESCRIBE, GROUP)), hide=hide_groups),)),
    "DescribeGroups": Rule(
        (
            named_items(
                Right(DESCRIBE, GROUP),
                "group_ids",
                "groups",
                pb.DescribeGroupsResponse,
                pb.DescribeGroupsResponse.Group,
                "group_id",
                state="Dead",
            ),
        ),
        _by_broker,
    ),
    "DeleteGroups": Rule(
        (
            named_items(
                Right(DELETE, GROUP),
                "group_ids",
                "results",
                pb.DeleteGroupsResponse,
                pb.DeleteGroupsResponse.Result,
                "group_id",
            ),
        )
    ),
    "ConsumerGroupHeartbeat": Rule((of_group(READ), of_subscription(lambda request: request.subscribed_topic_names))),
    "ConsumerGroupDescribe": Rule((Asked((Right(DESCRIBE, GROUP), Right(DESCRIBE, TOPIC))),)),
    # --- share groups
    "ShareGroupHeartbeat": Rule((of_group(READ), of_subscription(lambda request: request.subscribed_topics))),
    "ShareFetch": Rule(
        (
            of_group(READ),
            topic_items(READ, pb.ShareFetchResponse, partition_errors(pb.ShareFetchResponse.TopicRecords)),
        )
    ),
    "ShareAcknowledge": Rule(
        (
            of_group(READ),
            topic_items(READ, pb.ShareAcknowledgeResponse, partition_errors(pb.TopicErrors)),
        )
    ),
    "DescribeShareGroupOffsets": Rule(
        (
            named_items(
                Right(DESCRIBE, GROUP),
                "groups",
                "groups",
                pb.DescribeShareGroupOffsetsResponse,
                pb.DescribeShareGroupOffsetsResponse.Group,
                "group_id",
            ),
            Hidden(rights=(Right(DESCRIBE, TOPIC),), hide=hide_offsets(lambda each: each.partition, no_start)),
        )
    ),
    "AlterShareGroupOffsets": Rule(
        (
            of_group(READ),
            topic_items(READ, pb.AlterShareGroupOffsetsResponse, partition_errors(pb.TopicErrors)),
        )
    ),
    "DeleteShareGroupOffsets": Rule(
        (
            of_group(DELETE),
            named_items(
                Right(READ, TOPIC),
                "topics",
                "topics",
                pb.DeleteShareGroupOffsetsResponse,
                pb.DeleteShareGroupOffsetsResponse.Result,
            ),
        )
    ),
    # --- between brokers
    "LeaderAndIsr": _BROKERS_ONLY,
    "StopReplica": _BROKERS_ONLY,
    "UpdateMetadata": _BROKERS_ONLY,
    "AlterPartition": _BROKERS_ONLY,
    "ControlledShutdown": _BROKERS_ONLY,
}
"""Rules of all calls, of millrace and of Kafka, whose names are the same for the same call."""


def authorized(call: str) -> Callable[[Handler], Handler]:
    """Decorate the handler of a call with the call's rule. Raises ``KeyError`` if it has none."""
    return enforced(RULES[call])


def denied_items(call: str, broker: Broker, request: Any, context: RequestContext) -> Mapping[str, AuthorizationError]:
    """Return the errors of denied items by their names. Raises ``AuthorizationError`` for the whole request."""
    access = access_for(broker, context)
    if access is None:
        return {}
    rule = RULES[call]
    errors = rule.enforce(access, request)
    items = [getattr(request, each.field) for each in rule.checks if isinstance(each, Items)]
    return {items[0][place].name: error for place, error in errors.items()}


def check_request(call: str, broker: Broker, request: Any, context: RequestContext) -> None:
    """Check a request of a call that Kafka's layer answers itself. Raises the first ``AuthorizationError``."""
    access = access_for(broker, context)
    if access is not None:
        for error in RULES[call].enforce(access, request).values():
            raise error
