"""Handlers of the protocol's calls, one module per call.

A handler is a plain function from request and ``RequestContext`` to response. It does not depend on a listener.
Listeners look handlers up in ``HANDLERS``. Handlers run in the broker's event loop, one task per call, and may be
cancelled at any await. A handler raises an error of the whole request. It puts an error of a single item into that
item's part of the response.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from millrace_broker.api import (
    abort_commit,
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_share_group_offsets,
    api_versions,
    commit_transactions,
    controlled_shutdown,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_payload_schemas,
    delete_records,
    delete_share_group_offsets,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_configs,
    describe_groups,
    describe_producers,
    describe_share_group_offsets,
    describe_transactions,
    elect_leaders,
    end_txn,
    evolve_schema,
    fetch,
    find_coordinator,
    get_payload_schemas,
    get_schemas,
    heartbeat,
    init_producer_id,
    join_commit,
    join_group,
    leader_and_isr,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    locate_range,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    read_range,
    read_range_chunk,
    register_payload_schemas,
    share_acknowledge,
    share_fetch,
    share_group_heartbeat,
    stop_replica,
    sync_group,
    txn_offset_commit,
    update_metadata,
    write_txn_markers,
)
from millrace_broker.api.common.errors import known_error
from millrace_broker.api.common.request_context import ClientAddress, RequestContext, in_progress
from millrace_broker.broker import Broker

UnaryHandler = Callable[[Broker, Any, RequestContext], Awaitable[Any]]
StreamHandler = Callable[[Broker, Any, RequestContext], AsyncIterator[Any]]

HANDLERS: Final[dict[str, UnaryHandler]] = {
    "ApiVersions": api_versions.handle,
    "Metadata": metadata.handle,
    "CreateTopics": create_topics.handle,
    "DeleteTopics": delete_topics.handle,
    "CreatePartitions": create_partitions.handle,
    "DescribeConfigs": describe_configs.handle,
    "AlterConfigs": alter_configs.handle,
    "EvolveSchema": evolve_schema.handle,
    "GetSchemas": get_schemas.handle,
    "RegisterPayloadSchemas": register_payload_schemas.handle,
    "GetPayloadSchemas": get_payload_schemas.handle,
    "DeletePayloadSchemas": delete_payload_schemas.handle,
    "InitProducerId": init_producer_id.handle,
    "Produce": produce.handle,
    "Fetch": fetch.handle,
    "ListOffsets": list_offsets.handle,
    "OffsetForLeaderEpoch": offset_for_leader_epoch.handle,
    "DeleteRecords": delete_records.handle,
    "LocateRange": locate_range.handle,
    "FindCoordinator": find_coordinator.handle,
    "AddPartitionsToTxn": add_partitions_to_txn.handle,
    "AddOffsetsToTxn": add_offsets_to_txn.handle,
    "EndTxn": end_txn.handle,
    "JoinCommit": join_commit.handle,
    "CommitTransactions": commit_transactions.handle,
    "AbortCommit": abort_commit.handle,
    "WriteTxnMarkers": write_txn_markers.handle,
    "ListTransactions": list_transactions.handle,
    "DescribeTransactions": describe_transactions.handle,
    "DescribeProducers": describe_producers.handle,
    "JoinGroup": join_group.handle,
    "SyncGroup": sync_group.handle,
    "Heartbeat": heartbeat.handle,
    "LeaveGroup": leave_group.handle,
    "OffsetCommit": offset_commit.handle,
    "TxnOffsetCommit": txn_offset_commit.handle,
    "OffsetFetch": offset_fetch.handle,
    "OffsetDelete": offset_delete.handle,
    "ListGroups": list_groups.handle,
    "DescribeGroups": describe_groups.handle,
    "DeleteGroups": delete_groups.handle,
    "ShareGroupHeartbeat": share_group_heartbeat.handle,
    "ShareFetch": share_fetch.handle,
    "ShareAcknowledge": share_acknowledge.handle,
    "DescribeShareGroupOffsets": describe_share_group_offsets.handle,
    "AlterShareGroupOffsets": alter_share_group_offsets.handle,
    "DeleteShareGroupOffsets": delete_share_group_offsets.handle,
    "ElectLeaders": elect_leaders.handle,
    "AlterPartitionReassignments": alter_partition_reassignments.handle,
    "ListPartitionReassignments": list_partition_reassignments.handle,
    "DescribeAcls": describe_acls.handle,
    "CreateAcls": create_acls.handle,
    "DeleteAcls": delete_acls.handle,
    "LeaderAndIsr": leader_and_isr.handle,
    "StopReplica": stop_replica.handle,
    "UpdateMetadata": update_metadata.handle,
    "AlterPartition": alter_partition.handle,
    "ControlledShutdown": controlled_shutdown.handle,
    "ReadRangeChunk": read_range_chunk.handle,
    "DescribeClientQuotas": describe_client_quotas.handle,
    "AlterClientQuotas": alter_client_quotas.handle,
}
"""Handlers by the names of their calls in the ``Broker`` service."""

STREAM_HANDLERS: Final[dict[str, StreamHandler]] = {
    "ReadRange": read_range.handle,
}
"""Handlers whose response is a stream."""

__all__ = [
    "HANDLERS",
    "STREAM_HANDLERS",
    "ClientAddress",
    "RequestContext",
    "StreamHandler",
    "UnaryHandler",
    "in_progress",
    "known_error",
]
