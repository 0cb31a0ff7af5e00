"""99th percentile of live producers' acknowledgements beside a read by Spark."""

from __future__ import annotations

from benchmarks import backfill, ours
from benchmarks.harness import Benchmark, Side

BENCHMARK = Benchmark(
    name="backfill_interference",
    title="99th percentile of a live producer's acknowledgements: beside a backfill, and alone",
    unit="ms",
    higher_is_better=False,
    target_ratio=1 / 1.1,
    ours=Side(
        what=f'read.format("millrace").option("maxBytesPerSecond", {backfill.BYTES_PER_SECOND}) beside '
        f"{backfill.RECORDS_PER_SECOND} sends a second",
        settings=ours.SETTINGS + "; Spark local[2]; one partition, producer defaults, acks=all",
        open=backfill.open_with_backfill,
    ),
    peer=Side(
        what=f"millrace as well: {backfill.RECORDS_PER_SECOND} sends a second, and no backfill",
        settings=ours.SETTINGS + "; one partition, producer defaults, acks=all",
        open=backfill.open_alone,
    ),
)
