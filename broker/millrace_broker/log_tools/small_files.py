"""Producer snapshots, checkpoints and topic id of a partition, as rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from millrace.errors import StorageError
from millrace.ids import id_text
from millrace_broker.log.checkpoints import read_epochs, read_offsets
from millrace_broker.log.files import OsFiles
from millrace_broker.log.partition_metadata import read_topic_id
from millrace_broker.log.producer_snapshots import read_snapshot
from millrace_broker.log_tools.findings import Finding, Problem, Row


def dump_snapshot(path: Path) -> Iterator[Finding]:
    """Read a producer snapshot."""
    try:
        entries = read_snapshot(path.read_bytes())
    except StorageError as error:
        yield Problem(error.message)
        return
    for entry in entries:
        yield Row(
            "producer",
            {
                "producer_id": entry.producer_id,
                "producer_epoch": entry.epoch,
                "last_sequence": entry.last_sequence,
                "last_offset": entry.last_offset,
                "last_timestamp": entry.last_timestamp_ms,
                "coordinator_epoch": entry.coordinator_epoch,
                "transaction_start_offset": entry.open_transaction_offset,
            },
        )


def dump_epochs(path: Path) -> Iterator[Finding]:
    """Read a ``leader-epoch-checkpoint``."""
    try:
        for epoch, start_offset in read_epochs(OsFiles(), path):
            yield Row("leader epoch", {"leader_epoch": epoch, "start_offset": start_offset})
    except StorageError as error:
        yield Problem(error.message)


def dump_offsets(path: Path) -> Iterator[Finding]:
    """Read a checkpoint of a data directory, which has one offset per partition."""
    try:
        for (topic, partition), offset in read_offsets(OsFiles(), path).items():
            yield Row("checkpoint", {"topic": topic, "partition": partition, "offset": offset})
    except StorageError as error:
        yield Problem(error.message)


def dump_metadata(path: Path) -> Iterator[Finding]:
    """Read ``partition.metadata``."""
    try:
        yield Row("topic", {"topic_id": id_text(read_topic_id(OsFiles(), path.parent))})
    except StorageError as error:
        yield Problem(error.message)
