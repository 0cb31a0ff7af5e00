"""Truncated logs and leader changes at an embedded broker.

They are of a topic's first partition.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from millrace.coordination import paths
from millrace.coordination.nodes import PartitionStateNode
from millrace.records import scan_headers
from millrace_broker.testing import EmbeddedBroker


def raise_epoch(broker: EmbeddedBroker, topic: str) -> None:
    """Raise the partition's leader epoch and notify the broker, as a controller does at an election."""
    inner = broker.server.broker
    path = paths.partition_state_path(topic, 0)

    def elect() -> None:
        state = PartitionStateNode.decode(inner.coordination.get(path)[0])
        raised = PartitionStateNode(
            controller_epoch=state.controller_epoch,
            leader=state.leader,
            leader_epoch=state.leader_epoch + 1,
            isr=state.isr,
        )
        inner.coordination.set(path, raised.encode())
        inner.catalog.refresh(topic)

    asyncio.run_coroutine_threadsafe(inner.executors.administer(elect), broker._loop).result()


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
