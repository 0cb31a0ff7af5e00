"""Where a query goes on reading instead: decided for each partition, and put into its checkpoint.

A reset is an entry of its own at the end of the offset log, whose offsets say that they are a reset. Spark takes it for
a batch that it had planned before it ended, and runs that batch at the next start; the source finds nothing to read in
it; the batch after it begins at the new offsets. So numbers of batches only grow, as sinks need that know batches by
number (a Delta table would skip numbers that it has seen), nothing is taken out of the log, and state stays in step.

Invariants: the entry is complete when it gets its name, and gets it only if no batch of that number exists: a reset is
there or it is not. A query that runs all the same and would log that very batch finds the name taken and ends with
``CONCURRENT_STREAM_LOG_UPDATE``; the other way round the reset finds it taken, and is refused.
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
from pyspark_millrace.partitions import PartitionKey
from pyspark_millrace.planning.offsets import StreamOffsets


@dataclass(frozen=True, slots=True)
class PartitionReset:
    """Old and new offset of a partition; ``new`` is None for one that no longer exists and is left out."""

    partition: TopicPartition
    old: int | None
    new: int | None


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """What a reset does: ``batch_id`` is the number that it takes."""

    checkpoint: Checkpoint
    batch_id: int
    partitions: tuple[PartitionReset, ...]
    topic_ids: Mapping[str, uuid.UUID]


def plan_reset(
    checkpoint: Checkpoint, new: Mapping[TopicPartition, int], topic_ids: Mapping[str, uuid.UUID]
) -> ResetPlan:
    """The reset of some partitions; the others stay where they are, and those of topics that are gone are left out.

    ``topic_ids`` are the topics of the checkpoint that exist, as they are now. Raises ``UsageError`` for a topic that
    the query does not read, and for one that was made anew and is to stay where it was.
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
                f"topic {partition.topic} was deleted and made anew since: give {partition} an offset as well, by "
                "--to-earliest or --to-latest say"
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
    """The next offset of every partition, of all sources of ours; the least where two sources read one partition."""
    found: dict[TopicPartition, int] = {}
    for source in checkpoint.newest.sources:
        for key, offset in source.next_offsets.items() if source is not None else ():
            partition = TopicPartition(*key)
            found[partition] = min(offset, found.get(partition, offset))
    return found


def execute_reset(plan: ResetPlan, now: datetime, *, drop_pending: bool = False, keep_state: bool = False) -> Path:
    """Put a reset into the checkpoint; returns where the copy of the logs as they were before is.

    Raises ``UsageError`` when the query runs, has gone on since the plan was made, left a batch unfinished (unless
    ``drop_pending``) or keeps state (unless ``keep_state``).
    """
    directory = plan.checkpoint.directory
    with not_running(directory):
        checkpoint = read_checkpoint(directory)
        if (checkpoint.newest, checkpoint.done) != (plan.checkpoint.newest, plan.checkpoint.done):
            raise UsageError(f"the query of {directory} has gone on meanwhile: stop it first")
        _check_stopped_well(checkpoint, drop_pending=drop_pending, keep_state=keep_state)
        backup = _back_up(checkpoint, now)
        _append(directory, plan.batch_id, reset_entry(plan, plan.batch_id).to_text())
        return backup


def reset_entry(plan: ResetPlan, batch_id: int) -> OffsetEntry:
    """The entry of the offset log that makes a batch a reset."""
    return plan.checkpoint.newest.with_sources(batch_id, _new_sources(plan))


def _check_stopped_well(checkpoint: Checkpoint, *, drop_pending: bool, keep_state: bool) -> None:
    batch = checkpoint.newest.batch_id
    if checkpoint.has_state and checkpoint.is_pending:
        raise UsageError(
            f"batch {batch} of {checkpoint.directory} is not finished, and the query keeps state, which has to be in "
            "step: start the query once to finish it"
        )
    if checkpoint.has_state and not keep_state:
        raise UsageError(
            f"the query of {checkpoint.directory} keeps state (aggregates, joins or the like), in which what it has "
            "read is counted already: start it anew with another checkpoint, or give --keep-state"
        )
    if checkpoint.is_pending and not drop_pending:
        raise UsageError(
            f"batch {batch} of {checkpoint.directory} was planned and not finished; what it reads may be in the sink "
            "or not: start the query once to finish it, or give --drop-pending to go on without it"
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
                # Sources that stand apart stay apart where the reset does not touch them.
                is_same = new == wanted[partition].old
                key = PartitionKey(*partition)
                offsets[key] = source.next_offsets.get(key, new) if is_same else new
        topic_ids = {key.topic: plan.topic_ids[key.topic] for key in offsets}
        changed[index] = StreamOffsets(offsets, topic_ids, is_reset=True, cluster_id=source.cluster_id)
    return changed


def _back_up(checkpoint: Checkpoint, now: datetime) -> Path:
    """Copy the logs, and write the offsets in the form that ``--from-file`` takes."""
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
        raise EnvironmentProblemError(f"no copy of the logs could be made in {backup}: {error}") from error
    return backup


def _append(directory: Path, batch_id: int, text: str) -> None:
    target = directory / "offsets" / str(batch_id)
    temporary = directory / OWN_DIRECTORY / f"reset-{batch_id}-{uuid.uuid4().hex}"
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # Hadoop's checksum of a file that was there once would make this one look damaged.
        (directory / "offsets" / f".{batch_id}.crc").unlink(missing_ok=True)
        os.link(temporary, target)
        _sync(target.parent)
    except FileExistsError:
        raise UsageError(f"the query of {directory} has logged batch {batch_id} meanwhile: stop it first") from None
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
