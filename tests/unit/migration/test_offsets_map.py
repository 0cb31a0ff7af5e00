"""Model test of the map of offsets against a list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import UsageError
from millrace.migration.offsets_map import OffsetsMap, Run, runs_of

GAPS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=40)


def places_of(gaps):
    """Return source and destination offsets that grow by these steps."""
    old = new = 100
    places = []
    for step, other in gaps:
        old, new = old + step, new + other
        places.append((old, new))
    return places


@given(GAPS, st.lists(st.integers(0, 40), max_size=4), st.integers(0, 5))
def test_the_map_has_every_record_for_any_copied_batches(gaps, cuts, trailing):
    places = places_of(gaps)
    found, position = OffsetsMap(), 0
    for cut in [*sorted(cuts), len(places)]:
        part, position = places[position:cut], max(position, cut)
        if part:
            found = found.extended(runs_of(part), part[-1][0] + 1)
    next_old = (places[-1][0] + 1 if places else 100) + trailing
    found = found.extended([], next_old)
    assert [(run.old + n, run.new + n) for run in found.runs for n in range(run.length)] == places
    assert list(found.runs) == runs_of(places), "runs are joined over transactions"
    for old in range(95, next_old + 1):
        after = [new for there, new in places if there >= old]
        assert found.new_offset(old) == (after[0] if after else found.end)
    with pytest.raises(UsageError, match="is not copied yet"):
        found.new_offset(next_old + 1)


def test_runs_that_do_not_follow_are_refused():
    found = OffsetsMap().extended([Run(10, 0, 5)], 15)
    for runs, next_old in (([Run(14, 5, 1)], 16), ([Run(15, 4, 1)], 16), ([Run(15, 5, 1)], 15), ([], 14)):
        with pytest.raises(ValueError, match=r"does not follow|cannot go back"):
            found.extended(runs, next_old)


def test_nothing_was_copied():
    assert OffsetsMap().new_offset(0) == 0
    with pytest.raises(UsageError, match="the copy ends before offset 0"):
        OffsetsMap().new_offset(1)
