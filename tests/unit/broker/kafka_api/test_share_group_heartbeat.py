"""Tests of ShareGroupHeartbeat for a group of another broker.

The tests check the answer to its member.
"""

from __future__ import annotations

from uuid import UUID

from millrace.kafka_protocol.calls.share_group_heartbeat import Assignment, TopicPartitions
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.kafka_api.share_group_heartbeat import assignment_of


def test_topics_have_the_ids_that_the_coordinator_knows() -> None:
    """The broker that a client calls may not know the topic yet, or know an earlier one of the same name."""
    answer = pb.ShareGroupHeartbeatResponse(has_assignment=True)
    answer.assignment.add(name="orders", partitions=(0, 2), topic_id=UUID(int=7).bytes)
    expected = TopicPartitions(topic_id=UUID(int=7), partitions=(0, 2))
    assert assignment_of(answer, {}) == Assignment(topic_partitions=(expected,))
