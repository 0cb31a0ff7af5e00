"""Tests of the preferred read replica by the rules of Kafka's ``RackAwareReplicaSelector``."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_broker.replication.core import ReplicaView, preferred_read_replica


def view(
    broker_id: int, rack: str = "", end: int = 100, *, start: int = 0, ago: int = 0, in_sync: bool = True
) -> ReplicaView:
    return ReplicaView(
        broker_id=broker_id,
        rack=rack,
        log_start_offset=start,
        log_end_offset=end,
        caught_up_ms_ago=ago,
        is_in_sync=in_sync,
    )


LEADER = view(0, "far")


@pytest.mark.parametrize(
    ("rack", "followers", "chosen"),
    [
        ("near", [view(1, "near"), view(2, "elsewhere")], 1),
        ("near", [view(1, "elsewhere")], None),
        ("near", [], None),
        ("", [view(1, "")], None),  # a consumer without a rack stays at the leader, also if a broker has no rack
        ("far", [view(1, "far", end=200)], None),  # the leader, if it is in the same rack
        ("near", [view(1, "near", end=60), view(2, "near", end=90)], 2),  # the replica with the highest end offset
        ("near", [view(1, "near", ago=10), view(2, "near", ago=500)], 1),  # the replica that caught up last
        ("near", [view(1, "near"), view(2, "near")], 2),
        ("near", [view(1, "near", in_sync=False)], None),
        ("near", [view(1, "near", end=49)], None),  # the replica has not reached the offset
        ("near", [view(1, "near", end=50)], 1),
        ("near", [view(1, "near", start=51)], None),  # the replica has deleted the offset
        ("near", [view(1, "near", start=50)], 1),
    ],
)
def test_the_nearest_replica_that_has_the_offset_is_chosen(
    rack: str, followers: list[ReplicaView], chosen: int | None
) -> None:
    assert preferred_read_replica(rack, 50, LEADER, followers) == chosen


def test_another_selector_may_decide() -> None:
    followers = [view(1, "near"), view(2, "near", end=10)]
    seen: list[set[int]] = []

    def first(rack: str, leader: ReplicaView, replicas: object) -> ReplicaView:
        assert isinstance(replicas, list)
        seen.append({each.broker_id for each in replicas})
        return replicas[0]

    assert preferred_read_replica("", 50, LEADER, followers, first) == 1
    assert seen == [{0, 1}]


views = st.builds(
    view,
    st.integers(1, 5),
    st.sampled_from(["", "near", "far"]),
    st.integers(0, 100),
    start=st.integers(0, 100),
    ago=st.integers(0, 3),
    in_sync=st.booleans(),
)


@given(
    st.sampled_from(["", "near", "far"]), st.integers(0, 100), st.lists(views, unique_by=lambda each: each.broker_id)
)
def test_the_chosen_replica_can_serve_and_is_near(rack: str, offset: int, followers: list[ReplicaView]) -> None:
    chosen = preferred_read_replica(rack, offset, replace(LEADER, rack="far"), followers)
    serving = [each for each in followers if each.is_in_sync and each.log_start_offset <= offset <= each.log_end_offset]
    nearby = [each.broker_id for each in serving if each.rack == rack]
    if rack in ("", "far") or not nearby:
        assert chosen is None
    else:
        assert chosen in nearby
