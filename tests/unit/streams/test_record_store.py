"""Tests of the records that a stream-stream join keeps.

The records are in memory and in pages, and expire with their time.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa
import pytest

from millrace_streams import StreamsBuilder, TestRecord, within
from millrace_streams.layout import Layout
from millrace_streams.state.rows import LIMITS, KeptRows, Limits
from millrace_streams.state.variables import MemoryVariables
from millrace_streams.steps.packed_state import kept_rows, store_over
from millrace_streams.stores import RecordStore, StoreSpec
from millrace_streams.stores.below import packed, rows_of

from .test_state_packed import TYPES, InPages, joined

LONGS = Layout(
    schema=pa.schema([("key", pa.string()), ("value", pa.int64())]), key=("key",), bucket_columns=None, value="value"
)
RECORDS = StoreSpec(name="r", kind="records", form="records", layout=LONGS, retention_ms=40)


class Counted(InPages):
    """A driver that counts the pages that each batch reads."""

    reads: ClassVar[list[int]]

    def begin_anew(self) -> None:
        self.reads.append(sum(kept.reads for kept in self.kept.values()))
        super().begin_anew()


@pytest.mark.parametrize("kind", ["join", "left_join", "outer_join"])
def test_records_of_keys_that_never_come_again_leave_the_state_unread(kind: str) -> None:
    builder = StreamsBuilder()
    x, y = builder.stream("x", **TYPES), builder.stream("y", **TYPES)
    getattr(x, kind)(y, joined, window=within(10, grace=20)).to("out")
    Counted.reads = []
    driver, sizes, most = Counted(builder.build()), [], 0
    for time_ms in range(0, 1000, 5):
        driver.pipe_records([TestRecord(name, f"{name}{time_ms}", 1, time_ms) for name in "xy"])
        stores = driver._tasks[0].stores.items()
        stored = [driver.variables[name] for name, store in stores if getattr(store.spec, "form", "") == "records"]
        sizes.append(sum(len(chunk) for each in stored for chunk in [*each.log, *each.pages.values()]))
        most = max(most, *(len(each.pages) for each in stored))
    # Retention is 40 ms, and a slot 5 ms.
    assert 1 < most <= 40 // 5 + 2
    assert max(sizes) < 2 * max(sizes[:20])
    # Each side reads the slots within 10 ms, and the log's rows go to one more.
    assert max(Counted.reads[20:]) <= 2 * (2 * 10 // 5 + 2)


def changed(variables: MemoryVariables, limits: Limits, key: str, time_ms: int, value: int) -> RecordStore:
    """Put a record in a batch of its own, and return the store after the batch."""
    kept = kept_rows(RECORDS, variables, limits)
    store = opened(kept)
    store.put(key, time_ms, value)
    change = store.commit()
    kept.save(packed(RECORDS, change.entries.items()), change.numbers, store.kept_from_ms)
    return opened(kept_rows(RECORDS, variables, limits))


def opened(kept: KeptRows) -> RecordStore:
    store = store_over(RECORDS, kept)
    assert isinstance(store, RecordStore)
    return store


@pytest.mark.parametrize("limits", [InPages.limits, LIMITS], ids=["in pages", "in the log"])
def test_records_that_an_earlier_version_kept_by_key_are_read_and_get_times(limits: Limits) -> None:
    earlier, variables = rows_of(RECORDS).earlier, MemoryVariables()
    assert earlier is not None
    batches: list[dict[str, list[tuple[int, int]]]] = [
        {"a": [(0, 1), (30, 2), (30, 3)], "b": [(5, 4)], "expired": [(1, 5)], "gone": [(20, 6)]},
        # The newest rows of a key replace all of its rows in the page.
        {"a": [(30, 2), (30, 3), (44, 7)], "gone": []},
        {"c": [(41, 8)]},
    ]
    for batch in batches:
        entries: list[Any] = [((key, time_ms), (value,)) for key, each in batch.items() for time_ms, value in each]
        gone = [((key, None), None) for key, each in batch.items() if not each]
        KeptRows.read(earlier, variables, limits).save(
            packed(RECORDS, [*entries, *gone]), {"newest_left": 44}, -(2**63)
        )
    assert bool(variables.pages) == (limits is not LIMITS)
    before = {("a", 30): (2, 3), ("a", 44): (7,), ("b", 5): (4,), ("c", 41): (8,)}
    assert dict(opened(kept_rows(RECORDS, variables, limits)).entries()) == before
    assert opened(kept_rows(RECORDS, variables, limits)).between("a", 0, 99) == [(30, 2), (30, 3), (44, 7)]
    first = dict(changed(variables, limits, "d", 45, 9).entries())
    assert first == {("a", 30): (2, 3), ("a", 44): (7,), ("c", 41): (8,), ("d", 45): (9,)}
    second = changed(variables, limits, "d", 79, 9)
    assert dict(second.entries()) == {("a", 44): (7,), ("c", 41): (8,), ("d", 45): (9,), ("d", 79): (9,)}
    assert second.between("a", 0, 99) == [(44, 7)]
    assert all(page.slot > 0 for page in variables.pages), "the pages without times were removed"
