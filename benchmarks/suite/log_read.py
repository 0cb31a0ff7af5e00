"""Reads of a log's mapped segments on one core, with verified checksums.

Our side also walks the headers and decodes each batch to Arrow columns without copies. The peer only computes the same
checksums of the same files, read in blocks of 1 MiB.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import google_crc32c
import pyarrow as pa

from benchmarks import logs
from benchmarks.harness import Benchmark, Context, Durability, Measure, Sample, Side
from benchmarks.workspace import BenchmarkError
from millrace.records import decode_range
from millrace.segments import map_extent

_BATCH_BYTES = 2**20
_BYTES_PER_RECORD = 200
_FOLDER = "log-read"


def _no_schema(schema_id: int) -> pa.Schema:
    raise BenchmarkError(f"schema id {schema_id} in an opaque log")


@contextlib.contextmanager
def _open_ours(context: Context) -> Iterator[Measure]:
    folder = context.workspace.folder(_FOLDER, empty=True)
    logs.fill(folder, context.records * _BYTES_PER_RECORD, _BATCH_BYTES)
    with logs.removed(folder), logs.opened(folder) as manager:
        log = manager.get(logs.TOPIC, 0)
        assert log is not None

        def measure() -> Sample:
            started = time.perf_counter()
            rows = size_bytes = 0
            for extent in log.locate(0, log.log_end_offset):
                buffer = map_extent(extent.path, extent.start_position, extent.end_position)
                size_bytes += len(buffer)
                for batch in decode_range(buffer, extent.start_offset, extent.end_offset, _no_schema):
                    rows += batch.num_rows
            seconds = time.perf_counter() - started
            if rows != log.log_end_offset:
                raise BenchmarkError(f"read {rows} of {log.log_end_offset} records")
            return Sample(figure=size_bytes / seconds / 1e9, answer=size_bytes)

        measure()
        yield measure


@contextlib.contextmanager
def _open_peer(context: Context) -> Iterator[Measure]:
    paths = logs.segment_files(context.workspace.folder(_FOLDER))
    block = bytearray(_BATCH_BYTES)

    def measure() -> Sample:
        started = time.perf_counter()
        size_bytes = 0
        for path in paths:
            crc = 0
            with path.open("rb", buffering=0) as file:
                while count := file.readinto(block):
                    crc = google_crc32c.extend(crc, pa.py_buffer(block).slice(0, count))
                    size_bytes += count
        return Sample(figure=size_bytes / (time.perf_counter() - started) / 1e9, answer=size_bytes)

    measure()
    yield measure


BENCHMARK = Benchmark(
    name="log_read",
    title="Sequential read of a log's mapped segments with checksums, one core, in the page cache",
    unit="GB/s",
    limit=5,
    durability=Durability.NOTHING_WRITTEN,
    ours=Side(
        what="PartitionLog.locate, map_extent, decode_range",
        settings="columnar batches of 1 MiB, segments of 1 GiB; no fsync while measuring",
        open=_open_ours,
    ),
    peer=Side(
        what="read() of 1 MiB blocks, google_crc32c of each", settings="the same files; no fsync", open=_open_peer
    ),
)
