"""Tests of rows against batches, with a model of counters.

They are compared offset by offset.
"""

import uuid
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import UsageError
from pyspark_millrace.audit.intervals import normalized
from pyspark_millrace.audit.rows import OffsetColumns, _intervals, compare, find_offset_columns
from pyspark_millrace.audit.topic_log import Holding
from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.offsets import OffsetRange

KEY = PartitionKey("t", 0)
END = 24
batches = st.lists(st.tuples(st.integers(0, END), st.integers(0, END)).map(sorted), max_size=5)
offset_sets = st.frozensets(st.integers(0, END - 1))


def spans(offsets):
    return normalized((offset, offset + 1) for offset in offsets)


def offsets(found):
    return {offset for start, end in found.get(KEY, ()) for offset in range(start, end)}


@given(batches, st.lists(st.integers(0, END - 1)), offset_sets, st.integers(0, END), st.integers(0, END))
def test_each_offset_is_judged_as_it_is(read, rows, without_record, log_start, known_from):
    def holding(wanted):
        within = set(range(wanted.start, wanted.end))
        lost = {offset for offset in within if offset < log_start}
        return Holding(tuple(spans(within - lost - without_record)), tuple(spans(lost)))

    ranges = [OffsetRange(KEY, uuid.UUID(int=7), start, end) for start, end in read]
    found = compare(ranges, {KEY: _intervals(np.array(rows, np.int64))}, holding, lambda _: known_from)
    expected, there = Counter(n for start, end in read for n in range(start, end)), Counter(rows)
    lacking = {n for n in expected if there[n] < expected[n]}
    surplus = {n for n in there if there[n] > expected[n]}
    doubled = {n for n in surplus if expected[n] or there[n] > 1}
    assert offsets(found.unknown) == {n for n in lacking if n < log_start}
    assert offsets(found.missing) == {n for n in lacking if n >= log_start and n not in without_record}
    assert offsets(found.doubled) == doubled
    assert offsets(found.foreign) == {n for n in surplus - doubled if n >= known_from}


@given(st.lists(st.integers(0, 40)))
def test_runs_hold_each_offset_as_often_as_it_is_there(rows):
    runs = _intervals(np.array(rows, np.int64))
    assert Counter(n for start, end in runs for n in range(start, end)) == Counter(rows)


def test_the_columns_with_the_position_of_a_row_are_found():
    ours = {"n": "long", "__partition": "integer", "__offset": "long"}
    assert find_offset_columns(ours, None) == OffsetColumns(None, "__partition", "__offset")
    assert find_offset_columns(ours | {"__topic": "string"}, None) == OffsetColumns(
        "__topic", "__partition", "__offset"
    )
    kafkas = {"topic": "string", "partition": "integer", "offset": "long"}
    assert find_offset_columns(kafkas, None) == OffsetColumns("topic", "partition", "offset")
    # The columns of a schema may have these names too.
    assert find_offset_columns({"partition": "integer", "offset": "long"}, None) is None
    assert find_offset_columns({"p": "integer", "o": "long"}, "p, o") == OffsetColumns(None, "p", "o")
    with pytest.raises(UsageError, match="of the columns p, o"):
        find_offset_columns({"p": "integer", "o": "long"}, "p,x")
