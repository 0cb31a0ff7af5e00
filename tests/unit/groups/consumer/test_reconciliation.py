"""Steps of a member towards its target assignment."""

from __future__ import annotations

import uuid

import pytest

from millrace.errors import FencedMemberEpochError
from millrace_broker.groups.consumer.members import ConsumerMember, MemberState, Partitions
from millrace_broker.groups.consumer.reconciliation import reconcile

TOPIC = uuid.UUID(int=1)
STABLE, UNREVOKED = MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS
UNRELEASED, UNKNOWN = MemberState.UNRELEASED_PARTITIONS, MemberState.UNKNOWN


def partitions(digits: str) -> Partitions:
    return frozenset((TOPIC, int(digit)) for digit in digits)


def member(state: MemberState, epoch: int, assigned: str, revoking: str = "") -> ConsumerMember:
    return ConsumerMember(
        member_id="m",
        state=state,
        epoch=epoch,
        previous_epoch=2,
        assigned=partitions(assigned),
        revoking=partitions(revoking),
    )


def step(before: ConsumerMember, target: str, owned: str | None, taken: str = "") -> ConsumerMember:
    """Make a step towards a target assignment of epoch 6. Other members own the partitions ``taken``."""
    return reconcile(
        before,
        target=partitions(target),
        target_epoch=6,
        owned=None if owned is None else partitions(owned),
        is_free=lambda partition: partition not in partitions(taken),
    )


@pytest.mark.parametrize(
    ("before", "target", "owned", "taken"),
    [
        (member(STABLE, 6, "01"), "01", None, ""),
        (member(UNREVOKED, 3, "0", "12"), "0", None, ""),
        (member(UNREVOKED, 3, "0", "12"), "0", "02", ""),
        (member(UNRELEASED, 6, "0"), "01", "0", "1"),
    ],
    ids=["has its target", "reports nothing", "has revoked some only", "waits for another"],
)
def test_a_member_that_cannot_go_on_stays_as_it_is(
    before: ConsumerMember, target: str, owned: str | None, taken: str
) -> None:
    assert step(before, target, owned, taken) is before


@pytest.mark.parametrize(
    ("before", "target", "owned", "taken", "state", "epoch", "assigned", "revoking"),
    [
        (member(STABLE, 3, "0"), "012", None, "", STABLE, 6, "012", ""),
        (member(STABLE, 3, "0"), "012", None, "2", UNRELEASED, 6, "01", ""),
        (member(STABLE, 3, "012"), "03", None, "", UNREVOKED, 3, "0", "12"),
        (member(STABLE, 3, "012"), "03", "02", "", UNREVOKED, 3, "0", "12"),
        (member(STABLE, 3, "012"), "03", "0", "", STABLE, 6, "03", ""),
        (member(UNREVOKED, 3, "0", "12"), "03", "0", "", STABLE, 6, "03", ""),
        (member(UNREVOKED, 3, "0", "12"), "03", "0", "3", UNRELEASED, 6, "0", ""),
        (member(UNREVOKED, 3, "01", "2"), "03", "01", "", UNREVOKED, 4, "0", "1"),
        (member(UNRELEASED, 6, "0"), "012", "0", "2", UNRELEASED, 6, "01", ""),
        (member(UNRELEASED, 6, "0"), "012", None, "", STABLE, 6, "012", ""),
        (member(UNRELEASED, 5, "01"), "02", "01", "", UNREVOKED, 5, "0", "1"),
        (member(UNKNOWN, 3, "01"), "02", "", "", STABLE, 6, "02", ""),
    ],
)
def test_a_member_revokes_first_and_then_gets_what_is_free(
    before: ConsumerMember,
    target: str,
    owned: str | None,
    taken: str,
    state: MemberState,
    epoch: int,
    assigned: str,
    revoking: str,
) -> None:
    after = step(before, target, owned, taken)
    assert (after.state, after.epoch, after.previous_epoch) == (state, epoch, before.epoch)
    assert (after.assigned, after.revoking) == (partitions(assigned), partitions(revoking))


@pytest.mark.parametrize("owned", [None, "0"])
def test_a_member_in_an_unknown_state_is_fenced_while_it_may_own_partitions(owned: str | None) -> None:
    with pytest.raises(FencedMemberEpochError, match="that a newer broker wrote"):
        step(member(UNKNOWN, 3, "0"), "0", owned)
