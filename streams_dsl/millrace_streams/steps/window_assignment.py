"""Assignment of records to time windows (Kafka Streams' ``TimeWindows.windowsFor``).

All records of a batch are assigned at once. A window that would end after the largest long ends there. The last instant
belongs to the last windows, because no window can start at it.
"""

from __future__ import annotations

from typing import Final, TypeVar

import polars as pl

from millrace_streams.frames.codec import end_of
from millrace_streams.steps.batch import TIMESTAMP, Rows
from millrace_streams.windows import FOREVER_MS, TimeWindows, UnlimitedWindows

WINDOW: Final = "__window"
STREAM_TIME: Final = "__stream_time"
_Times = TypeVar("_Times", int, Rows)


def in_windows(records: pl.DataFrame, window: TimeWindows | UnlimitedWindows | None) -> pl.DataFrame:
    """Return one row per record and window, in record order, then by ``__window``, the window's start.

    ``records`` have their times in ``__timestamp``. No window begins before the epoch.
    """
    if window is None:
        return records
    time = pl.col(TIMESTAMP)
    if isinstance(window, UnlimitedWindows):
        return records.filter(time >= window.start_ms).with_columns(pl.lit(window.start_ms, pl.Int64).alias(WINDOW))
    time = time.clip(upper_bound=FOREVER_MS - 1)
    if window.tumbling:
        return records.with_columns((time // window.size_ms * window.size_ms).alias(WINDOW))
    first = pl.max_horizontal(time - window.size_ms + window.advance_ms, pl.lit(0, pl.Int64))
    first = first // window.advance_ms * window.advance_ms
    return records.with_columns(pl.int_ranges(first, time + 1, window.advance_ms).alias(WINDOW)).explode(WINDOW)


def in_open_windows(placed: pl.DataFrame, window: TimeWindows | UnlimitedWindows | None) -> pl.DataFrame:
    """Keep the rows of ``in_windows`` whose window is open at the stream time in ``__stream_time``."""
    if not isinstance(window, TimeWindows):
        return placed
    closed = pl.col(STREAM_TIME) - window.grace_ms
    flags = placed.select(end_of(pl.col(WINDOW), window.size_ms) > closed).to_series()
    return placed if flags.all() else placed.filter(flags)


def newest_start_ms(stream_time_ms: _Times, advance_ms: int) -> _Times:
    """Return the start of the newest window that has begun; one begins every ``advance_ms``."""
    return stream_time_ms // advance_ms * advance_ms
