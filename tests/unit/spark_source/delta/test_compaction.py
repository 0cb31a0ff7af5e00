"""Tests of the time of a compaction.

Files are compacted after so many batches (counted over restarts), seconds or bytes, by the first that is reached.
"""

import pytest

from millrace.errors import UsageError
from pyspark_millrace.delta.batches import append, in_turn, upsert
from pyspark_millrace.delta.compaction import Compaction


@pytest.mark.parametrize(
    ("compaction", "due"),
    [
        (Compaction(after_batches=4), [3, 7]),
        (Compaction(after_batches=None, after_seconds=25), [5, 6, 7, 8, 9]),
        (Compaction(after_batches=4, after_seconds=45), [3, 7, 9]),
        (Compaction(after_batches=None, after_bytes=500), [5, 6, 7, 8, 9]),
        (Compaction(after_batches=4, after_seconds=45, after_bytes=800), [3, 7, 8, 9]),
        (Compaction(), []),
    ],
)
def test_a_compaction_is_due_at_the_first_limit_that_is_reached(compaction, due):
    assert [batch for batch in range(10) if compaction.is_due(batch, 5.0 * batch, 100 * batch)] == due


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"after_batches": None}, "give after_batches, after_seconds or after_bytes"),
        ({"after_batches": 0}, "after_batches=0: expected more than 0"),
        ({"after_seconds": -1}, "after_seconds=-1"),
        ({"after_bytes": 0}, "after_bytes=0"),
        ({"target_bytes": 0}, "target_bytes=0"),
    ],
)
def test_an_invalid_plan_is_refused(wrong, problem):
    with pytest.raises(UsageError, match=problem):
        Compaction(**wrong)


def test_two_writers_of_a_table_need_names():
    with pytest.raises(UsageError, match="two writers of /t: give each an application"):
        in_turn(append("/t"), upsert("/t/", key=["id"]))
    assert len(in_turn(append("/t"), upsert("/t", key=["id"], application="other"), append("/u")).writers) == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/data/t", "file:/data/t"),
        ("/data/t", "file:///data/more/../t"),
        ("/data/t", "/data//./t"),
        ("s3a://bucket/data/t", "S3A://bucket/data//./t/"),
    ],
)
def test_writers_of_a_table_under_two_spellings_need_names(one, other):
    with pytest.raises(UsageError, match=r"two writers of .*: give each an application"):
        in_turn(append(one), append(other))


def test_writers_of_tables_with_equal_paths_in_two_places_need_no_names():
    places = [append(f"{scheme}/data/t") for scheme in ("", "s3a://one", "s3a://two", "hdfs://one")]
    assert len(in_turn(*places).writers) == len(places)
