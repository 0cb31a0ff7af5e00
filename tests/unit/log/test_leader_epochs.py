"""Tests of leader epochs at their start offsets. The conformance tests have Kafka's own cases."""

from __future__ import annotations

import pytest

from millrace_broker.log.leader_epochs import LeaderEpochs

ENTRIES = ((2, 10), (4, 20), (7, 30))


@pytest.mark.parametrize(
    ("epoch", "start", "expected"),
    [
        (7, 29, ((2, 10), (4, 20), (7, 29))), (7, 30, None), (7, 31, None),
        (8, 30, ((2, 10), (4, 20), (8, 30))), (8, 31, (*ENTRIES, (8, 31))), (8, 29, ((2, 10), (4, 20), (8, 29))),
        (6, 40, ((2, 10), (4, 20), (6, 40))), (4, 20, ((2, 10), (4, 20))), (5, 20, ((2, 10), (5, 20))),
        (0, 0, ((0, 0),)), (1, 9, ((1, 9),)), (2, 10, ((2, 10),)), (3, 10, ((3, 10),)),
    ],
)  # fmt: skip
def test_a_new_epoch_takes_the_place_of_those_it_contradicts(
    epoch: int, start: int, expected: tuple[tuple[int, int], ...] | None
) -> None:
    epochs = LeaderEpochs(ENTRIES)
    assert epochs.assign(epoch, start) is (expected is not None)
    assert epochs.entries == (expected or ENTRIES)
    assert epochs.latest == epochs.entries[-1][0]


@pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (0, -1)])
def test_no_epoch_and_no_offset_is_negative(epoch: int, start: int) -> None:
    with pytest.raises(ValueError, match="neither may be negative"):
        LeaderEpochs().assign(epoch, start)


@pytest.mark.parametrize(("end", "left"), [(-1, 3), (0, 0), (10, 0), (11, 1), (20, 1), (30, 2), (31, 3)])
def test_epochs_that_begin_at_or_after_the_end_are_forgotten(end: int, left: int) -> None:
    epochs = LeaderEpochs(ENTRIES)
    assert epochs.truncate_end(end) is (left != 3)
    assert epochs.entries == ENTRIES[:left]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (9, None), (10, None), (11, ((2, 11), (4, 20), (7, 30))), (19, ((2, 19), (4, 20), (7, 30))),
        (20, ((4, 20), (7, 30))), (29, ((4, 29), (7, 30))), (30, ((7, 30),)), (31, ((7, 31),)),
    ],
)  # fmt: skip
def test_after_a_deletion_the_epoch_of_the_log_start_begins_there(
    start: int, expected: tuple[tuple[int, int], ...] | None
) -> None:
    epochs = LeaderEpochs(ENTRIES)
    assert epochs.truncate_start(start) is (expected is not None)
    assert epochs.entries == (expected or ENTRIES)


@pytest.mark.parametrize(
    ("offset", "epoch"), [(9, None), (10, 2), (11, 2), (19, 2), (20, 4), (29, 4), (30, 7), (31, 7)]
)
def test_an_offset_has_the_epoch_that_began_last_before_it(offset: int, epoch: int | None) -> None:
    assert LeaderEpochs(ENTRIES).epoch_of(offset) == epoch


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(-1, None), (0, (0, 10)), (1, (1, 10)), (2, (2, 20)), (3, (2, 20)), (4, (4, 30)), (6, (4, 30)), (7, (7, 35)),
     (8, None)],
)  # fmt: skip
def test_an_epoch_ends_where_the_next_one_begins(epoch: int, expected: tuple[int, int] | None) -> None:
    assert LeaderEpochs(ENTRIES).end_offset_of(epoch, 35) == expected
    assert LeaderEpochs().end_offset_of(epoch, 35) is None


def test_nothing_is_known_of_cleared_epochs() -> None:
    epochs = LeaderEpochs(ENTRIES)
    epochs.clear()
    assert (epochs.entries, epochs.latest, epochs.epoch_of(40)) == ((), None, None)
