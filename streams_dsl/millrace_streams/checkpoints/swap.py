"""One checkpoint in the place of another: two renames, of which a crash may part the second from the first.

Invariants: ``<checkpoint>.next`` is whole from the moment that it has this name; the old checkpoint is renamed and
never deleted; if there is no checkpoint and a ``.next``, the swap was begun, and whoever comes next (a query that
starts, another reset or rebuild) finishes it.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from millrace.errors import EnvironmentProblemError, UsageError
from pyspark_millrace.checkpoints.query_log import Checkpoint, read_checkpoint
from pyspark_millrace.checkpoints.running import not_running


def finish_swap(checkpoint: Path) -> None:
    """Finish a swap that was begun and not finished, if there is one."""
    following = _following(checkpoint)
    if following.is_dir() and not checkpoint.exists():
        _rename(following, checkpoint)


def swap(checkpoint: Path, fresh: Path, *, because: str, now: datetime) -> Path:
    """Put the directory ``fresh`` in the checkpoint's place; gives where the old checkpoint is.

    Raises ``UsageError`` when the query runs, ``EnvironmentProblemError`` where directories cannot be renamed.
    """
    kept = checkpoint.with_name(f"{checkpoint.name}.before-{because}-{now:%Y%m%dT%H%M%S%f}")
    with not_running(checkpoint):
        _rename(fresh, _following(checkpoint))
        _rename(checkpoint, kept)
        finish_swap(checkpoint)
    return kept


def stopped_checkpoint(directory: Path) -> Checkpoint:
    """The checkpoint of a query that has finished its last batch.

    Raises ``UsageError`` when it has not, and for a directory that is no checkpoint.
    """
    finish_swap(directory)
    checkpoint = read_checkpoint(directory)
    if checkpoint.entries and checkpoint.is_pending:
        raise UsageError(
            f"batch {checkpoint.newest.batch_id} of {directory} was planned and not finished; what it gives may be out "
            "or not: start the query once to finish it"
        )
    return checkpoint


def _following(checkpoint: Path) -> Path:
    """Where the checkpoint that comes next lies, when it is whole."""
    return checkpoint.with_name(f"{checkpoint.name}.next")


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
