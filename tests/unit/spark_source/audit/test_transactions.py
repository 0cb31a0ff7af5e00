"""Tests of the audit's verdict on a batch.

The verdict follows from checkpoint, table and topic. If these cannot decide, the verdict says so.
"""

import uuid

import pytest

from pyspark_millrace.audit.topic_log import Holding
from pyspark_millrace.audit.transactions import Evidence, Landing, Verdict, judge
from pyspark_millrace.checkpoints.query_log import LoggedBatch
from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.offsets import OffsetRange

RANGE = OffsetRange(PartitionKey("t", 0), uuid.UUID(int=7), 10, 20)


def verdict(*landings, readable=((10, 20),), lost=(), floor=-1, counts=True, compacted=False, **batch):
    evidence = Evidence(
        {3: [landing if isinstance(landing, Landing) else Landing(8, landing, False) for landing in landings]},
        floor,
        counts,
        lambda _: Holding(readable, lost),
        lambda _: compacted,
    )
    given = {"batch_id": 3, "ranges": (RANGE,), "end": (), "is_done": True, "is_reset": False} | batch
    return judge(LoggedBatch(**given), evidence).verdict


def never(_):
    raise AssertionError("the audit need not ask the topic")


def test_a_row_for_each_offset_proves_itself():
    evidence = Evidence({3: [Landing(8, 10, False)]}, -1, True, never, never)
    assert judge(LoggedBatch(3, (RANGE,), (), True, False), evidence).verdict is Verdict.ONCE


@pytest.mark.parametrize(
    ("rows", "case", "expected"),
    [
        (11, {}, Verdict.DOUBLED),
        (9, {}, Verdict.MISSING),
        (7, {"readable": ((10, 14), (15, 18))}, Verdict.ONCE),
        (8, {"readable": ((10, 14), (15, 18))}, Verdict.DOUBLED),
        (8, {"readable": ((10, 14), (15, 18)), "compacted": True}, Verdict.UNVERIFIABLE),
        (6, {"readable": ((10, 14), (15, 18)), "compacted": True}, Verdict.MISSING),
        (6, {"readable": ((15, 20),), "lost": ((10, 15),)}, Verdict.UNVERIFIABLE),
        (4, {"readable": ((15, 20),), "lost": ((10, 15),)}, Verdict.MISSING),
        (10, {"readable": (), "lost": ((10, 20),)}, Verdict.ONCE),
        (3, {"counts": False}, Verdict.ONCE),
        (None, {}, Verdict.UNVERIFIABLE),
        (10, {"ranges": None}, Verdict.UNVERIFIABLE),
        (10, {"is_done": False}, Verdict.ONCE),
        (Landing(8, 2, True), {}, Verdict.ONCE),
    ],
)
def test_a_batch_in_one_version_is_judged_by_its_rows(rows, case, expected):
    assert verdict(rows, **case) is expected


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({}, Verdict.MISSING),
        ({"readable": ()}, Verdict.NOTHING),
        ({"readable": (), "lost": ((10, 20),)}, Verdict.UNVERIFIABLE),
        ({"readable": ((15, 20),), "lost": ((10, 15),)}, Verdict.MISSING),
        ({"is_done": False}, Verdict.PENDING),
        ({"floor": 3}, Verdict.UNVERIFIABLE),
        ({"floor": 2}, Verdict.MISSING),
        ({"ranges": None}, Verdict.UNVERIFIABLE),
        ({"ranges": ()}, Verdict.NOTHING),
        ({"is_reset": True, "ranges": ()}, Verdict.NOTHING),
    ],
)
def test_a_batch_in_no_version_is_judged_by_its_expected_rows(case, expected):
    assert verdict(**case) is expected


def test_a_batch_in_two_versions_is_doubled():
    assert verdict(5, 5) is Verdict.DOUBLED
    assert verdict(5, 5, counts=False) is Verdict.DOUBLED
