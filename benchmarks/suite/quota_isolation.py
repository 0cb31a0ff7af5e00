"""99th percentile of one client's acknowledgements beside another client at its quota."""

from __future__ import annotations

from benchmarks import backfill, ours, quota_isolation
from benchmarks.harness import Benchmark, Side

_SETTINGS = ours.SETTINGS + "; one partition for each client, producer defaults, acks=all"

BENCHMARK = Benchmark(
    name="quota_isolation",
    title="99th percentile of a client's acknowledgements: beside another client at its quota, and alone",
    unit="ms",
    higher_is_better=False,
    target_ratio=1 / 1.2,
    ours=Side(
        what=f"{backfill.RECORDS_PER_SECOND} sends a second, beside a producer that always has more than its "
        f"producer_byte_rate of {quota_isolation.BYTES_PER_SECOND}, and is held within 5 % of it over 10 s",
        settings=_SETTINGS,
        open=quota_isolation.open_beside_limited,
    ),
    peer=Side(
        what=f"millrace as well: {backfill.RECORDS_PER_SECOND} sends a second, and no other client",
        settings=_SETTINGS,
        open=quota_isolation.open_alone,
    ),
)
