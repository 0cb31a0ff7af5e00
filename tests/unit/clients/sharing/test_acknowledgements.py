"""Model test of a share group member's acknowledgements against a plain dictionary."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.clients.model import TopicPartition
from millrace.clients.sharing.acknowledgements import AcknowledgeType, InHand, Run
from millrace.errors import InvalidRecordStateError

PARTITION = TopicPartition("t", 0)
SAID = st.sampled_from([AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT])


@given(
    st.sets(st.integers(0, 60)),
    st.sets(st.integers(0, 60)),
    st.lists(st.tuples(st.integers(0, 60), SAID)),
    st.booleans(),
)
def test_acknowledgements_are_sent_once_in_runs(
    acquired: set[int], present: set[int], said: list[tuple[int, AcknowledgeType]], rest: bool
) -> None:
    hand = InHand(PARTITION)
    hand.received([range(offset, offset + 1) for offset in sorted(acquired)], present)
    expected: dict[int, AcknowledgeType] = dict.fromkeys(acquired - present, AcknowledgeType.GAP)
    for offset, what in said:
        if offset in acquired & present:
            hand.say(offset, what)
            expected[offset] = what
        else:
            with pytest.raises(InvalidRecordStateError):
                hand.say(offset, what)
    if rest:
        hand.say_of_the_rest(AcknowledgeType.ACCEPT)
        expected = {**dict.fromkeys(acquired & present, AcknowledgeType.ACCEPT), **expected}
    assert hand.unsaid == len(acquired) - len(expected)
    runs = hand.take()
    assert {offset: run.type for run in runs for offset in range(run.first, run.last + 1)} == expected
    assert runs == sorted(runs, key=lambda run: run.first)
    for before, after in itertools.pairwise(runs):
        assert before.last + 1 < after.first or before.type is not after.type
    assert not hand.take()


def test_runs_join_neighbours_of_one_kind() -> None:
    hand = InHand(PARTITION)
    hand.received([range(6)], [0, 1, 3, 4, 5])
    hand.say_of_the_rest(AcknowledgeType.ACCEPT)
    assert hand.take() == [
        Run(0, 1, AcknowledgeType.ACCEPT),
        Run(2, 2, AcknowledgeType.GAP),
        Run(3, 5, AcknowledgeType.ACCEPT),
    ]
