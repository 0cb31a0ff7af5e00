"""Test of three real brokers under faults.

The clients are Kafka's own tools. A ``VerifiableProducer`` fills a topic, a ``TransactionalMessageCopier`` copies it
exactly once, and a ``VerifiableConsumer`` of each group protocol reads the copy. Nothing is lost, duplicated or
reordered. The faults and their seed are those of ``test_faults``.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from millrace.clients import Admin, TopicPartition

from .checker import anomalies, processing_anomalies
from .clients import INPUT, OUTPUT, PARTITIONS, TRANSFORMERS
from .faulty_cluster import FaultyCluster, last
from .history import History, Outcome, Place, Read, Send, Write
from .kafka_tools import Tool, consumer, copier, polls_of, producer, writes_of
from .work import committed_by, end_all, everything, is_processed, let_work, replacing, values

SESSION_MS = 4_000
"""The brokers' session timeout, which is longer than in ``test_faults``, because four Java processes run as well."""
LONGEST_S = 2 * SESSION_MS / 1000


@pytest.mark.dial("KAFKA_FAULT_ROUNDS", seconds=60)
def test_no_record_of_kafkas_clients_is_lost_duplicated_or_reordered(tmp_path: Path, rounds: int) -> None:
    seed = os.environ.get("FAULT_SEED", str(time.time_ns()))
    print(f"FAULT_SEED={seed}")
    chance = random.Random(seed)
    records = tmp_path / "records"
    records.mkdir()
    tools: list[Tool] = []
    with FaultyCluster(
        tmp_path, chance, has_disks=chance.random() < 0.5, zookeeper_session_timeout_ms=str(SESSION_MS)
    ) as cluster:
        address = cluster.bootstrap_servers
        with Admin(address) as admin:
            for topic in (INPUT, OUTPUT):
                admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        try:
            writer = producer(address, INPUT, records)
            transformer = copier(address, INPUT, OUTPUT, TRANSFORMERS, records)
            readers = [consumer(address, OUTPUT, f"of-{name}", name, records) for name in ("classic", "consumer")]
            tools = [writer, transformer, *readers]
            let_work(tools)
            ran = _suffer(cluster, chance, rounds, tools)
            end_all([writer])
            ends = {TopicPartition(*read.place): read.offset + 1 for read in everything(address, INPUT)}
            replacing(
                [transformer, *readers],
                "all inputs to be copied",
                lambda: is_processed(address, ends),
                progress=lambda: committed_by(address, TRANSFORMERS),
            )
            end_all([transformer])
            final = everything(address, INPUT, OUTPUT)
            outputs = [read for read in final if read.place.topic == OUTPUT]
            for reader in readers:
                replacing([reader], "all copies to be read", lambda reader=reader: _has_read(reader, outputs))  # type: ignore[misc]
            end_all(readers)
        finally:
            for tool in tools:
                if not tool.has_ended:
                    tool.end(signal.SIGKILL)
    inputs = [read for read in final if read.place.topic == INPUT]
    writes = writes_of(writer)
    assert len(writes) > 50 * ran
    assert anomalies(History(tuple(_placed(writes, inputs))), inputs) == []
    assert processing_anomalies(values(final, INPUT), values(final, OUTPUT), is_finished=True) == []
    copies = tuple(
        Write("copier", number, False, (Send(read.place, read.value, read.offset),), Outcome.OK)
        for number, read in enumerate(outputs)
    )
    for reader in readers:
        assert anomalies(History(copies, tuple(polls_of(reader))), outputs) == []


def _suffer(cluster: FaultyCluster, chance: random.Random, rounds: int, tools: list[Tool]) -> int:
    """Let faults last one after another, each in its turn, and the tools work in between. Return their number."""
    faults = cluster.faults(INPUT)
    turns: list[str] = []
    ran: Counter[str] = Counter()
    while ran.total() < rounds:
        turns = turns or chance.sample(sorted(faults), len(faults))
        what, seconds = turns.pop(), chance.uniform(0, LONGEST_S)
        print(f"{what}, for {seconds:.1f} s", flush=True)
        last(faults[what], seconds)
        ran[what] += 1
        cluster.wait_until_whole(INPUT, OUTPUT)
        let_work(tools)
    print(f"went wrong: {dict(ran)}; not in this run: {sorted(faults.keys() - ran)}")
    return ran.total()


def _has_read(reader: Tool, wanted: list[Read]) -> bool:
    seen = {read for poll in polls_of(reader) for read in poll.reads}
    return seen.issuperset(wanted)


def _placed(writes: list[Write], final: list[Read]) -> list[Write]:
    """Return the writes with the partitions of those whose outcome the producer does not know, if they are there.

    The producer's partitioner chose them. Values of a process that was killed before it printed them are such too.
    """
    found = {read.value: read.place for read in final}
    known = {send.value for write in writes for send in write.sends}
    placed = [
        Write(
            write.process,
            write.number,
            False,
            tuple(Send(found.get(send.value, send.place), send.value, send.offset) for send in write.sends),
            write.outcome,
        )
        for write in writes
    ]
    for value, place in found.items():
        if value not in known:
            incarnation, _, number = value.partition(".")
            sends = (Send(Place(*place), value),)
            placed.append(Write(f"producer-{incarnation}", int(number), False, sends, Outcome.UNKNOWN))
    return placed
