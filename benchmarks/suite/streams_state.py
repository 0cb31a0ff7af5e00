"""Small micro-batches of a topology with large state, beside small state.

One query has a count (a store of columns) and a fold by a Python function (a store of objects) by key. Its keys grow
from a thousandth of the records to their full number. At each size there are forty micro-batches of 100 records and
eight of 100,000, of random keys. Our figure is the median of the small ones at the full size (Spark's
``triggerExecution``), and the peer's that at the first size. Both kinds at all sizes, and the memory of the largest
Python worker so far, are printed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import statistics
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Benchmark, Context, Durability, Measure, Sample, Side
from benchmarks.micro_batches import durations_ms, wait_for
from benchmarks.ours import PARTITIONS, TOPIC_CONFIGS
from benchmarks.ours import SETTINGS as OUR_SETTINGS
from benchmarks.spark import SPARK_SETTINGS, jar_paths, spark_session
from benchmarks.worker import Run, worker
from benchmarks.workspace import BenchmarkError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from millrace_streams import Topology

_PARTS = (1000, 10, 1)
"""Sizes of the state: the records divided by these, which is 10 thousand, a million and 10 million keys."""
_ROUNDS = {100: 40, 100_000: 8}
"""The number of measured micro-batches by their records."""
_FILL_RECORDS = 1_000_000
_LATE_SECONDS_MAX = 300

Figures = dict[str, dict[str, float]]
"""By size of the state: ms of micro-batches by their records, and MB of the largest worker."""


@contextlib.contextmanager
def serve(*, bootstrap: str, topic: str, checkpoint: str, jar_paths: list[str], records: int) -> Iterator[Run]:
    """Run the worker, a query whose state grows to each size and is measured there."""
    import numpy as np

    from millrace.clients import Producer
    from millrace_streams import run_stream

    spark = spark_session(jar_paths, {"spark.sql.streaming.numRecentProgressUpdates": "10000"})
    read: list[int] = []
    query = run_stream(
        _topology(topic),
        spark,
        checkpoint=checkpoint,
        bootstrap_servers=bootstrap,
        options={"maxOffsetsPerTrigger": _FILL_RECORDS},
        foreach_batch=dict.fromkeys(("counts", "sums"), _take),
        on_batch=lambda report: read.append(report.records),
    )
    random = np.random.default_rng(1)
    try:
        with Producer(bootstrap) as producer:

            def is_told(first: int, records: int) -> bool:
                """Tell whether Spark has reported that the micro-batches from ``first`` on have read that many
                records.
                """
                return sum(read[first:]) >= records and len(durations_ms(query, first, len(read))) >= len(read) - first

            def took_ms(keys: npt.NDArray[np.int64]) -> float:
                """Send records, and return the time of the micro-batches that read them."""
                first = len(read)
                producer.send_table(topic, _records(keys))
                producer.flush()
                wait_for(query, lambda: is_told(first, len(keys)), seconds_max=_LATE_SECONDS_MAX)
                return sum(durations_ms(query, first, len(read)))

            def run() -> dict[str, Any]:
                figures: Figures = {}
                filled = 0
                for part in _PARTS:
                    keys = records // part
                    for start in range(filled, keys, _FILL_RECORDS):
                        took_ms(np.arange(start, min(start + _FILL_RECORDS, keys)))
                    filled = keys
                    figures[str(keys)] = {
                        str(size): statistics.median(took_ms(random.integers(0, keys, size)) for _ in range(rounds))
                        for size, rounds in _ROUNDS.items()
                    }
                    figures[str(keys)]["worker_mb"] = _largest_worker_mb()
                return figures

            yield run
    finally:
        query.stop()
        spark.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)


def _topology(topic: str) -> Topology:
    from millrace_streams import StreamsBuilder

    builder = StreamsBuilder()
    grouped = builder.stream(topic, key="long", value="long").group_by_key()
    grouped.count().to_stream().to("counts")
    grouped.reduce(lambda one, other: one + other).to_stream().to("sums")
    return builder.build()


def _take(rows: Any, _: int) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _records(keys: npt.NDArray[np.int64]) -> pa.Table:
    import pyarrow as pa

    cells = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(keys), [None, pa.py_buffer(keys.astype(">i8"))])
    return pa.table({"key": cells.cast(pa.binary()), "value": cells.cast(pa.binary())})


def _largest_worker_mb() -> float:
    """Return the highest memory of one of this process's Python workers, shared memory included."""
    parents: dict[int, int] = {}
    peaks: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            status = (folder / "status").read_text()
            parents[int(folder.name)] = int(re.search(r"PPid:\s*(\d+)", status)[1])  # type: ignore[index]
            if peak := re.search(r"^Name:\s*python.*VmHWM:\s*(\d+) kB", status, re.MULTILINE | re.DOTALL):
                peaks[int(folder.name)] = int(peak[1]) / 1000
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return max((peaks[pid] for pid in own - {os.getpid()} if pid in peaks), default=0.0)


class _Latest:
    """The latest run's figures, shared by both sides.

    The second side only reads the figures of the first one.
    """

    figures: Figures


@contextlib.contextmanager
def _open_ours(context: Context) -> Iterator[Measure]:
    def measure() -> Sample:
        topic = f"state-{uuid.uuid4().hex[:8]}"
        with context.millrace.admin() as admin:
            admin.create_topic(topic, partitions=PARTITIONS, configs=TOPIC_CONFIGS)
            arguments = {
                "bootstrap": context.millrace.bootstrap,
                "topic": topic,
                "checkpoint": str(context.workspace.folder("scratch/streams-state", empty=True)),
                "jar_paths": jar_paths(context.workspace),
                "records": context.records,
            }
            try:
                with worker(context.workspace, topic, f"{__name__}:serve", arguments) as run:
                    _Latest.figures = run()
            finally:
                admin.delete_topic(topic)
        for keys, found in _Latest.figures.items():
            batches = ", ".join(f"{found[str(size)]:.0f} ms for {size:,} records" for size in _ROUNDS)
            print(f"    {int(keys):,} keys: {batches}; the largest worker {found['worker_mb']:.0f} MB", flush=True)
        return Sample(figure=_Latest.figures[str(context.records)]["100"])

    yield measure


@contextlib.contextmanager
def _open_peer(context: Context) -> Iterator[Measure]:
    def measure() -> Sample:
        if not hasattr(_Latest, "figures"):
            raise BenchmarkError("streams_state compares a run with its own beginning: measure both sides")
        return Sample(figure=_Latest.figures[str(context.records // _PARTS[0])]["100"])

    yield measure


BENCHMARK = Benchmark(
    name="streams_state",
    title="Streams: a micro-batch of 100 records with as many keys in state as there are records, beside a thousandth",
    unit="ms",
    higher_is_better=False,
    target_ratio=0.7,
    durability=Durability.NOT_SYNCED,
    ours=Side(
        what="run_stream: group_by_key() with count() and reduce(), a micro-batch from its trigger to its commit",
        settings=f"{OUR_SETTINGS}{SPARK_SETTINGS}; {PARTITIONS} partitions",
        open=_open_ours,
    ),
    peer=Side(
        what="the same query when it had a thousandth of the keys", settings="the same, no fsync", open=_open_peer
    ),
)
