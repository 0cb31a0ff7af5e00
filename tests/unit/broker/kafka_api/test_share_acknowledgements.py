"""Tests of acknowledgements of Kafka's share consumers.

The acknowledgements have the form in which the broker's handlers get them.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import InvalidRequestError
from millrace.kafka_protocol.calls.share_fetch import AcknowledgementBatch
from millrace_broker.kafka_api.share_acknowledgements import _check, _runs, key_of


def batch(first: int, last: int, *types: int) -> AcknowledgementBatch:
    return AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)


@given(first=st.integers(0, 2**62), types=st.lists(st.integers(0, 4), min_size=1, max_size=20))
def test_runs_have_the_type_of_each_offset(first: int, types: list[int]) -> None:
    last = first + len(types) - 1
    runs = list(_runs(batch(first, last, *types)))
    found = {offset: run.type for run in runs for offset in range(run.first_offset, run.last_offset + 1)}
    assert found == dict(zip(range(first, last + 1), types, strict=True))
    assert all(before.type != after.type for before, after in pairwise(runs))


def test_one_type_is_that_of_all_offsets() -> None:
    (run,) = _runs(batch(3, 2**40, 2))
    assert (run.first_offset, run.last_offset, run.type) == (3, 2**40, 2)


@pytest.mark.parametrize(
    "batches",
    [
        [batch(5, 4, 1)],
        [batch(0, 9, 1), batch(5, 12, 1)],
        [batch(0, 4)],
        [batch(0, 4, 1, 1)],
        [batch(0, 0, 5)],
        [batch(0, 0, -1)],
    ],
    ids=["reversed", "overlapping", "no type", "too few types", "unknown type", "negative type"],
)
def test_acknowledgements_that_kafka_refuses_are_refused(batches: list[AcknowledgementBatch]) -> None:
    with pytest.raises(InvalidRequestError):
        _check(batches, is_renewal=False, version=2)


def test_locks_are_renewed_only_by_requests_that_say_so() -> None:
    renewal = [batch(0, 0, 4)]
    _check(renewal, is_renewal=True, version=2)
    with pytest.raises(InvalidRequestError, match="IsRenewAck"):
        _check(renewal, is_renewal=False, version=2)
    with pytest.raises(InvalidRequestError, match="known are 0 to 3"):
        _check(renewal, is_renewal=True, version=1)


@pytest.mark.parametrize("member_id", [None, "", "x" * 37])
def test_member_ids_that_kafka_refuses_are_refused(member_id: str | None) -> None:
    with pytest.raises(InvalidRequestError, match="member id"):
        key_of("g", member_id)
    with pytest.raises(InvalidRequestError, match="group id"):
        key_of(None, "m")
