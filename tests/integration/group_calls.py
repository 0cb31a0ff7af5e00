"""Raw calls to a broker about one group or share group."""

from __future__ import annotations

from typing import Any

from millrace.coordinator_records import ConsumerProtocolSubscription, write_versioned
from millrace.errors import CoordinatorLoadInProgressError, MemberIdRequiredError, MillraceError
from millrace.protocol import millrace_pb2 as pb

from .waiting import eventually


def subscription(*topics: str) -> bytes:
    return write_versioned(ConsumerProtocolSubscription(topics=topics, user_data=None), 3)


class Groups:
    """Calls about one group."""

    def __init__(self, calls: Any, group_id: str) -> None:
        self.calls, self.group_id = calls, group_id
        self.ready()

    def ready(self) -> None:
        """Find the coordinator, and wait until it has loaded the group."""
        self.calls.call("FindCoordinator", pb.FindCoordinatorRequest(key_type=pb.GROUP, keys=[self.group_id]))

        def is_loaded() -> bool:
            try:
                self.calls.call("ListGroups", pb.ListGroupsRequest())
            except CoordinatorLoadInProgressError:
                return False
            return self.fetch_error() != CoordinatorLoadInProgressError.code

        eventually(is_loaded, "the coordinator to load")

    def fetch_error(self) -> int:
        request = pb.OffsetFetchRequest(groups=[pb.OffsetFetchRequest.Group(group_id=self.group_id, all_topics=True)])
        return self.calls.call("OffsetFetch", request).groups[0].error.code

    def join_request(self, member_id: str = "", **fields: Any) -> pb.JoinGroupRequest:
        protocols = fields.pop("protocols", None) or [("range", subscription("t"))]
        return pb.JoinGroupRequest(
            **{
                "group_id": self.group_id,
                "session_timeout_ms": 60_000,
                "rebalance_timeout_ms": 10_000,
                "member_id": member_id,
                "protocol_type": "consumer",
                "protocols": [pb.JoinGroupRequest.Protocol(name=name, metadata=data) for name, data in protocols],
                **fields,
            }
        )

    def member_id(self, **fields: Any) -> str:
        response = self.calls.call("JoinGroup", self.join_request(**fields))
        assert response.error.code == MemberIdRequiredError.code
        return response.member_id

    def join(self, member_id: str = "", **fields: Any) -> pb.JoinGroupResponse:
        if not member_id and not fields.get("group_instance_id"):
            member_id = self.member_id(**fields)
        return self.calls.call("JoinGroup", self.join_request(member_id, **fields))

    def sync(self, joined: pb.JoinGroupResponse, assignments: dict[str, bytes] | None = None, **fields: Any) -> bytes:
        request = pb.SyncGroupRequest(
            **{
                "group_id": self.group_id,
                "generation_id": joined.generation_id,
                "member_id": joined.member_id,
                "assignments": [
                    pb.SyncGroupRequest.Assignment(member_id=member_id, assignment=assignment)
                    for member_id, assignment in (assignments or {}).items()
                ],
                **fields,
            }
        )
        return self.calls.call("SyncGroup", request).assignment

    def heartbeat(self, joined: pb.JoinGroupResponse, **fields: Any) -> None:
        request = {"group_id": self.group_id, "generation_id": joined.generation_id, "member_id": joined.member_id}
        self.calls.call("Heartbeat", pb.HeartbeatRequest(**{**request, **fields}))

    def leave(self, member_id: str = "", instance: str = "") -> int:
        member = pb.LeaveGroupRequest.Member(member_id=member_id, group_instance_id=instance)
        response = self.calls.call("LeaveGroup", pb.LeaveGroupRequest(group_id=self.group_id, members=[member]))
        return response.results[0].error.code

    def commit(
        self, topic: str, offset: int, joined: pb.JoinGroupResponse | None = None, **fields: Any
    ) -> pb.PartitionError:
        committed = pb.CommittedOffset(
            partition=fields.pop("partition", 0), offset=offset, metadata=fields.pop("metadata", "")
        )
        request = pb.OffsetCommitRequest(
            **{
                "group_id": self.group_id,
                "generation_id": -1 if joined is None else joined.generation_id,
                "member_id": "" if joined is None else joined.member_id,
                "topics": [pb.TopicCommits(name=topic, partitions=[committed])],
                **fields,
            }
        )
        return self.calls.call("OffsetCommit", request).topics[0].partitions[0]

    def committed(self, topic: str, partition: int = 0, *, require_stable: bool = False) -> Any:
        wanted = pb.OffsetFetchRequest.Group(
            group_id=self.group_id, topics=[pb.TopicPartitions(name=topic, partitions=[partition])]
        )
        request = pb.OffsetFetchRequest(groups=[wanted], require_stable=require_stable)
        return self.calls.call("OffsetFetch", request).groups[0].topics[0].partitions[0]

    def describe(self) -> pb.DescribeGroupsResponse.Group:
        return self.calls.call("DescribeGroups", pb.DescribeGroupsRequest(group_ids=[self.group_id])).groups[0]

    def delete(self) -> int:
        return self.calls.call("DeleteGroups", pb.DeleteGroupsRequest(group_ids=[self.group_id])).results[0].error.code

    def wait_for(self, state: str) -> None:
        eventually(lambda: self.describe().state == state, state, progress=lambda: self.describe().state)


class Share:
    """Calls about one share group."""

    def __init__(self, calls: Any, group_id: str) -> None:
        self.calls, self.group_id = calls, group_id
        self.ready()

    def ready(self) -> None:
        """Find the coordinator, and wait until it has loaded the group."""
        self.calls.call("FindCoordinator", pb.FindCoordinatorRequest(key_type=pb.SHARE, keys=[self.group_id]))
        eventually(lambda: self.error_of_fetch() is not CoordinatorLoadInProgressError, "the coordinator to load")

    def error_of_fetch(self) -> type[MillraceError]:
        return type(
            self.calls.error("ShareFetch", pb.ShareFetchRequest(group_id=self.group_id, max_records=1, max_bytes=1))
        )

    def beat(self, member: str, epoch: int, *topics: str) -> pb.ShareGroupHeartbeatResponse:
        request = pb.ShareGroupHeartbeatRequest(
            group_id=self.group_id, member_id=member, member_epoch=epoch, subscribed_topics=topics
        )
        return self.calls.call("ShareGroupHeartbeat", request)

    def join(self, member: str, *topics: str) -> int:
        return self.beat(member, 0, *topics).member_epoch

    def fetch(
        self,
        member: str,
        topic: str,
        *,
        partition: int = 0,
        most: int = 100,
        wait_ms: int = 0,
        acknowledge: list[tuple[int, int, int]] | None = None,
    ) -> pb.ShareFetchResponse.PartitionRecords:
        wanted = pb.ShareFetchRequest.PartitionFetch(
            partition=partition, acknowledgements=[batch(*each) for each in acknowledge or ()]
        )
        request = pb.ShareFetchRequest(
            group_id=self.group_id,
            member_id=member,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=2**20,
            max_records=most,
            topics=[pb.ShareFetchRequest.TopicFetch(name=topic, partitions=[wanted])],
        )
        return self.calls.call("ShareFetch", request).topics[0].partitions[0]

    def offsets(self, member: str, topic: str, **options: Any) -> list[int]:
        return acquired(self.fetch(member, topic, **options))

    def acknowledge(self, member: str, topic: str, first: int, last: int, what: int = pb.ACCEPT) -> int:
        request = pb.ShareAcknowledgeRequest(
            group_id=self.group_id,
            member_id=member,
            topics=[
                pb.ShareAcknowledgeRequest.TopicAcknowledgements(
                    name=topic,
                    partitions=[
                        pb.ShareAcknowledgeRequest.PartitionAcknowledgements(
                            partition=0, acknowledgements=[batch(first, last, what)]
                        )
                    ],
                )
            ],
        )
        return self.calls.call("ShareAcknowledge", request).topics[0].partitions[0].error.code


def batch(first: int, last: int, what: int) -> pb.AcknowledgementBatch:
    return pb.AcknowledgementBatch(first_offset=first, last_offset=last, type=what)  # type: ignore[arg-type]


def acquired(result: pb.ShareFetchResponse.PartitionRecords) -> list[int]:
    assert result.error.code == 0, result.error.message
    return [offset for run in result.acquired for offset in range(run.first_offset, run.last_offset + 1)]
