"""Lookups of random offsets in a segment of 1 GiB, beside SQLite.

Our side finds an offset's batch by the sparse index and the headers after it. The peer is a table of all batches with
the offset as primary key, the usual alternative to an index file. It looks up the position and reads no header.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks import logs
from benchmarks.harness import Benchmark, Context, Durability, Measure, Sample, Side
from millrace_broker.log.segment import Segment

_SEGMENT_BYTES = 2**30
_BATCH_BYTES = 16 * 2**10
_LOOKUPS = 50_000
_FOLDER = "log-lookup"


def _measure(find: Callable[[int], int], offsets: Sequence[int]) -> Measure:
    def measure() -> Sample:
        started = time.perf_counter()
        for offset in offsets:
            find(offset)
        seconds = time.perf_counter() - started
        return Sample(figure=seconds / len(offsets) * 1e6, answer=sum(map(find, offsets[:1000])))

    measure()
    return measure


def _offsets(segment: Segment) -> list[int]:
    *_, (_, last) = segment.batches()
    chosen = random.Random(7)
    return [chosen.randrange(last.next_offset) for _ in range(_LOOKUPS)]


@contextlib.contextmanager
def _segment(context: Context) -> Iterator[Segment]:
    """Return a sealed segment of 1 GiB, for any number of records."""
    folder = context.workspace.folder(_FOLDER, empty=True)
    with logs.removed(folder), logs.opened(folder, segment_bytes=_SEGMENT_BYTES) as manager:
        log = logs.create(manager)
        logs.append(log, _SEGMENT_BYTES + _BATCH_BYTES, _BATCH_BYTES)
        yield log.segments[0]


@contextlib.contextmanager
def _open_ours(context: Context) -> Iterator[Measure]:
    with _segment(context) as segment:

        def find(offset: int) -> int:
            found = segment.find(offset)
            assert found is not None
            return found[0]

        measure = _measure(find, _offsets(segment))
        batches = [(header.base_offset, position) for position, header in segment.batches()]
        with contextlib.closing(sqlite3.connect(context.workspace.folder(_FOLDER) / "batches.sqlite")) as table:
            table.execute("CREATE TABLE batches (offset INTEGER PRIMARY KEY, position INTEGER)")
            table.executemany("INSERT INTO batches VALUES (?, ?)", batches)
            table.commit()
        yield measure


@contextlib.contextmanager
def _open_peer(context: Context) -> Iterator[Measure]:
    folder = context.workspace.folder(_FOLDER)  # that our side has filled
    query = "SELECT position FROM batches WHERE offset <= ? ORDER BY offset DESC LIMIT 1"
    with contextlib.closing(sqlite3.connect(folder / "batches.sqlite")) as table:
        (last,) = table.execute("SELECT max(offset) FROM batches").fetchone()
        chosen = random.Random(7)
        per_batch = table.execute("SELECT offset FROM batches LIMIT 1 OFFSET 1").fetchone()[0]
        offsets = [chosen.randrange(last + per_batch) for _ in range(_LOOKUPS)]

        def find(offset: int) -> int:
            position: int = table.execute(query, (offset,)).fetchone()[0]
            return position

        yield _measure(find, offsets)


BENCHMARK = Benchmark(
    name="log_lookup",
    title="Finding the batch of an offset in a segment of 1 GiB",
    unit="µs",
    higher_is_better=False,
    limit=20,
    durability=Durability.NOTHING_WRITTEN,
    ours=Side(
        what="Segment.find, random offsets",
        settings="batches of 16 KiB, 4 KiB index interval; nothing to fsync",
        open=_open_ours,
    ),
    peer=Side(
        what="SQLite, offset as primary key", settings="a row for each batch, warm; nothing to fsync", open=_open_peer
    ),
)
