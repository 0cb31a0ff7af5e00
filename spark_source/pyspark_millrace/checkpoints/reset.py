"""Reset of a query's offsets, as an entry in its checkpoint.

A reset is an entry at the end of the offset log, whose offsets are marked as a reset. Spark takes it for a batch that
it planned before it stopped, and runs that batch at the next start. The source finds nothing to read in it, and the
next batch begins at the new offsets. So batch numbers only grow, nothing is removed from the log, and state stays
consistent. Sinks that identify batches by number need this: a Delta table would skip a number that it has seen.

Invariants: the entry is complete when it gets its name, and gets it only if no batch of that number exists. So a reset
is atomic. If a running query logs the same batch later, it finds the name taken and fails with
``CONCURRENT_STREAM_LOG_UPDATE``. If the query is first, the reset finds the name taken and is refused.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from millrace.clients.groups.resets import write_plans
from millrace.clients.model import TopicPartition
from millrace.errors import EnvironmentProblemError, UsageError
from pyspark_millrace.checkpoints.query_log import Checkpoint, OffsetEntry, read_checkpoint
from pyspark_millrace.checkpoints.running import OWN_DIRECTORY, not_running
from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.offsets import StreamOffsets


@dataclass(frozen=True, slots=True)
class PartitionReset:
    """Old and new offset of a partition.

    ``new`` is None for a deleted partition, which is left out.
    """

    partition: TopicPartition
    old: int | None
    new: int | None


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """Plan of a reset; ``batch_id`` is the number of its batch."""

    checkpoint: Checkpoint
    batch_id: int
    partitions: tuple[PartitionReset, ...]
    topic_ids: Mapping[str, uuid.UUID]


def plan_reset(
    checkpoint: Checkpoint, new: Mapping[TopicPartition, int], topic_ids: Mapping[str, uuid.UUID]
) -> ResetPlan:
    """Plan a reset of some partitions. Others keep their offsets, and partitions of deleted topics are left out.

    ``topic_ids`` are the current ids of the checkpoint's topics that still exist. Raises ``UsageError`` for a topic
    that the query does not read, and for a recreated topic whose partitions are not all reset.
    """
    newest = checkpoint.newest
    old = offsets_of(checkpoint)
    known = {partition.topic for partition in old}
    if foreign := sorted({partition.topic for partition in new} - known):
        raise UsageError(f"the query does not read {', '.join(foreign)}: it reads {', '.join(sorted(known))}")
    recreated = {
        topic
        for source in newest.sources
        if source is not None
        for topic, before in source.topic_ids.items()
        if topic_ids.get(topic, before) != before
    }
    for partition in sorted(old.keys() - new.keys()):
        if partition.topic in recreated:
            raise UsageError(
                f"topic {partition.topic} was deleted and created again since the query read it: give {partition} "
                "an offset as well, for example with --to-earliest or --to-latest"
            )
    return ResetPlan(
        checkpoint,
        newest.batch_id + 1,
        tuple(
            PartitionReset(
                partition,
                old.get(partition),
                None if partition.topic not in topic_ids else new.get(partition, old.get(partition)),
            )
            for partition in sorted(old.keys() | new.keys())
        ),
        dict(topic_ids),
    )


def offsets_of(checkpoint: Checkpoint) -> dict[TopicPartition, int]:
    """Return the next offset of every partition of all millrace sources; the lowest one if several sources read it."""
    found: dict[TopicPartition, int] = {}
    for source in checkpoint.newest.sources:
        for key, offset in source.next_offsets.items() if source is not None else ():
            partition = TopicPartition(*key)
            found[partition] = min(offset, found.get(partition, offset))
    return found


def execute_reset(plan: ResetPlan, now: datetime, *, drop_pending: bool = False, keep_state: bool = False) -> Path:
    """Append a reset to the checkpoint; returns the directory with a copy of the previous logs.

    Raises ``UsageError`` if the query runs, has advanced since the plan, has an unfinished batch (unless
    ``drop_pending``) or has state (unless ``keep_state``).
    """
    directory = plan.checkpoint.directory
    with not_running(directory):
        checkpoint = read_checkpoint(directory)
        if (checkpoint.newest, checkpoint.done) != (plan.checkpoint.newest, plan.checkpoint.done):
            raise UsageError(f"the query of {directory} has run another batch meanwhile: stop the query first")
        _check_stopped_well(checkpoint, drop_pending=drop_pending, keep_state=keep_state)
        backup = _back_up(checkpoint, now)
        _append(directory, plan.batch_id, reset_entry(plan, plan.batch_id).to_text())
        return backup


def reset_entry(plan: ResetPlan, batch_id: int) -> OffsetEntry:
    """Return the offset log entry that makes a batch a reset."""
    return plan.checkpoint.newest.with_sources(batch_id, _new_sources(plan))


def _check_stopped_well(checkpoint: Checkpoint, *, drop_pending: bool, keep_state: bool) -> None:
    batch = checkpoint.newest.batch_id
    if checkpoint.has_state and checkpoint.is_pending:
        raise UsageError(
            f"batch {batch} of {checkpoint.directory} is not finished, and the query keeps state, which must match "
            "the finished batches: start the query once to finish the batch"
        )
    if checkpoint.has_state and not keep_state:
        raise UsageError(
            f"the query of {checkpoint.directory} keeps state (for aggregates or joins), which already includes the "
            "records it has read: start the query with a new checkpoint, or give --keep-state"
        )
    if checkpoint.is_pending and not drop_pending:
        raise UsageError(
            f"batch {batch} of {checkpoint.directory} was planned but not finished, so its records may or may not be "
            "in the sink: start the query once to finish the batch, or give --drop-pending to drop it"
        )


def _new_sources(plan: ResetPlan) -> dict[int, StreamOffsets]:
    wanted = {each.partition: each for each in plan.partitions}
    taken_up = {each.partition for each in plan.partitions if each.old is None}
    changed = {}
    for index, source in enumerate(plan.checkpoint.newest.sources):
        if source is None:
            continue
        added = {partition for partition in taken_up if partition.topic in source.topic_ids}
        offsets: dict[PartitionKey, int] = {}
        for partition in added | {TopicPartition(*key) for key in source.next_offsets}:
            new = wanted[partition].new
            if new is not None:
                # Sources with different offsets of a partition keep them if the reset does not change the partition.
                is_same = new == wanted[partition].old
                key = PartitionKey(*partition)
                offsets[key] = source.next_offsets.get(key, new) if is_same else new
        topic_ids = {key.topic: plan.topic_ids[key.topic] for key in offsets}
        changed[index] = StreamOffsets(offsets, topic_ids, is_reset=True, cluster_id=source.cluster_id)
    return changed


def _back_up(checkpoint: Checkpoint, now: datetime) -> Path:
    """Copy the logs, and write the offsets in the form of ``--from-file``."""
    name = f"before-batch-{checkpoint.newest.batch_id + 1}-{now:%Y%m%dT%H%M%S%f}"
    backup = checkpoint.directory / OWN_DIRECTORY / name
    try:
        backup.mkdir(parents=True)
        for log in ("offsets", "commits"):
            if (checkpoint.directory / log).is_dir():
                shutil.copytree(checkpoint.directory / log, backup / log)
        text = write_plans({checkpoint.query_id: offsets_of(checkpoint)})
        (backup / "offsets.csv").write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblemError(f"the logs cannot be copied to {backup}: {error}") from error
    return backup


def _append(directory: Path, batch_id: int, text: str) -> None:
    target = directory / "offsets" / str(batch_id)
    temporary = directory / OWN_DIRECTORY / f"reset-{batch_id}-{uuid.uuid4().hex}"
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # A Hadoop checksum of an earlier file of this name would make this one look damaged.
        (directory / "offsets" / f".{batch_id}.crc").unlink(missing_ok=True)
        os.link(temporary, target)
        _sync(target.parent)
    except FileExistsError:
        raise UsageError(
            f"the query of {directory} has logged batch {batch_id} meanwhile: stop the query first"
        ) from None
    except OSError as error:
        raise EnvironmentProblemError(f"{target} cannot be written: {error}; nothing was changed") from error
    finally:
        temporary.unlink(missing_ok=True)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
