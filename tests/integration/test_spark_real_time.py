"""Tests of Spark's real-time mode with the Kafka listener.

Spark's own Kafka source and sink use the listener in both directions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from millrace_broker.testing import EmbeddedBroker

from .kafka_clients import address, consumer, create_topic, producer, read, send
from .waiting import output_of, while_it_works

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
QUERY = Path(__file__).parent / "real_time_query.py"


class Query:
    """A query in a process of its own.

    A process has one JVM, and its first session chooses the JARs.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the query for the duration of the block."""
        self._switch("RUNNING")
        yield
        self._switch("STOPPED")

    def _switch(self, expected: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("switch\n")
        self._process.stdin.flush()
        assert while_it_works(self._process, self._process.stdout.readline, f"the query: {expected}") == expected + "\n"


@contextmanager
def query(broker: EmbeddedBroker, read_from: str, write_to: str, checkpoint: Path) -> Iterator[Query]:
    """Open the program of the query."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(QUERY), address(broker), read_from, write_to, str(checkpoint)]
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield Query(process)
        finally:
            _, errors = output_of(process)
        assert process.returncode == 0, errors


def test_a_stateless_query_in_real_time_mode_reads_and_writes_through_the_listener(
    module_broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    sent_to, read_from = f"{topic}-in", f"{topic}-out"
    for name in (sent_to, read_from):
        create_topic(module_broker, name)
    sending, reading = producer(module_broker), consumer(module_broker, topic)
    reading.subscribe([read_from])
    with query(module_broker, sent_to, read_from, tmp_path / "checkpoint") as copying:
        with copying.running():
            for number in range(5):  # one after the other, so that the query cannot have them all at its start
                send(sending, sent_to, [{"key": b"k", "value": b"word %d" % number}, {"key": b"gone", "value": None}])
                assert _values(reading) == [b"WORD %d" % number]
        send(sending, sent_to, [{"value": b"while it was stopped"}])
        with copying.running():
            send(sending, sent_to, [{"value": b"the end"}])
            seen: list[bytes] = []
            while not seen or seen[-1] != b"THE END":
                seen += _values(reading)
    # The sink of the real-time mode writes at least once.
    assert seen[-2:] == [b"WHILE IT WAS STOPPED", b"THE END"]
    reading.close()


def _values(reading: Consumer) -> list[bytes]:
    return [message.value() for message in read(reading, 1)]
