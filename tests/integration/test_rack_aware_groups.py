"""Tests of racks in groups.

Subscriptions carry the racks of members. The leader of a group knows the racks of brokers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millrace.clients import Admin, Consumer, TopicPartition
from millrace.clients.assignors import RangeAssignor
from millrace.clients.subscription import fetch_layout
from millrace.coordinator_records import read_subscription
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.testing import EmbeddedBroker

from .waiting import Stall


@pytest.fixture
def broker(tmp_path: Any) -> Iterator[EmbeddedBroker]:
    options = {"broker.rack": "r1", "group.initial.rebalance.delay.ms": "0"}
    with EmbeddedBroker(tmp_path, options=options) as running:
        yield running


def test_members_say_their_rack_and_the_leader_hands_the_assignor_all_racks(
    broker: EmbeddedBroker, calls_to: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[dict[str, str], Any]] = []
    assign = RangeAssignor.assign

    def spy(self: RangeAssignor, counts: Any, members: Any, racks: Any) -> Any:
        seen.append(({member.member_id: member.rack for member in members}, racks))
        return assign(self, counts, members, racks)

    monkeypatch.setattr(RangeAssignor, "assign", spy)
    config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "client.rack": "r1"}
    with Admin(broker.bootstrap_servers) as admin, Consumer(config) as consumer:
        admin.create_topic("orders", partitions=2)
        consumer.subscribe("orders")
        stall = Stall("the assignment")
        while len(consumer.assignment()) < 2:
            stall.check()
            consumer.poll(50)
        described = calls_to(broker.bootstrap_servers).call("DescribeGroups", pb.DescribeGroupsRequest(group_ids=["g"]))
        (member,) = described.groups[0].members
        assert read_subscription(member.metadata)[1].rack_id == "r1"
        everywhere = frozenset({"r1"})
        assert seen == [
            (
                {member.member_id: "r1"},
                {TopicPartition("orders", 0): everywhere, TopicPartition("orders", 1): everywhere},
            )
        ]
        layout = fetch_layout(consumer._connections, ["orders", "none"])
        assert layout.counts == {"orders": 2, "none": 0}
        assert layout.as_seen_from("") != layout == layout.as_seen_from("r1")
