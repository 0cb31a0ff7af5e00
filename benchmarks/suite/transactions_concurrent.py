"""Transactions of a hundred concurrent producers, each with its own id."""

from __future__ import annotations

from benchmarks import ours, transactions
from benchmarks.harness import Benchmark, Side
from benchmarks.peers import kafka

BENCHMARK = Benchmark(
    name="transactions_concurrent",
    title="Transactions of 100 producers at once: begin, 4 records to 2 partitions, commit",
    unit="transactions/s",
    target_ratio=1,
    ours=Side(
        what="100 Producers in a process, each in a thread: with transaction(): send() four times",
        settings=ours.SETTINGS + "; client defaults",
        open=transactions.open_ours,
    ),
    peer=Side(
        what="100 KafkaProducers in a JVM, each in a thread, the same",
        settings=kafka.SETTINGS + "; client defaults",
        open=transactions.open_peer,
    ),
)
