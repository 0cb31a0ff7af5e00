"""99th percentile of single acknowledgements beside 10,000 waiting fetches."""

from __future__ import annotations

from benchmarks import idle_fetches, ours
from benchmarks.harness import Benchmark, Side

_PRODUCER = (
    f"; median of the p99s of {idle_fetches.BATCHES} times {idle_fetches.RECORDS:,} records, one partition, "
    "producer defaults, acks=all"
)

BENCHMARK = Benchmark(
    name="idle_fetches",
    title=f"99th percentile of a producer's acknowledgements: beside {idle_fetches.FETCHES:,} idle fetches, and alone",
    unit="ms",
    higher_is_better=False,
    target_ratio=0.83,
    ours=Side(
        what=f"Producer().send(topic, value).result() beside {idle_fetches.FETCHES:,} fetches of an idle topic",
        settings=ours.SETTINGS + _PRODUCER + f"; fetches: fetch.max.wait.ms={idle_fetches.MAX_WAIT_MS}, "
        f"{idle_fetches.FRAME_CONNECTIONS:,} on connections of their own, the others on "
        f"{idle_fetches.GRPC_CONNECTIONS} gRPC connections; CPU seconds include their beginning and their answers",
        open=idle_fetches.open_with_fetches,
    ),
    peer=Side(
        what="millrace as well: the same producer and broker without fetches",
        settings=ours.SETTINGS + _PRODUCER,
        open=idle_fetches.open_alone,
    ),
)
