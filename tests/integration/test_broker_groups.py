"""Groups and committed offsets on a real broker, by calls that no client of ours would make, or not so."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from millrace.coordinator_records import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
    write_versioned,
)
from millrace.errors import (
    CoordinatorLoadInProgressError,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    MillraceError,
    NonEmptyGroupError,
    OffsetMetadataTooLargeError,
    RebalanceInProgressError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.embedded import EmbeddedBroker

OPTIONS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "100"}
DEADLINE_S = 20


@pytest.fixture(scope="module")
def module_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), options=OPTIONS) as running:
        yield running


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as pool:
        yield pool


def subscription(*topics: str) -> bytes:
    return write_versioned(ConsumerProtocolSubscription(topics=topics, user_data=None), 3)


class Groups:
    """Calls about one group."""

    def __init__(self, calls: Any, group_id: str) -> None:
        self.calls, self.group_id = calls, group_id
        self.ready()

    def ready(self) -> None:
        """Find the coordinator, and wait until it has read what there is."""
        self.calls.call("FindCoordinator", pb.FindCoordinatorRequest(key_type=pb.GROUP, keys=[self.group_id]))
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                self.calls.call("ListGroups", pb.ListGroupsRequest())
                if self.fetch_error() != CoordinatorLoadInProgressError.code:
                    return
            except CoordinatorLoadInProgressError:
                pass
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def fetch_error(self) -> int:
        request = pb.OffsetFetchRequest(groups=[pb.OffsetFetchRequest.Group(group_id=self.group_id, all_topics=True)])
        return self.calls.call("OffsetFetch", request).groups[0].error.code

    def join_request(self, member_id: str = "", **fields: Any) -> pb.JoinGroupRequest:
        protocols = fields.pop("protocols", None) or [("range", subscription("t"))]
        return pb.JoinGroupRequest(
            **{
                "group_id": self.group_id,
                "session_timeout_ms": 10_000,
                "rebalance_timeout_ms": 10_000,
                "member_id": member_id,
                "protocol_type": "consumer",
                "client_id": "c",
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

    def sync(
        self, joined: pb.JoinGroupResponse, assignments: dict[str, bytes] | None = None, **fields: Any
    ) -> bytes:
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
            **{"partition": fields.pop("partition", 0), "offset": offset, "metadata": fields.pop("metadata", "")}
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
        deadline = time.monotonic() + DEADLINE_S
        while (present := self.describe().state) != state:
            assert time.monotonic() < deadline, f"{present}, not {state}"
            time.sleep(0.01)


def error_of(call: Callable[[], Any]) -> type[MillraceError]:
    with pytest.raises(MillraceError) as raised:
        call()
    return type(raised.value)


def test_one_member_joins_and_gets_its_assignment(calls: Any, group: str) -> None:
    groups = Groups(calls, group)
    joined = groups.join()
    assert (joined.generation_id, joined.leader, joined.protocol_name) == (1, joined.member_id, "range")
    assert [member.member_id for member in joined.members] == [joined.member_id]
    assert groups.sync(joined, {joined.member_id: b"mine"}) == b"mine"
    groups.heartbeat(joined)
    described = groups.describe()
    assert (described.state, described.protocol, described.type) == ("Stable", "range", "classic")
    assert described.members[0].assignment == b"mine"
    assert described.members[0].client_host == "/127.0.0.1"
    assert groups.leave(joined.member_id) == 0
    assert groups.describe().state == "Empty"


def test_committed_offsets_are_fetched(calls: Any, group: str, topic: str) -> None:
    calls.create(topic, 2)
    groups = Groups(calls, group)
    assert groups.committed(topic).committed.offset == -1
    assert groups.commit(topic, 5, metadata="m", partition=1).error.code == 0
    found = groups.committed(topic, 1)
    assert (found.committed.offset, found.committed.metadata) == (5, "m")
    assert found.commit_timestamp_ms > 0
