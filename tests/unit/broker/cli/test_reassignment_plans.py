"""Tests of reassignment plans in the format of Kafka's tool."""

from __future__ import annotations

import json

import pytest

from millrace.clients import TopicPartition
from millrace.clients.cluster_operations import Reassignment
from millrace.errors import InvalidReplicationFactorError, UsageError
from millrace_broker.cli.reassignment_plans import (
    FOLLOWER_THROTTLED,
    LEADER_THROTTLED,
    moves,
    plan_json,
    propose,
    read_plan,
    read_topics,
    standing,
    throttled_replicas,
)
from millrace_broker.metadata.assignment import BrokerRack

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_plan_is_written_as_it_is_read() -> None:
    plan = {ONE: (1, 2), TWO: (2, 3)}
    text = plan_json(plan)
    assert json.loads(text)["partitions"][0] == {
        "topic": "t",
        "partition": 0,
        "replicas": [1, 2],
        "log_dirs": ["any", "any"],
    }
    assert read_plan(text) == plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not a JSON object"),
        ("{", "not valid JSON"),
        ('{"version": 2, "partitions": []}', "version 2"),
        ('{"partitions": []}', "no partitions"),
        ('{"partitions": [{"topic": "t"}]}', "invalid plan"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": ["x"]}]}', "invalid plan"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}', "each broker once"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}', "each broker once"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/d"]}]}', "log_dirs"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]},'
            '{"topic": "t", "partition": 0, "replicas": [2]}]}',
            "twice",
        ),
    ],
)
def test_an_invalid_plan_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_plan(text)


def test_a_file_of_topics_to_move_is_read_or_refused() -> None:
    assert read_topics('{"version": 1, "topics": [{"topic": "a"}, {"topic": "b"}]}') == ["a", "b"]
    with pytest.raises(UsageError, match="invalid list of topics"):
        read_topics('{"topics": ["a"]}')


def test_a_proposal_keeps_the_number_of_replicas_and_spreads_over_the_brokers_given() -> None:
    present = {TopicPartition("t", n): (9, 8) for n in range(4)} | {TopicPartition("u", 0): (9,)}
    proposed = propose(present, [BrokerRack(each) for each in (1, 2, 3, 4)], start_index=0)
    assert {each: len(replicas) for each, replicas in proposed.items()} == {
        each: len(replicas) for each, replicas in present.items()
    }
    assert [proposed[TopicPartition("t", n)][0] for n in range(4)] == [1, 2, 3, 4]
    with pytest.raises(InvalidReplicationFactorError):
        propose(present, [BrokerRack(1)])


def test_each_partition_of_a_plan_has_the_state_of_its_move() -> None:
    three, four = TopicPartition("t", 2), TopicPartition("t", 3)
    plan = {ONE: (1, 2), TWO: (2, 3), three: (1,), four: (1,)}
    found = standing(plan, {ONE: (1, 2), TWO: (2, 3, 1), three: (3,)}, [TWO])
    assert [each.state for each in found] == ["complete", "in progress", "elsewhere", "gone"]


def test_a_throttle_names_the_old_and_the_new_replicas() -> None:
    options = throttled_replicas(moves({ONE: (1, 2, 3), TWO: (1, 2)}, {ONE: (1, 4), TWO: (2, 1)}, {}))
    assert options == {"t": {LEADER_THROTTLED: "0:1,0:4", FOLLOWER_THROTTLED: "0:2,0:3"}}


def test_partitions_in_a_move_keep_their_throttle_when_further_moves_begin() -> None:
    """Check that partitions which already move keep their throttle.

    This includes moves to other brokers than planned: throttles name the old replicas as senders, not the replicas of
    the abandoned plan.
    """
    other = TopicPartition("u", 5)
    moving = {
        ONE: Reassignment(replicas=(3, 1), adding=(3,), removing=(1,)),
        other: Reassignment(replicas=(7, 6), adding=(7,), removing=()),
    }
    options = throttled_replicas(moves({TWO: (2,)}, {ONE: (3, 1), TWO: (1,)}, moving))
    assert options["t"] == {LEADER_THROTTLED: "0:1,1:1", FOLLOWER_THROTTLED: "0:3,1:2"}
    assert options["u"] == {LEADER_THROTTLED: "5:6", FOLLOWER_THROTTLED: "5:7"}
    changed = throttled_replicas(moves({ONE: (2,)}, {ONE: (3, 1)}, moving))
    assert changed["t"] == {LEADER_THROTTLED: "0:1", FOLLOWER_THROTTLED: "0:2"}
