"""Import of the clients in a process, beside kafka-python.

The modules are compiled before the first measurement.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from benchmarks.harness import Benchmark, Context, Durability, Measure, Sample, Side

_PROCESSES = 10
_OURS = "from millrace.clients import Admin, Consumer, Producer"
_PEER = "from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer"


def _opened(statement: str) -> Callable[[Context], AbstractContextManager[Measure]]:
    @contextlib.contextmanager
    def open_side(context: Context) -> Iterator[Measure]:
        def process_ms() -> float:
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            return (time.perf_counter() - started) * 1000

        process_ms()
        yield lambda: Sample(figure=min(process_ms() for _ in range(_PROCESSES)))

    return open_side


_SETTINGS = f"no broker, nothing to fsync; the fastest of {_PROCESSES} processes"

BENCHMARK = Benchmark(
    name="client_import",
    title="A process that imports the clients and ends",
    unit="ms",
    higher_is_better=False,
    limit=500,
    durability=Durability.NOTHING_WRITTEN,
    ours=Side(what=_OURS, settings=_SETTINGS, open=_opened(_OURS)),
    peer=Side(what=_PEER + " (kafka-python)", settings=_SETTINGS, open=_opened(_PEER)),
)
