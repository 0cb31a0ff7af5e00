"""States of a consumer group and the transitions between them.

Kafka has them in ``GroupState`` and ``GroupMetadata.transitionTo``.

Invariants, asserted by the methods of ``GroupStateMachine``, which alone change state and generation:

- The state changes only as ``TRANSITIONS`` says.
- The generation id grows by one with each rebalance that ends, and at no other time.
- A group has an assignor from the end of a rebalance with members until the end of one without.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class GroupState(Enum):
    """State of a group, with Kafka's name."""

    EMPTY = "Empty"
    """The group has no members. It may have committed offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are joining. Members of the last generation have to join again."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """All members have joined. The assignment of the group's leader is missing."""
    STABLE = "Stable"
    """Each member can get its assignment."""
    DEAD = "Dead"
    """The group is deleted, or this broker no longer coordinates it."""


TRANSITIONS: Final[Mapping[GroupState, Mapping[GroupState, str]]] = {
    GroupState.EMPTY: {
        GroupState.PREPARING_REBALANCE: "the first member joins",
        GroupState.DEAD: "the group is deleted or expires, or another broker coordinates it",
    },
    GroupState.PREPARING_REBALANCE: {
        GroupState.COMPLETING_REBALANCE: "all members have joined, or the rebalance timeout ends",
        GroupState.EMPTY: "the last member has left",
        GroupState.DEAD: "another broker coordinates the group",
    },
    GroupState.COMPLETING_REBALANCE: {
        GroupState.STABLE: "the leader's assignment is in the log",
        GroupState.PREPARING_REBALANCE: "a member joins, leaves or times out, or the assignment cannot be written",
        GroupState.DEAD: "another broker coordinates the group",
    },
    GroupState.STABLE: {
        GroupState.PREPARING_REBALANCE: "a member joins, leaves or times out",
        GroupState.DEAD: "another broker coordinates the group",
    },
    GroupState.DEAD: {
        GroupState.DEAD: "a group that is being deleted moves to another broker",
    },
}
"""Each state with the states that may follow it, and the event that leads there."""


class GroupStateMachine:
    """State, generation and protocol of one group."""

    def __init__(self) -> None:
        self._state = GroupState.EMPTY
        self._generation_id = 0
        self._protocol_name: str | None = None
        self.protocol_type = ""
        """``consumer`` for consumer groups; empty until the first member joins."""

    @property
    def state(self) -> GroupState:
        """The present state."""
        return self._state

    @property
    def generation_id(self) -> int:
        """The number of rebalances that have ended."""
        return self._generation_id

    @property
    def protocol_name(self) -> str | None:
        """The assignor of the present generation; None without members."""
        return self._protocol_name

    def restore(self, generation_id: int, protocol_type: str, protocol_name: str | None, *, has_members: bool) -> None:
        """Set the state of a group that was read from the log."""
        assert self._state is GroupState.EMPTY, self._state
        assert self._generation_id == 0, self._generation_id
        self._generation_id = generation_id
        self.protocol_type = protocol_type
        self._protocol_name = protocol_name if has_members else None
        self._state = GroupState.STABLE if has_members else GroupState.EMPTY

    def transition_to(self, state: GroupState) -> None:
        """Change the state."""
        assert state in TRANSITIONS[self._state], f"{self._state} to {state}"
        self._state = state

    def next_generation(self, protocol_name: str | None) -> None:
        """End a rebalance (Kafka's ``initNextGeneration``); ``protocol_name`` is None for a group without members."""
        self.transition_to(GroupState.EMPTY if protocol_name is None else GroupState.COMPLETING_REBALANCE)
        self._generation_id += 1
        self._protocol_name = protocol_name
