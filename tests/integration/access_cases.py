"""Calls of millrace with their needed ACLs, for the access matrix.

The needs are what Kafka documents ("Operations and Resources on Protocols"), and for calls that Kafka does not have,
what the how-to page says. They are written down here a second time, independent of the broker's table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millrace.acls import CLUSTER_NAME, AclOperation, ResourceType
from millrace.errors import UnknownSchemaError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.security import KafkaPrincipal

from .conftest import Calls

READ, WRITE, CREATE, DELETE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE
ALTER, DESCRIBE, ACTION = AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION
IDEMPOTENT, DESCRIBE_CONFIGS = AclOperation.IDEMPOTENT_WRITE, AclOperation.DESCRIBE_CONFIGS
ALTER_CONFIGS = AclOperation.ALTER_CONFIGS
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID

ALICE = KafkaPrincipal("User", "alice")
MALLORY = KafkaPrincipal("User", "mallory")
ANONYMOUS = KafkaPrincipal("User", "ANONYMOUS")
ADMIN = KafkaPrincipal("User", "admin")
DENIED = frozenset({29, 30, 31, 53, 65})
"""Kafka's codes of denials."""

Need = tuple[AclOperation, ResourceType, str]


def topic(operation: AclOperation, name: str = "orders") -> Need:
    return operation, TOPIC, name


def group(operation: AclOperation, name: str = "workers") -> Need:
    return operation, GROUP, name


def cluster(operation: AclOperation) -> Need:
    return operation, CLUSTER, CLUSTER_NAME


def transactional_id(operation: AclOperation, name: str = "external") -> Need:
    return operation, TRANSACTIONAL_ID, name


@dataclass(frozen=True)
class Case:
    """A call with the ways in which ACLs may allow it.

    Each way is a set of needs.
    """

    call: str
    request: Any
    ways: tuple[tuple[Need, ...], ...]
    shows: Callable[[Any], bool] | None = None
    """A check that the response has the allowed items, for calls that hide the others instead of refusing."""
    label: str = ""
    denied: frozenset[int] = DENIED
    """Codes of denials: Kafka's, unless the existence of a resource is not disclosed."""
    implied: tuple[tuple[Need, ...], ...] = ()
    """Further ways, by operations that imply the others."""

    def __str__(self) -> str:
        return f"{self.call}{self.label and '-'}{self.label}"


def topics(kind: Any, **fields: Any) -> dict[str, Any]:
    return {"topics": [kind(name="orders", partitions=[fields])]}


def numbers(name: str = "orders") -> list[pb.TopicPartitions]:
    return [pb.TopicPartitions(name=name, partitions=[0])]


def fetch(**fields: Any) -> pb.FetchRequest:
    wanted = pb.FetchRequest.TopicFetch(name="orders")
    wanted.partitions.add(partition=0, partition_max_bytes=1000, current_leader_epoch=-1)
    return pb.FetchRequest(**{"replica_id": -1, "max_bytes": 1000, **fields}, topics=[wanted])


def produce(**fields: Any) -> pb.ProduceRequest:
    return pb.ProduceRequest(
        acks=1, timeout_ms=1000, **fields, **topics(pb.ProduceRequest.TopicData, partition=0, records=Calls.batch(b"v"))
    )


def config(kind: Any, name: str) -> list[pb.ConfigResource]:
    return [pb.ConfigResource(type=kind, name=name)]


def alteration(kind: Any, name: str) -> pb.AlterConfigsRequest:
    changed = pb.AlterConfigsRequest.Alteration(resource=pb.ConfigResource(type=kind, name=name), delete=["none"])
    return pb.AlterConfigsRequest(alterations=[changed], validate_only=True)


ANY = "any"
"""Name of a resource where the right to any of the type suffices."""
GONE = "orders-gone"
UNKNOWN = "orders-new!"
"""A topic that can never be created, so that its creation is asked for each time."""
CASES = [
    Case("ApiVersions", pb.ApiVersionsRequest(), ((),)),
    Case("Metadata", pb.MetadataRequest(topics=["orders"]), ((topic(DESCRIBE),),)),
    Case(
        "Metadata",
        pb.MetadataRequest(),
        ((topic(DESCRIBE),),),
        lambda answer: "orders" in {each.name for each in answer.topics},
        "all",
    ),
    Case(
        "Metadata",
        pb.MetadataRequest(topics=[UNKNOWN], allow_auto_topic_creation=True),
        (
            (topic(DESCRIBE, UNKNOWN), topic(CREATE, UNKNOWN)),
            (topic(DESCRIBE, UNKNOWN), cluster(CREATE)),
        ),
        label="creates",
    ),
    Case(
        "CreateTopics",
        pb.CreateTopicsRequest(topics=[pb.NewTopic(name="orders", num_partitions=1, replication_factor=1)]),
        ((topic(CREATE),), (cluster(CREATE),)),
    ),
    Case("DeleteTopics", pb.DeleteTopicsRequest(names=[GONE]), ((topic(DELETE, GONE),),)),
    Case(
        "CreatePartitions",
        pb.CreatePartitionsRequest(
            topics=[pb.CreatePartitionsRequest.TopicCount(name="orders", count=2)], validate_only=True
        ),
        ((topic(ALTER),),),
    ),
    Case(
        "DescribeConfigs",
        pb.DescribeConfigsRequest(resources=config(pb.TOPIC, "orders")),
        ((topic(DESCRIBE_CONFIGS),),),
        implied=((topic(ALTER_CONFIGS),),),
    ),
    Case(
        "DescribeConfigs",
        pb.DescribeConfigsRequest(resources=config(pb.BROKER, "0")),
        ((cluster(DESCRIBE_CONFIGS),),),
        label="broker",
    ),
    Case(
        "DescribeConfigs",
        pb.DescribeConfigsRequest(resources=config(pb.GROUP_RESOURCE, "workers")),
        ((group(DESCRIBE_CONFIGS),),),
        label="group",
    ),
    Case("AlterConfigs", alteration(pb.TOPIC, "orders"), ((topic(ALTER_CONFIGS),),)),
    Case("AlterConfigs", alteration(pb.BROKER, "0"), ((cluster(ALTER_CONFIGS),),), label="broker"),
    Case("AlterConfigs", alteration(pb.GROUP_RESOURCE, "workers"), ((group(ALTER_CONFIGS),),), label="group"),
    Case("EvolveSchema", pb.EvolveSchemaRequest(topic="orders"), ((topic(ALTER),),)),
    Case("GetSchemas", pb.GetSchemasRequest(topic="orders"), ((topic(DESCRIBE),),)),
    Case(
        "GetSchemas",
        pb.GetSchemasRequest(ids=[1]),
        ((topic(DESCRIBE, "typed"),),),
        label="ids",
        denied=frozenset({UnknownSchemaError.code}),
    ),
    Case("RegisterPayloadSchemas", pb.RegisterPayloadSchemasRequest(), ((cluster(ALTER),),)),
    Case("DeletePayloadSchemas", pb.DeletePayloadSchemasRequest(ids=[7]), ((cluster(ALTER),),)),
    Case("GetPayloadSchemas", pb.GetPayloadSchemasRequest(), ((cluster(DESCRIBE),), (topic(DESCRIBE, ANY),))),
    Case("InitProducerId", pb.InitProducerIdRequest(), ((cluster(IDEMPOTENT),), (topic(WRITE, ANY),))),
    Case(
        "InitProducerId",
        pb.InitProducerIdRequest(
            transactional_id="external", transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1
        ),
        ((transactional_id(WRITE),),),
        label="transactional",
    ),
    Case("Produce", produce(), ((topic(WRITE),),)),
    Case("Produce", produce(transactional_id="external"), ((topic(WRITE), transactional_id(WRITE)),), label="txn"),
    Case("Fetch", fetch(), ((topic(READ),),)),
    Case("Fetch", fetch(replica_id=1), ((cluster(ACTION),),), label="follower"),
    Case("Fetch", fetch(by_broker=True), ((cluster(ACTION),),), label="broker"),
    Case(
        "ListOffsets",
        pb.ListOffsetsRequest(**topics(pb.ListOffsetsRequest.TopicTimes, partition=0, timestamp=-1)),
        ((topic(DESCRIBE),),),
        implied=((topic(READ),),),
    ),
    Case(
        "ListOffsets",
        pb.ListOffsetsRequest(replica_id=1, **topics(pb.ListOffsetsRequest.TopicTimes, partition=0, timestamp=-1)),
        ((cluster(ACTION),),),
        label="follower",
    ),
    Case(
        "OffsetForLeaderEpoch",
        pb.OffsetForLeaderEpochRequest(
            replica_id=-1,
            **topics(pb.OffsetForLeaderEpochRequest.TopicEpochs, partition=0, current_leader_epoch=-1, leader_epoch=0),
        ),
        ((topic(DESCRIBE),),),
    ),
    Case(
        "OffsetForLeaderEpoch",
        pb.OffsetForLeaderEpochRequest(
            replica_id=1,
            **topics(pb.OffsetForLeaderEpochRequest.TopicEpochs, partition=0, current_leader_epoch=-1, leader_epoch=0),
        ),
        ((cluster(ACTION),),),
        label="follower",
    ),
    Case(
        "DeleteRecords",
        pb.DeleteRecordsRequest(**topics(pb.DeleteRecordsRequest.TopicOffsets, partition=0, offset=0)),
        ((topic(DELETE),),),
    ),
    Case("LocateRange", pb.LocateRangeRequest(topic="orders", end_offset=-1), ((topic(READ),),)),
    Case("ReadRange", pb.ReadRangeRequest(topic="orders"), ((topic(READ),),)),
    Case("ReadRangeChunk", pb.ReadRangeRequest(topic="orders"), ((topic(READ),),)),
    Case(
        "FindCoordinator",
        pb.FindCoordinatorRequest(key_type=pb.GROUP, keys=["workers"]),
        ((group(DESCRIBE),),),
        implied=((group(READ),),),
    ),
    Case(
        "FindCoordinator",
        pb.FindCoordinatorRequest(key_type=pb.SHARE, keys=["workers"]),
        ((group(DESCRIBE),),),
        label="share",
    ),
    Case(
        "FindCoordinator",
        pb.FindCoordinatorRequest(key_type=pb.TRANSACTION, keys=["external"]),
        ((transactional_id(DESCRIBE),),),
        label="transaction",
        implied=((transactional_id(WRITE),),),
    ),
    Case(
        "AddPartitionsToTxn",
        pb.AddPartitionsToTxnRequest(transactional_id="external", topics=numbers()),
        ((transactional_id(WRITE), topic(WRITE)),),
    ),
    Case(
        "AddPartitionsToTxn",
        pb.AddPartitionsToTxnRequest(transactional_id="external", topics=numbers(), verify_only=True),
        ((cluster(ACTION),),),
        label="verify",
    ),
    Case(
        "AddPartitionsToTxn",
        pb.AddPartitionsToTxnRequest(transactional_id="external", topics=numbers(), by_broker=True),
        ((cluster(ACTION),),),
        label="broker",
    ),
    Case(
        "AddOffsetsToTxn",
        pb.AddOffsetsToTxnRequest(transactional_id="external", group_id="workers"),
        ((transactional_id(WRITE), group(READ)),),
    ),
    Case(
        "AddOffsetsToTxn",
        pb.AddOffsetsToTxnRequest(transactional_id="external", group_id="workers", by_broker=True),
        ((cluster(ACTION),),),
        label="broker",
    ),
    Case("EndTxn", pb.EndTxnRequest(transactional_id="external"), ((transactional_id(WRITE),),)),
    Case(
        "TxnOffsetCommit",
        pb.TxnOffsetCommitRequest(
            transactional_id="external",
            group_id="workers",
            topics=[pb.TopicCommits(name="orders", partitions=[pb.CommittedOffset(partition=0)])],
        ),
        ((transactional_id(WRITE), group(READ), topic(READ)),),
    ),
    Case("JoinCommit", pb.JoinCommitRequest(external_id="external"), ((transactional_id(WRITE),),)),
    Case(
        "CommitTransactions",
        pb.CommitTransactionsRequest(
            external_id="external",
            committed=[pb.CommitTransactionsRequest.Member(transactional_id="external-0")],
            aborted=[pb.CommitTransactionsRequest.Member(transactional_id="external-1")],
        ),
        (
            (
                transactional_id(WRITE),
                transactional_id(WRITE, "external-0"),
                transactional_id(WRITE, "external-1"),
            ),
        ),
    ),
    Case("AbortCommit", pb.AbortCommitRequest(external_id="external"), ((transactional_id(WRITE),),)),
    Case("WriteTxnMarkers", pb.WriteTxnMarkersRequest(), ((cluster(ACTION),), (cluster(ALTER),))),
    Case(
        "ListTransactions",
        pb.ListTransactionsRequest(),
        ((transactional_id(DESCRIBE),),),
        lambda answer: "external" in {each.transactional_id for each in answer.transactions},
    ),
    Case(
        "DescribeTransactions",
        pb.DescribeTransactionsRequest(transactional_ids=["described"]),
        ((transactional_id(DESCRIBE, "described"),),),
    ),
    Case(
        "DescribeTransactions",
        pb.DescribeTransactionsRequest(transactional_ids=["described"]),
        ((transactional_id(DESCRIBE, "described"), topic(DESCRIBE)),),
        lambda answer: [each.name for each in answer.transactions[0].topics] == ["orders"],
        "topics",
    ),
    Case("DescribeProducers", pb.DescribeProducersRequest(topics=numbers()), ((topic(READ),),)),
    Case("JoinGroup", pb.JoinGroupRequest(group_id="joined", session_timeout_ms=6000), ((group(READ, "joined"),),)),
    Case("SyncGroup", pb.SyncGroupRequest(group_id="workers"), ((group(READ),),)),
    Case("Heartbeat", pb.HeartbeatRequest(group_id="workers"), ((group(READ),),)),
    Case("LeaveGroup", pb.LeaveGroupRequest(group_id="workers"), ((group(READ),),)),
    Case(
        "OffsetCommit",
        pb.OffsetCommitRequest(
            group_id="workers",
            generation_id=-1,
            topics=[pb.TopicCommits(name="orders", partitions=[pb.CommittedOffset(partition=0)])],
        ),
        ((group(READ), topic(READ)),),
    ),
    Case(
        "OffsetFetch",
        pb.OffsetFetchRequest(groups=[pb.OffsetFetchRequest.Group(group_id="workers", topics=numbers())]),
        ((group(DESCRIBE), topic(DESCRIBE)),),
    ),
    Case(
        "OffsetFetch",
        pb.OffsetFetchRequest(groups=[pb.OffsetFetchRequest.Group(group_id="workers", all_topics=True)]),
        ((group(DESCRIBE), topic(DESCRIBE)),),
        lambda answer: [each.name for each in answer.groups[0].topics] == ["orders"],
        "all",
    ),
    Case(
        "OffsetDelete",
        pb.OffsetDeleteRequest(group_id="workers", topics=numbers(GONE)),
        ((group(DELETE), topic(READ, GONE)),),
    ),
    Case(
        "ListGroups",
        pb.ListGroupsRequest(),
        ((group(DESCRIBE),), (cluster(DESCRIBE),)),
        lambda answer: "workers" in {each.group_id for each in answer.groups},
    ),
    Case("DescribeGroups", pb.DescribeGroupsRequest(group_ids=["workers"]), ((group(DESCRIBE),),)),
    Case(
        "DescribeGroups",
        pb.DescribeGroupsRequest(group_ids=["workers"], by_broker=True),
        ((cluster(ACTION),),),
        label="broker",
    ),
    Case("DeleteGroups", pb.DeleteGroupsRequest(group_ids=["gone"]), ((group(DELETE, "gone"),),)),
    Case(
        "ShareGroupHeartbeat",
        pb.ShareGroupHeartbeatRequest(group_id="sharers", member_id="m", member_epoch=5, subscribed_topics=["orders"]),
        ((group(READ, "sharers"), topic(DESCRIBE)),),
    ),
    Case(
        "ShareFetch",
        pb.ShareFetchRequest(
            group_id="sharers", max_bytes=1, max_records=1, **topics(pb.ShareFetchRequest.TopicFetch, partition=0)
        ),
        ((group(READ, "sharers"), topic(READ)),),
    ),
    Case(
        "ShareAcknowledge",
        pb.ShareAcknowledgeRequest(
            group_id="sharers", **topics(pb.ShareAcknowledgeRequest.TopicAcknowledgements, partition=0)
        ),
        ((group(READ, "sharers"), topic(READ)),),
    ),
    Case(
        "DescribeShareGroupOffsets",
        pb.DescribeShareGroupOffsetsRequest(
            groups=[pb.DescribeShareGroupOffsetsRequest.Group(group_id="sharers", topics=numbers())]
        ),
        ((group(DESCRIBE, "sharers"), topic(DESCRIBE)),),
    ),
    Case(
        "AlterShareGroupOffsets",
        pb.AlterShareGroupOffsetsRequest(
            group_id="resetters", **topics(pb.AlterShareGroupOffsetsRequest.TopicOffsets, partition=0)
        ),
        ((group(READ, "resetters"), topic(READ)),),
    ),
    Case(
        "DeleteShareGroupOffsets",
        pb.DeleteShareGroupOffsetsRequest(group_id="resetters", topics=["orders"]),
        ((group(DELETE, "resetters"), topic(READ)),),
    ),
    Case("ElectLeaders", pb.ElectLeadersRequest(), ((cluster(ALTER),),)),
    Case("ElectLeaders", pb.ElectLeadersRequest(is_forwarded=True), ((cluster(ACTION),),), label="forwarded"),
    Case("AlterPartitionReassignments", pb.AlterPartitionReassignmentsRequest(), ((cluster(ALTER),),)),
    Case(
        "AlterPartitionReassignments",
        pb.AlterPartitionReassignmentsRequest(is_forwarded=True),
        ((cluster(ACTION),),),
        label="forwarded",
    ),
    Case("ListPartitionReassignments", pb.ListPartitionReassignmentsRequest(), ((cluster(DESCRIBE),),)),
    Case(
        "ListPartitionReassignments",
        pb.ListPartitionReassignmentsRequest(is_forwarded=True),
        ((cluster(ACTION),),),
        label="forwarded",
    ),
    Case("DescribeClientQuotas", pb.DescribeClientQuotasRequest(), ((cluster(DESCRIBE_CONFIGS),),)),
    Case("AlterClientQuotas", pb.AlterClientQuotasRequest(), ((cluster(ALTER_CONFIGS),),)),
    Case("DescribeAcls", pb.DescribeAclsRequest(), ((cluster(DESCRIBE),),), implied=((cluster(ALTER),),)),
    Case("CreateAcls", pb.CreateAclsRequest(), ((cluster(ALTER),),)),
    Case("DeleteAcls", pb.DeleteAclsRequest(), ((cluster(ALTER),),)),
    Case("LeaderAndIsr", pb.LeaderAndIsrRequest(), ((cluster(ACTION),),)),
    Case("StopReplica", pb.StopReplicaRequest(), ((cluster(ACTION),),)),
    Case("UpdateMetadata", pb.UpdateMetadataRequest(), ((cluster(ACTION),),)),
    Case("AlterPartition", pb.AlterPartitionRequest(), ((cluster(ACTION),),)),
    Case("ControlledShutdown", pb.ControlledShutdownRequest(), ((cluster(ACTION),),)),
]
