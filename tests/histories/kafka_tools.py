"""Clients of a history that are Kafka's own system test tools.

The tools use Kafka's Java client. ``VerifiableProducer`` sends numbered values. ``TransactionalMessageCopier`` copies a
topic to another in transactions, of which it aborts some. ``VerifiableConsumer`` reads as a group member and commits.
Each prints its actions as JSON, a line at a time, which this module reads as a history.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import jars
from benchmarks.workspace import Workspace

from ..integration.waiting import STALL_S
from .history import Outcome, Place, Poll, Read, Send, Write

_JVM: Final = ("-Xmx96m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_MOVES: Final = frozenset(("partitions_assigned", "partitions_revoked", "partitions_lost"))


class Tool:
    """One of Kafka's tools and its successors, each with its own output."""

    def __init__(self, name: str, main: str, directory: Path, arguments: Mapping[str, str]) -> None:
        """Start the tool ``main``. An argument's value may name ``{incarnation}``, the number of the process."""
        self.slot: Final = name
        self._main: Final = main
        self._directory: Final = directory
        self._arguments: Final = arguments
        self._incarnation = 0
        self.start()

    def start(self) -> None:
        """Start the tool or its next successor."""
        self._incarnation += 1
        self.record = self._directory / f"{self.slot}-{self._incarnation}.jsonl"
        classes = f"{jars.resolve(jars.KAFKA, Workspace())}/*"
        command = ["java", *_JVM, "-cp", classes, f"org.apache.kafka.tools.{self._main}"]
        for argument, value in self._arguments.items():
            command += [argument, *([value.format(incarnation=self._incarnation)] if value else [])]
        errors = self._directory / f"{self.slot}.stderr"
        with self.record.open("wb") as output, errors.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=log)

    def end(self, number: signal.Signals) -> int:
        """Kill the tool, or let it end. Return its exit status."""
        self._process.send_signal(number)
        return self._process.wait(STALL_S)

    @property
    def has_ended(self) -> bool:
        """Tell whether the tool has ended by itself."""
        return self._process.poll() is not None

    @property
    def size_bytes(self) -> int:
        """Return the size of its output."""
        return self.record.stat().st_size if self.record.exists() else 0

    def events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what all processes of the tool have printed, each with the name of its process."""
        for path in sorted(self._directory.glob(f"{self.slot}-*.jsonl"), key=os.path.getctime):
            for line in path.read_text().splitlines():
                if line.startswith("{") and line.endswith("}"):  # a killed process leaves a part of a line
                    yield path.stem, json.loads(line)


def producer(address: str, topic: str, directory: Path) -> Tool:
    """Start an idempotent producer of numbered values with retries."""
    config = directory / "producer.properties"
    config.write_text("retries=2147483647\nrequest.timeout.ms=4000\nmax.block.ms=180000\n")
    arguments = {
        "--topic": topic,
        "--bootstrap-server": address,
        "--throughput": "40",
        "--value-prefix": "{incarnation}",
        "--command-config": str(config),
    }
    return Tool("producer", "VerifiableProducer", directory, arguments)


def copier(address: str, source: str, target: str, group: str, directory: Path) -> Tool:
    """Start a copier of records and of their offsets, in transactions."""
    arguments = {
        "--broker-list": address,
        "--input-topic": source,
        "--input-partition": "-1",
        "--output-topic": target,
        "--consumer-group": group,
        "--transaction-size": "100",
        "--transaction-timeout": "8000",
        "--transactional-id": "copier",
        "--enable-random-aborts": "",
        "--group-mode": "",
        "--use-group-metadata": "",
    }
    return Tool("copier", "TransactionalMessageCopier", directory, arguments)


def consumer(address: str, topic: str, group: str, protocol: str, directory: Path) -> Tool:
    """Start a member of a group that reads committed records."""
    config = directory / "consumer.properties"
    config.write_text("isolation.level=read_committed\nrequest.timeout.ms=4000\n")
    arguments = {
        "--topic": topic,
        "--bootstrap-server": address,
        "--group-id": group,
        "--group-protocol": protocol,
        "--verbose": "",
        "--command-config": str(config),
    }
    return Tool(f"consumer-{protocol}", "VerifiableConsumer", directory, arguments)


def writes_of(tool: Tool) -> list[Write]:
    """Return the sends of a ``VerifiableProducer`` in their order. A failed send may be there or not."""
    writes = []
    for process, event in tool.events():
        if event["name"] not in ("producer_send_success", "producer_send_error"):
            continue
        is_known = event["name"] == "producer_send_success"
        place = Place(event["topic"], event["partition"] if is_known else -1)
        writes.append(
            Write(
                process=process,
                number=int(event["value"].rpartition(".")[2]),
                is_transaction=False,
                sends=(Send(place, event["value"], event["offset"] if is_known else None),),
                outcome=Outcome.OK if is_known else Outcome.UNKNOWN,
            )
        )
    return writes


def polls_of(tool: Tool) -> list[Poll]:
    """Return the records of a ``VerifiableConsumer``, each as a poll. The assignment counts its changes."""
    polls, assignment = [], 0
    for process, event in tool.events():
        if event["name"] in _MOVES:
            assignment += 1
        elif event["name"] == "record_data":
            read = Read(Place(event["topic"], event["partition"]), event["offset"], event["value"])
            polls.append(Poll(process, assignment, 0, (read,)))
    return polls
