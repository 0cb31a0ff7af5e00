"""A chunk of batches with their records joined for vectorised decisions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa

from millrace_broker.log.cleaning.batches import CleanableBatch, Longs, Mask, RecordKeys, TopicKeys, V2Batch
from millrace_broker.log.cleaning.row_runs import Rewriting, RowRun


class Chunk:
    """The joined records of several batches.

    ``keys`` are bytes, null for a record without a key. Batch *n* has ``sizes[n]`` records.
    """

    def __init__(self, batches: Sequence[CleanableBatch], topic_keys: TopicKeys) -> None:
        self._batches: Final = batches
        self._runs: Final[dict[int, tuple[RowRun, int]]] = {}
        """For batches in a run: the run and the number of its first batch."""
        parts: list[RecordKeys] = []
        number = 0
        for is_run, group in groupby(batches, key=lambda batch: isinstance(batch, V2Batch) and batch.is_rows):
            members = list(group)
            parts += self._read_run(members, number) if is_run else [batch.keys() for batch in members]
            number += len(members)
        self.sizes: Final[list[int]] = [batch.count for batch in batches]
        self.offsets: Final[Longs] = np.concatenate([part.offsets for part in parts])
        self.has_value: Final[Mask] = np.concatenate([part.has_value for part in parts])
        columns = [pa.concat_arrays(arrays) for arrays in zip(*(part.keys for part in parts), strict=True)]
        self.keys: Final[pa.Array] = topic_keys.of(columns)

    def _read_run(self, members: Sequence[CleanableBatch], first: int) -> list[RecordKeys]:
        batches = [batch for batch in members if isinstance(batch, V2Batch)]
        try:
            run = RowRun([batch.body for batch in batches], [batch.header for batch in batches])
        except ValueError:  # irregular; the reference reader checks whether it is damaged
            return [batch.keys() for batch in batches]
        self._runs.update({first + number: (run, first) for number in range(len(batches))})
        return [RecordKeys(run.offsets, (run.keys(),), run.has_value)]

    def rewrite(self, wanted: Sequence[Rewriting]) -> dict[int, bytes]:
        """Rewrite batches by their numbers; each keeps at least one record."""
        written: dict[int, bytes] = {}
        of_runs: dict[int, list[Rewriting]] = {}
        for each in wanted:
            if each.number in self._runs:
                of_runs.setdefault(self._runs[each.number][1], []).append(each)
            else:
                kept = None if each.kept.all() else each.kept
                written[each.number] = self._batches[each.number].thinned(kept, each.delete_horizon_ms)
        for first, rewritings in of_runs.items():
            run = self._runs[first][0]
            in_run = [each._replace(number=each.number - first) for each in rewritings]
            written |= zip((each.number for each in rewritings), run.rewrite(in_run), strict=True)
        return written
