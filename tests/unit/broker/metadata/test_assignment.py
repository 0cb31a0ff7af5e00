"""Tests of replica assignment.

The replicas are spread evenly, and a refusal names its cause.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
)
from millrace_broker.metadata.assignment import (
    BrokerRack,
    assign_more_partitions,
    assign_replicas,
    check_assignment,
)

BROKERS = [BrokerRack(n) for n in (1, 2, 3)]


class Drawn(random.Random):
    """Random numbers that a test sets.

    The numbers are the leader of partition 0 and the first shift.
    """

    def __new__(cls, *_: int) -> Drawn:
        return super().__new__(cls)

    def __init__(self, *numbers: int) -> None:
        super().__init__(0)
        self._numbers = iter(numbers)

    def randrange(self, *_: int) -> int:
        return next(self._numbers)


def test_replicas_are_assigned_as_in_the_worked_example() -> None:
    assert assign_replicas(BROKERS, 6, 3, chance=Drawn(1, 2)) == {
        0: (2, 3, 1), 1: (3, 1, 2), 2: (1, 2, 3), 3: (2, 1, 3), 4: (3, 2, 1), 5: (1, 3, 2),
    }  # fmt: skip


def test_replicas_are_assigned_as_in_the_examples_of_kafkas_documentation() -> None:
    brokers = [BrokerRack(number) for number in range(5)]
    assert assign_replicas(brokers, 10, 3, start_index=0) == {
        0: (0, 1, 2), 1: (1, 2, 3), 2: (2, 3, 4), 3: (3, 4, 0), 4: (4, 0, 1),
        5: (0, 2, 3), 6: (1, 3, 4), 7: (2, 4, 0), 8: (3, 0, 1), 9: (4, 1, 2),
    }  # fmt: skip
    racks = ["rack1", "rack3", "rack3", "rack2", "rack2", "rack1"]
    brokers = [BrokerRack(number, rack) for number, rack in enumerate(racks)]
    assert assign_replicas(brokers, 12, 3, start_index=0) == {
        0: (0, 3, 1), 1: (3, 1, 5), 2: (1, 5, 4), 3: (5, 4, 2), 4: (4, 2, 0), 5: (2, 0, 3),
        6: (0, 4, 2), 7: (3, 2, 0), 8: (1, 0, 3), 9: (5, 3, 1), 10: (4, 1, 5), 11: (2, 5, 4),
    }  # fmt: skip


def test_more_partitions_continue_from_where_partition_0_is_led() -> None:
    existing = {0: (3, 1), 1: (1, 2), 2: (2, 3)}
    assert assign_more_partitions(BROKERS, existing, 5) == {3: (3, 2), 4: (1, 3)}
    assert assign_more_partitions(list(reversed(BROKERS)), existing, 5) == {3: (3, 2), 4: (1, 3)}


@pytest.mark.parametrize(
    ("partitions", "factor", "error"),
    [
        (0, 1, InvalidPartitionsError),
        (1, 0, InvalidReplicationFactorError),
        (1, 4, InvalidReplicationFactorError),
    ],
)
def test_a_topic_has_partitions_and_each_of_its_replicas_a_broker(
    partitions: int, factor: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        assign_replicas(BROKERS, partitions, factor)
    assert len(assign_replicas(BROKERS, 1, 3)[0]) == 3
    assert len(assign_replicas(BROKERS, 1, 1)[0]) == 1


def test_either_all_brokers_have_a_rack_or_none() -> None:
    with pytest.raises(InvalidReplicaAssignmentError, match=r"brokers \[2\] have no rack"):
        assign_replicas([BrokerRack(1, "a"), BrokerRack(2)], 1, 1)


def test_a_topic_whose_first_leader_has_the_greatest_id_continues_with_the_first_broker() -> None:
    assert assign_more_partitions(BROKERS[:2], {0: (9, 1)}, 2) == {1: (2, 1)}


def test_a_topic_without_partition_0_does_not_grow() -> None:
    with pytest.raises(InvalidReplicaAssignmentError, match="partition 0 is missing"):
        assign_more_partitions(BROKERS, {1: (1,), 2: (2,)}, 5)
    assert assign_more_partitions(BROKERS, {0: (1,)}, 2) == {1: (2,)}


@pytest.mark.parametrize("count", [3, 2, 0])
def test_partitions_can_only_grow(count: int) -> None:
    with pytest.raises(InvalidPartitionsError, match="can only grow"):
        assign_more_partitions(BROKERS, {0: (1,), 1: (2,), 2: (3,)}, count)


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ({0: (1, 2), 2: (2, 3)}, "expected"),
        ({0: (1, 1)}, "each broker once"),
        ({0: ()}, "each broker once"),
        ({0: (1, 9)}, r"brokers \[9\] are unknown"),
        ({0: (1, 2), 1: (1,)}, "others have 2"),
    ],
)
def test_an_assignment_that_cannot_be_carried_out_is_refused(
    assignment: dict[int, tuple[int, ...]], complaint: str
) -> None:
    with pytest.raises(InvalidReplicaAssignmentError, match=complaint):
        check_assignment(assignment, {1, 2, 3})


def test_an_assignment_of_further_partitions_has_the_topics_replication_factor() -> None:
    check_assignment({3: (1, 2)}, {1, 2, 3}, first_partition=3, replication_factor=2)
    with pytest.raises(InvalidReplicaAssignmentError, match="others have 2"):
        check_assignment({3: (1,)}, {1, 2, 3}, first_partition=3, replication_factor=2)


@given(
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=9),
    st.integers(1, 20),
    st.integers(1, 9),
    st.integers(),
)
def test_racks_and_brokers_are_used_before_any_gets_a_second_replica(
    racks: list[str], partitions: int, factor: int, seed: int
) -> None:
    brokers = [BrokerRack(number, rack) for number, rack in enumerate(racks)]
    factor = min(factor, len(brokers))
    assigned = assign_replicas(brokers, partitions, factor, chance=random.Random(seed))
    check_assignment(assigned, range(len(brokers)), replication_factor=factor)
    for replicas in assigned.values():
        assert len({racks[broker] for broker in replicas}) == min(factor, len(set(racks)))
    leaders = Counter(replicas[0] for replicas in assigned.values())
    assert max(leaders.values()) - min(leaders[n] for n in range(len(brokers))) <= 1
