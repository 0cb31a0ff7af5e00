"""Tests of the order of a batch's start and end."""

import pytest

from millrace.errors import UsageError
from pyspark_millrace.options.positions import AtTimestamp, AtTimestamps, ExactOffsets, OffsetSpec, check_order
from pyspark_millrace.partition_key import PartitionKey

KEY, OTHER = PartitionKey("t", 0), PartitionKey("t", 1)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (ExactOffsets({KEY: 10, OTHER: 3}), ExactOffsets({KEY: 9, OTHER: 3})),
        (AtTimestamp(10), AtTimestamp(9)),
        (AtTimestamps({KEY: 10, OTHER: 3}), AtTimestamp(9)),
        (AtTimestamp(10), AtTimestamps({KEY: 9, OTHER: 10})),
    ],
)
def test_a_start_after_the_end_is_refused(start, end):
    with pytest.raises(UsageError, match=r"t-0 starts at 10(| ms) and ends at 9(| ms): the starting"):
        check_order(start, end, [KEY, OTHER])


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (ExactOffsets({KEY: 9}), ExactOffsets({KEY: 9})),
        (ExactOffsets({KEY: OffsetSpec.EARLIEST}), ExactOffsets({KEY: 0})),
        (ExactOffsets({KEY: 10}), ExactOffsets({KEY: OffsetSpec.LATEST})),
        (ExactOffsets({KEY: 10}), AtTimestamp(9)),
        (AtTimestamp(10), ExactOffsets({KEY: 9})),
        (OffsetSpec.LATEST, ExactOffsets({KEY: 9})),
        (AtTimestamp(9), AtTimestamps({KEY: 9})),
        (AtTimestamp(10), OffsetSpec.LATEST),
    ],
)
def test_a_start_whose_order_is_found_by_a_look_up_only_is_taken(start, end):
    check_order(start, end, [KEY, OTHER])
