"""Writes of one group's record that have not ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from millrace_broker.groups.effects import Effects, StoredGroup
from millrace_broker.groups.members import GroupMembers, MemberMetadata
from millrace_broker.groups.requests import Protocols
from millrace_broker.groups.states import GroupStateMachine


@dataclass(frozen=True, slots=True)
class ReplacedMember:
    """Static member that was given to a new process.

    The other fields are the member's state before. The state is restored if the write fails.
    """

    member: MemberMetadata
    old_member_id: str
    old_protocols: Protocols
    old_session_timeout_ms: int
    old_rebalance_timeout_ms: int


@dataclass(frozen=True, slots=True)
class RecordWrite:
    """Write of an assignment, or of the replacement of a static member."""

    generation_id: int
    assignments: Mapping[str, bytes]
    replaced: ReplacedMember | None = None


class RecordWrites:
    """Writes of one group's record, by token."""

    def __init__(self, machine: GroupStateMachine, members: GroupMembers, effects: Effects) -> None:
        self._machine: Final = machine
        self._members: Final = members
        self._effects: Final = effects
        self._writes: Final[dict[int, RecordWrite]] = {}
        self._next_token = 0

    def start(self, assignments: Mapping[str, bytes], replaced: ReplacedMember | None = None) -> None:
        """Append the group's record, with the assignments of its members."""
        token, self._next_token = self._next_token, self._next_token + 1
        self._writes[token] = RecordWrite(self._machine.generation_id, assignments, replaced)
        self._effects.store(token, self.record_content(assignments))

    def end(self, token: int) -> RecordWrite:
        """Return the write that has ended or failed, and forget it."""
        return self._writes.pop(token)

    @property
    def has_assignment(self) -> bool:
        """True if the assignment of the present generation is being written. A second assignment is ignored then."""
        return any(
            write.generation_id == self._machine.generation_id and write.replaced is None
            for write in self._writes.values()
        )

    def record_content(self, assignments: Mapping[str, bytes]) -> StoredGroup:
        """Return the group as its record holds it."""
        name = self._machine.protocol_name or ""
        return StoredGroup(
            protocol_type=self._machine.protocol_type,
            generation_id=self._machine.generation_id,
            protocol_name=self._machine.protocol_name,
            leader=self._members.leader,
            members=tuple(member.stored(name, assignments.get(member.member_id, b"")) for member in self._members),
        )
