"""Comparison of the offsets in the table's rows with the offsets read.

It is the final evidence if rows have offset columns. The audit reads two or three columns of every live file and turns
them into intervals at once. So memory grows with the number of intervals, not of rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.errors import UsageError
from pyspark_millrace.audit.delta_history import TableFile, TableHistory
from pyspark_millrace.audit.intervals import Interval, compared, intersection, normalized
from pyspark_millrace.audit.topic_log import Holding
from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.offsets import OffsetRange

_KNOWN: Final = (("__topic", "__partition", "__offset"), ("topic", "partition", "offset"))
_TYPES: Final = ("string", "integer", "long")
_ROWS_AT_ONCE: Final = 2**20


@dataclass(frozen=True, slots=True)
class OffsetColumns:
    """Columns with the origin of a row.

    ``topic`` is None if all rows come from one topic.
    """

    topic: str | None
    partition: str
    offset: str


@dataclass(frozen=True, slots=True)
class Discrepancies:
    """Differences between table and batches, by partition. ``unknown``: the topic no longer shows whether it had
    records.
    """

    missing: Mapping[PartitionKey, Sequence[Interval]]
    doubled: Mapping[PartitionKey, Sequence[Interval]]
    unknown: Mapping[PartitionKey, Sequence[Interval]]
    foreign: Mapping[PartitionKey, Sequence[Interval]]


def find_offset_columns(columns: Mapping[str, str], given: str | None) -> OffsetColumns | None:
    """Return the table's offset columns: the given ones (``[topic,]partition,offset``), or well-known names.

    ``partition`` and ``offset`` without underscores count only beside ``topic``, because a typed topic may have columns
    of these names.
    """
    if given is not None:
        names = [name.strip() for name in given.split(",")]
        if len(names) not in (2, 3) or any(name not in columns for name in names):
            raise UsageError(
                f"--offset-columns {given}: expected [topic,]partition,offset of the columns {', '.join(columns)}"
            )
        return OffsetColumns(names[0] if len(names) == 3 else None, names[-2], names[-1])
    for known in _KNOWN:
        if all(columns.get(name) == kind for name, kind in zip(known, _TYPES, strict=True)):
            return OffsetColumns(*known)
    _, partition, offset = _KNOWN[0]
    if columns.get(partition) == "integer" and columns.get(offset) == "long":
        return OffsetColumns(None, partition, offset)
    return None


def obstacle(history: TableHistory, topics: Iterable[str], columns: OffsetColumns | None) -> str | None:
    """Return the reason why rows cannot be checked; None if they can."""
    if columns is None:
        return "the table has no columns with a row's partition and offset (__partition and __offset)"
    if columns.topic is None and len(set(topics)) > 1:
        return "several topics are read, and the table has no column with a row's topic (__topic)"
    if (mode := history.properties.get("delta.columnMapping.mode", "none")) != "none":
        return f"the table uses column mapping (mode {mode})"
    if any(file.has_deletion_vector for file in history.live.values()):
        return "the table has deletion vectors"
    return None


def offsets_in_table(
    history: TableHistory, columns: OffsetColumns, topics: Sequence[str]
) -> tuple[dict[PartitionKey, list[Interval]], list[str]]:
    """Return the offsets of all rows, with repetitions, and the files that cannot be read."""
    found: dict[PartitionKey, list[Interval]] = defaultdict(list)
    unreadable = []
    for file in history.live.values():
        try:
            for topic, partition, offsets in _rows(history, file, columns, topics[0] if topics else ""):
                found[PartitionKey(topic, partition)] += _intervals(offsets)
        except OSError as error:
            unreadable.append(f"{file.path}: {error}")
    return dict(found), unreadable


def compare(
    batches: Iterable[OffsetRange],
    table: Mapping[PartitionKey, Sequence[Interval]],
    holding: Callable[[OffsetRange], Holding],
    known_from: Callable[[PartitionKey], int],
) -> Discrepancies:
    """Compare the offsets of batches with those of the table.

    Below ``known_from`` the checkpoint no longer shows which offsets were read, so each offset in the table counts as
    read once. Offsets without a record in the topic are not missing.
    """
    read: dict[PartitionKey, list[OffsetRange]] = defaultdict(list)
    for wanted in batches:
        read[wanted.key].append(wanted)
    missing, doubled, unknown, foreign = (defaultdict[PartitionKey, list[Interval]](list) for _ in range(4))
    for key in sorted(read.keys() | table.keys()):
        lacking: list[Interval] = []
        spans = [(wanted.start, wanted.end) for wanted in read[key]]
        floor = known_from(key)
        for start, end, expected, there in compared(spans, table.get(key, ())):
            if there < expected:
                lacking.append((start, end))
            elif there > expected and (expected or there > 1):
                doubled[key].append((start, end))
            elif there > expected and end > floor:
                foreign[key].append((max(start, floor), end))
        for wanted in read[key] if lacking else ():
            held = holding(wanted)
            if absent := intersection(held.readable, lacking):
                missing[key] += absent
            if gone := intersection(held.lost, lacking):
                unknown[key] += gone
    return Discrepancies(*map(_normalized, (missing, doubled, unknown, foreign)))


def _normalized(found: Mapping[PartitionKey, Sequence[Interval]]) -> dict[PartitionKey, list[Interval]]:
    return {key: normalized(spans) for key, spans in found.items()}


def _rows(
    history: TableHistory, file: TableFile, columns: OffsetColumns, only_topic: str
) -> Iterator[tuple[str, int, Any]]:
    """Yield offsets of a file's rows by topic and partition. A column may be a partition column of the table."""
    wanted = [name for name in (columns.topic, columns.partition, columns.offset) if name is not None]
    stored = [name for name in wanted if name not in file.partition_values]
    with pq.ParquetFile(history.directory / file.path) as parquet:
        for batch in parquet.iter_batches(_ROWS_AT_ONCE, columns=stored):
            table = pa.table(
                {
                    name: batch.column(name)
                    if name in stored
                    else pa.repeat(pa.scalar(file.partition_values[name], pa.string()), batch.num_rows)
                    for name in wanted
                }
            ).drop_null()
            topics = table[columns.topic] if columns.topic is not None else None
            for topic in pc.unique(topics).to_pylist() if topics is not None else [only_topic]:
                of_topic = table if topics is None else table.filter(pc.equal(topics, topic))
                partitions = of_topic[columns.partition].cast(pa.int32())
                for partition in pc.unique(partitions).to_pylist():
                    chosen = of_topic.filter(pc.equal(partitions, partition))
                    yield topic, partition, chosen[columns.offset].cast(pa.int64()).to_numpy()


def _intervals(offsets: Any) -> list[Interval]:
    """Return runs of offsets; an offset that occurs several times is in several runs."""
    values, counts = np.unique(offsets, return_counts=True)
    runs: list[Interval] = []
    while len(values):
        edges = np.flatnonzero(np.diff(values) != 1) + 1
        starts, ends = np.concatenate(([0], edges)), np.concatenate((edges, [len(values)]))
        runs += [(int(values[start]), int(values[end - 1]) + 1) for start, end in zip(starts, ends, strict=True)]
        counts = counts - 1
        values, counts = values[counts > 0], counts[counts > 0]
    return runs
