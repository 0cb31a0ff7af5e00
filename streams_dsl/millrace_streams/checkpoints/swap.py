"""Replacement of a checkpoint by another, safe against a crash.

It takes two renames, and a crash may happen between them.

Invariants: ``<checkpoint>.next`` is complete as soon as it has this name. The old checkpoint is renamed and never
deleted. If a ``.next`` exists without a checkpoint, a swap was started. The next user of the checkpoint (a starting
query, a reset or a rebuild) finishes it. If both exist and nobody holds the lock, a crash ended the swap before the old
checkpoint was renamed. The next user keeps the old checkpoint and puts the ``.next`` aside.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from millrace.errors import EnvironmentProblemError, UsageError
from pyspark_millrace.checkpoints.query_log import Checkpoint, read_checkpoint
from pyspark_millrace.checkpoints.running import not_running


def finish_swap(checkpoint: Path) -> None:
    """Finish a started swap, if there is one, or put its new checkpoint aside if the old one is still there."""
    following = _following(checkpoint)
    if following.is_dir() and not checkpoint.exists():
        _rename(following, checkpoint)
    elif following.is_dir():
        # If another process holds the lock, its swap may be under way.
        with suppress(UsageError), not_running(checkpoint):
            _put_aside(following)


def swap(checkpoint: Path, fresh: Path, *, because: str, now: datetime) -> Path:
    """Replace the checkpoint by the directory ``fresh``; returns the new location of the old checkpoint.

    Raises ``UsageError`` if the query runs, ``EnvironmentProblemError`` if directories cannot be renamed.
    """
    kept = checkpoint.with_name(f"{checkpoint.name}.before-{because}-{now:%Y%m%dT%H%M%S%f}")
    with not_running(checkpoint):
        _put_aside(_following(checkpoint))
        _rename(fresh, _following(checkpoint))
        _rename(checkpoint, kept)
        finish_swap(checkpoint)
    return kept


def stopped_checkpoint(directory: Path) -> Checkpoint:
    """Read the checkpoint of a query that has finished its last batch.

    Raises ``UsageError`` if the batch is unfinished, and if the directory is no checkpoint.
    """
    finish_swap(directory)
    checkpoint = read_checkpoint(directory)
    if checkpoint.entries and checkpoint.is_pending:
        raise UsageError(
            f"batch {checkpoint.newest.batch_id} of {directory} was planned but not finished, so its rows may or may "
            "not be written: start the query once to finish the batch"
        )
    return checkpoint


def _following(checkpoint: Path) -> Path:
    """Return the location of the complete next checkpoint."""
    return checkpoint.with_name(f"{checkpoint.name}.next")


def _put_aside(following: Path) -> None:
    if following.is_dir():
        _rename(following, following.with_name(f"{following.name}.unused-{uuid.uuid4().hex}"))


def _rename(source: Path, target: Path) -> None:
    try:
        source.rename(target)
        descriptor = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise EnvironmentProblemError(f"{source} cannot be renamed to {target.name}: {error.strerror}") from error
