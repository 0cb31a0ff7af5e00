"""Application reset, as by Kafka's application reset tool: no state, chosen offsets.

The new checkpoint belongs to a new query, with its own id and batch numbers, so sinks accept its results as new ones.
Tables and topics keep their content. Rows of an upserted table are written again. Appended rows and a topic's records
are duplicated unless they are removed first.
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
    """Replace a stopped query's checkpoint by a new one; returns the new location of the old one.

    Without ``positions`` the query starts as for the first time, at ``startingOffsets``. Raises as ``swap`` does.
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
