"""Next step of a member towards its target assignment (Kafka's ``CurrentAssignmentBuilder``).

Invariants

- A member gets a partition only if no other member owns it or has yet to revoke it.
- A member keeps its epoch until it has revoked the partitions that are no longer its own. Revocation comes before
  assignment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from millrace.errors import FencedMemberEpochError
from millrace_broker.groups.consumer.members import NO_PARTITIONS, ConsumerMember, MemberState, Partition, Partitions


def reconcile(
    member: ConsumerMember,
    *,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[Partition], bool],
) -> ConsumerMember:
    """Return the member after its next step.

    ``owned`` has the partitions that the client reports, None if it reports none. ``is_free`` tells whether no other
    member has a partition. Raises ``FencedMemberEpochError`` for a member in an unknown state that owns partitions.
    """
    if member.state is MemberState.STABLE:
        if member.epoch == target_epoch:
            return member
        return _step(member, member.epoch, target, target_epoch, owned, is_free)
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _owns(owned, member.revoking):
            return member
        return _step(member, member.epoch + 1, target, target_epoch, owned, is_free)
    if member.state is MemberState.UNRELEASED_PARTITIONS:
        return _step(member, member.epoch, target, target_epoch, owned, is_free)
    if owned is None or owned:
        raise FencedMemberEpochError(
            f"member {member.member_id} is in a state that a newer broker wrote: give up its partitions, and join again"
        )
    return _step(member, target_epoch, target, target_epoch, owned, is_free)


def _owns(owned: Partitions | None, revoking: Partitions) -> bool:
    """Return whether a client may still own some of these partitions."""
    return owned is None or bool(owned & revoking)


def _step(
    member: ConsumerMember,
    epoch: int,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[Partition], bool],
) -> ConsumerMember:
    kept = member.assigned & target
    revoking = member.assigned - target
    missing = target - kept
    if revoking and _owns(owned, revoking):
        state, assigned = MemberState.UNREVOKED_PARTITIONS, kept
    else:
        free = frozenset(partition for partition in missing if is_free(partition))
        state = MemberState.STABLE if free == missing else MemberState.UNRELEASED_PARTITIONS
        epoch, assigned, revoking = target_epoch, kept | free, NO_PARTITIONS
    if (state, epoch, assigned, revoking) == (member.state, member.epoch, member.assigned, member.revoking):
        return member
    return replace(member, state=state, epoch=epoch, previous_epoch=member.epoch, assigned=assigned, revoking=revoking)
