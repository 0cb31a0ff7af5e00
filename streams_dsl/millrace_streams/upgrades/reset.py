"""An application put back to its beginning, as by Kafka's application reset tool: no state, offsets of one's choice.

The new checkpoint is of another query, with an id and batch numbers of its own, so that sinks take its results for what
they are: new ones. What tables and topics hold stays: rows of an upserted table are written again, appended ones and a
topic's records come twice unless they are removed first.
"""

from __future__ import annotations

import json
import shutil
import uuid
from datetime import datetime
from pathlib import Path

from millrace.errors import EnvironmentProblemError
from millrace_streams.checkpoints.swap import swap
from pyspark_millrace.checkpoints.reset import ResetPlan, reset_entry


def execute_reset(directory: Path, now: datetime, positions: ResetPlan | None = None) -> Path:
    """Put a fresh checkpoint in the place of a stopped query's; gives where the old one is.

    Without ``positions`` the query begins as for the first time, where ``startingOffsets`` says. Raises as ``swap``.
    """
    fresh = directory.with_name(f"{directory.name}.resetting-{uuid.uuid4().hex}")
    try:
        fresh.mkdir()
        if positions is not None:
            (fresh / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}), encoding="utf-8")
            (fresh / "offsets").mkdir()
            entry = reset_entry(positions, batch_id=0)
            (fresh / "offsets" / "0").write_text(entry.to_text(), encoding="utf-8")
        return swap(directory, fresh, because="reset", now=now)
    except OSError as error:
        raise EnvironmentProblemError(f"{fresh} cannot be written: {error.strerror}; nothing was changed") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
