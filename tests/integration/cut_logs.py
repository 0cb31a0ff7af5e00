"""Truncated logs and leader changes at an embedded broker.

They are of a topic's first partition.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from millrace.records import scan_headers
from millrace_broker.controller.partition_states import raise_leader_epoch
from millrace_broker.decisions import TopicPartition
from millrace_broker.testing import EmbeddedBroker


def raise_epoch(broker: EmbeddedBroker, topic: str) -> None:
    """Have the controller raise the partition's leader epoch, as an election does."""
    controlling = broker.server.broker.member.controlling

    async def elect() -> None:
        await controlling.ask("raise", lambda each: raise_leader_epoch(each.context, TopicPartition(topic, 0)))
        await controlling.settled()

    asyncio.run_coroutine_threadsafe(elect(), broker._loop).result()


def cut_log(data_dir: Path, topic: str, batches: int) -> None:
    """Keep so many batches of a stopped broker's log, as if a replica with a shorter log were elected."""
    (segment,) = (data_dir / f"{topic}-0").glob("*.log")
    data = segment.read_bytes()
    ends = [position + header.size_bytes for position, header in scan_headers(data)]
    segment.write_bytes(data[: ends[batches - 1]])
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (data_dir / name).unlink(missing_ok=True)
    for file in (data_dir / f"{topic}-0").iterdir():
        if file.suffix in (".index", ".timeindex", ".snapshot"):
            file.unlink()


def truncated(broker: EmbeddedBroker, data_dir: Path, topic: str, keep: int) -> EmbeddedBroker:
    """Restart the broker at the same port, in a new leader epoch, with a truncated log."""
    port = broker.port
    broker.stop()
    cut_log(data_dir, topic, keep)
    again = EmbeddedBroker(data_dir, port=port).start()
    raise_epoch(again, topic)
    return again
