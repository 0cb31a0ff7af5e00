"""Tests of the transitions of a group's states."""

from __future__ import annotations

import itertools

import pytest

from millrace_broker.groups.states import TRANSITIONS, GroupState, GroupStateMachine

KAFKA_PREVIOUS_STATES = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY},
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: set(GroupState),
}
"""``GroupState.validPreviousStates`` of Kafka 3.9, by state."""


def machine_in(state: GroupState) -> GroupStateMachine:
    machine = GroupStateMachine()
    path = {
        GroupState.EMPTY: (),
        GroupState.PREPARING_REBALANCE: (GroupState.PREPARING_REBALANCE,),
        GroupState.COMPLETING_REBALANCE: (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE),
        GroupState.STABLE: (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE, GroupState.STABLE),
        GroupState.DEAD: (GroupState.DEAD,),
    }[state]
    for each in path:
        machine.transition_to(each)
    return machine


def test_transitions_are_those_of_kafka() -> None:
    previous = {state: {before for before in GroupState if state in TRANSITIONS[before]} for state in GroupState}
    assert previous == KAFKA_PREVIOUS_STATES


@pytest.mark.parametrize(("before", "after"), list(itertools.product(GroupState, GroupState)))
def test_a_transition_outside_the_table_is_refused(before: GroupState, after: GroupState) -> None:
    machine = machine_in(before)
    if after in TRANSITIONS[before]:
        machine.transition_to(after)
        assert machine.state is after
    else:
        with pytest.raises(AssertionError, match="to GroupState"):
            machine.transition_to(after)
        assert machine.state is before


def test_each_ended_rebalance_begins_the_next_generation() -> None:
    machine = GroupStateMachine()
    for protocol_name, state in (("range", GroupState.COMPLETING_REBALANCE), (None, GroupState.EMPTY)):
        before = machine.generation_id
        machine.transition_to(GroupState.PREPARING_REBALANCE)
        machine.next_generation(protocol_name)
        assert (machine.generation_id, machine.protocol_name, machine.state) == (before + 1, protocol_name, state)


def test_a_generation_begins_only_at_the_end_of_a_rebalance() -> None:
    machine = GroupStateMachine()
    with pytest.raises(AssertionError):
        machine.next_generation("range")
    assert machine.generation_id == 0


@pytest.mark.parametrize(
    ("has_members", "state", "protocol_name"), [(True, GroupState.STABLE, "range"), (False, GroupState.EMPTY, None)]
)
def test_a_group_is_restored_as_stable_if_it_has_members(
    has_members: bool, state: GroupState, protocol_name: str | None
) -> None:
    machine = GroupStateMachine()
    machine.restore(3, "consumer", "range", has_members=has_members)
    assert (machine.state, machine.generation_id) == (state, 3)
    assert (machine.protocol_type, machine.protocol_name) == ("consumer", protocol_name)


def test_only_a_new_group_is_restored() -> None:
    machine = machine_in(GroupState.STABLE)
    with pytest.raises(AssertionError):
        machine.restore(3, "consumer", "range", has_members=True)
