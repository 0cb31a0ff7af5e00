"""Rows on their way between stages, with the order of their records.

Beside the layout's columns a frame has ``__offset``, and ``__headers`` if a record has any. Other columns are present
only if they differ from the receiver's default. ``__order``, ``__topic`` and ``__partition`` belong to the input
record. ``__mark.<n>`` are the row's marks, ``__old.<column>`` are the old values of a table's change, and ``__latest``
is the batch's ``latest``. Among records of several partitions, the record with the smaller ``__order`` goes first.
Messages of a foreign-key join have no columns and are pickled; they exist within one micro-batch only.

Rows of several partitions are ordered by ``__sequence`` if the source has it. Otherwise, as in Kafka Streams, the next
record is the first unprocessed one of the partition with the earliest time. A record that is older than an earlier one
of its partition counts with the time of that one. Records of global tables go before all others.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from millrace.clients.producing.partitioner import partitions_of
from millrace_streams.frames.codec import columns_of, values_of
from millrace_streams.frames.evaluation import to_arrow
from millrace_streams.layout import Layout
from millrace_streams.state.hashing import hashable
from millrace_streams.steps.batch import HEADERS, OFFSET, PARTITION, SEQUENCE, TIMESTAMP, TOMBSTONE, TOPIC, Batch, Rows
from millrace_streams.steps.flow import CHANNEL, FIXED, RELEASED, ROOT, Flow, Marks, Origin, in_order
from millrace_streams.windows import Windowed

ORDER: Final = "__order"
_MARK: Final = "__mark."
_OLD: Final = "__old."
_OLD_THERE: Final = "__old"
_LATEST: Final = "__latest"
_PICKLED: Final = "__pickled"
_BUCKET: Final = "__bucket"
_FIRST: Final = -(2**63)


@dataclass(frozen=True, slots=True)
class Roots:
    """Input records of rows, by root mark: their order, positions and headers."""

    order: Rows
    topic: Rows
    partition: Rows
    offset: Rows
    headers: pl.Series | None = None

    def origin(self, topics: Sequence[str]) -> Callable[[int], Origin]:
        """Return a function from root mark to the record's position and headers."""

        def found(root: int) -> Origin:
            place = topics[int(self.topic[root])], int(self.partition[root]), int(self.offset[root])
            given = None if self.headers is None else self.headers.gather([root]).to_list()[0]
            return Origin(*place, tuple((header["key"], header["value"]) for header in given or ()))

        return found

    def headers_of(self, marks: Marks) -> pl.Series | None:
        """Return the headers of the rows' input records; None if no record has headers."""
        if self.headers is None:
            return None
        roots = pl.Series(marks[:, ROOT])
        # Rows from wall-clock punctuations have no input record.
        return self.headers.gather(roots.set(roots < 0, None))

    def find(self, topic: str | None, partition: int | None, offset: int | None, topics: Sequence[str]) -> int | None:
        """Return the root mark of the record at a position; None if there is none."""
        if topic is None or partition is None or offset is None:
            return None
        found = np.flatnonzero(
            (self.topic == topics.index(topic)) & (self.partition == partition) & (self.offset == offset)
        )
        return int(found[0]) if len(found) else None


def repartition_frame(flow: Flow, roots: Roots, *, pickled: bool, topic: bool) -> pl.DataFrame:
    """Return the rows of a flow in their form between stages; ``topic`` means that they may be of several topics."""
    batch, marks = flow.batch, flow.marks
    number = marks[:, ROOT]
    frame = _pickled_frame(batch) if pickled else _plain_frame(batch)
    columns = [
        pl.Series(OFFSET, roots.offset[number]),
        pl.Series(ORDER, roots.order[number]),
        pl.Series(PARTITION, roots.partition[number], dtype=pl.Int32),
    ]
    if topic:
        columns.append(pl.Series(TOPIC, roots.topic[number], dtype=pl.Int32))
    if (headers := roots.headers_of(marks)) is not None:
        columns.append(headers.alias(HEADERS))
    for place in range(ROOT + 1, marks.shape[1]):
        if marks[:, place].any():
            columns.append(pl.Series(f"{_MARK}{place}", marks[:, place]))
    return frame.with_columns(columns)


def head_frame(read: pl.DataFrame, source_number: int, *, goes_first: bool) -> pl.DataFrame:
    """Return rows of a source on the way to their partition's bucket, or to every bucket before all others."""
    frame = read.rename({SEQUENCE: ORDER}, strict=False)
    if goes_first and ORDER not in frame.columns:
        frame = frame.with_columns(pl.lit(_FIRST, pl.Int64).alias(ORDER))
    return frame.with_columns(pl.lit(source_number, pl.Int64).alias(f"{_MARK}{CHANNEL}")) if source_number else frame


def by_bucket(frame: pl.DataFrame, key: Sequence[pa.Field], buckets: int) -> list[tuple[int, pl.DataFrame]]:
    """Divide rows by the bucket of their keys, which have the types of ``key``.

    The hash is that of topic partitions (murmur2). Rows without a key go to the first bucket.
    """
    if not frame.height:
        return []
    if buckets == 1:
        return [(0, frame)]
    keys = to_arrow(_keys(frame, key), pa.schema(key))
    numbers = np.maximum(partitions_of(hashable(keys), buckets), 0)
    parts = frame.with_columns(pl.Series(_BUCKET, numbers)).partition_by(
        _BUCKET, as_dict=True, include_key=False, maintain_order=True
    )
    return [(int(bucket), part) for (bucket,), part in sorted(parts.items())]


def arrive(
    frames: Mapping[str, pl.DataFrame],
    layouts: Mapping[str, Layout],
    topics: Mapping[str, int],
    bucket: int,
    forks: int,
) -> tuple[dict[str, Flow], Roots]:
    """Convert frames that arrived at a stage to flows in record order, by node.

    ``topics`` maps nodes whose rows are all of one topic to the number of that topic.
    """
    whole = pl.concat(
        [_identity(frame, topics.get(name, 0), bucket) for name, frame in frames.items()]
        or [pl.DataFrame(schema=_IDENTITY)],
        how="diagonal",
    )
    numbers, roots = _number(whole)
    flows: dict[str, Flow] = {}
    start = 0
    for name, frame in frames.items():
        marks = _marks(frame, numbers[start : start + frame.height], forks)
        start += frame.height
        flows[name] = _in_order(frame, marks, layouts[name])
    # Several buckets may have released results of one record, so each row gets a number of its own.
    number = 0
    for flow in flows.values():
        released = np.flatnonzero(flow.marks[:, RELEASED])
        flow.marks[released, RELEASED] = np.arange(number + 1, number + 1 + len(released))
        number += len(released)
    return flows, roots


_IDENTITY: Final = {TOPIC: pl.Int32, PARTITION: pl.Int32, OFFSET: pl.Int64, ORDER: pl.Int64}


def _identity(frame: pl.DataFrame, topic: int, bucket: int) -> pl.DataFrame:
    """Return the input record of each row, its order as far as the row knows it, and headers if present."""
    defaults = {TOPIC: pl.lit(topic), PARTITION: pl.lit(bucket), ORDER: pl.col(TIMESTAMP)}
    columns = [pl.col(name) if name in frame.columns else defaults[name].alias(name) for name in _IDENTITY]
    found = frame.select(*columns).cast(_IDENTITY)  # type: ignore[arg-type]
    return found.with_columns(frame[HEADERS]) if HEADERS in frame.columns else found


def _number(rows: pl.DataFrame) -> tuple[Rows, Roots]:
    """Number the records; returns the root mark of each row, and the data of each record."""
    topic, partition, offset, order = (rows[name].to_numpy().astype(np.int64) for name in _IDENTITY)
    sorting = np.arange(len(offset))
    if _changes(topic, partition)[1:].any() or not _is_sorted(offset):
        sorting = np.lexsort([offset, partition, topic])
        topic, partition, offset, order = topic[sorting], partition[sorting], offset[sorting], order[sorting]
    place_changes = _changes(topic, partition)
    begins = place_changes | _changes(offset)
    order = _never_back(order, np.flatnonzero(place_changes))
    if begins.all() and _is_sorted(order):
        # The usual batch has a row per record, and the order of offsets is that of records.
        numbers = np.empty(len(order), dtype=np.int64)
        numbers[sorting] = np.arange(len(order))
        headers = rows[HEADERS].gather(sorting) if HEADERS in rows.columns else None
        return numbers, Roots(order, topic, partition, offset, headers)
    first = np.flatnonzero(begins)
    # Rows of one record have the order of the last of them.
    last = np.append(first[1:], len(order)) - 1 if len(first) else first
    # Records of equal order stay sorted by topic, partition, offset.
    of_record = np.argsort(order[last], kind="stable")
    rank = np.empty(len(first), dtype=np.int64)
    rank[of_record] = np.arange(len(first))
    numbers = np.empty(len(order), dtype=np.int64)
    numbers[sorting] = rank[np.cumsum(begins) - 1]
    found = first[of_record]
    headers = rows[HEADERS].gather(sorting[found]) if HEADERS in rows.columns else None
    return numbers, Roots(order[last][of_record], topic[found], partition[found], offset[found], headers)


def _changes(*columns: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a mask of rows that differ from the previous row; the first one does."""
    changed = np.zeros(len(columns[0]), dtype=np.bool_)
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    changed[:1] = True
    return changed


def _is_sorted(numbers: Rows) -> bool:
    return bool((numbers[1:] >= numbers[:-1]).all())


def _never_back(order: Rows, begins: Rows) -> Rows:
    """Return the largest order so far, per partition."""
    result = order.copy()
    for start, end in pairwise([*begins, len(order)]):
        np.maximum.accumulate(order[start:end], out=result[start:end])
    return result


def _marks(frame: pl.DataFrame, roots: Rows, forks: int) -> Marks:
    marks = np.zeros((frame.height, FIXED + forks), dtype=np.int64)
    marks[:, ROOT] = roots
    for place in range(ROOT + 1, marks.shape[1]):
        if (name := f"{_MARK}{place}") in frame.columns:
            marks[:, place] = frame[name].fill_null(0).to_numpy()
    return marks


def _in_order(frame: pl.DataFrame, marks: Marks, layout: Layout) -> Flow:
    if marks[:, ROOT + 1 :].any() or not _is_sorted(marks[:, ROOT]):
        order = in_order(marks)
        frame, marks = frame[order], marks[order]
    return Flow(_batch(frame, layout), marks)


def _plain_frame(batch: Batch) -> pl.DataFrame:
    layout, frame = batch.layout, batch.frame
    reserved = [TIMESTAMP, TOMBSTONE] if TOMBSTONE in frame.columns else [TIMESTAMP]
    plain = frame.select(*layout.names, *reserved)
    if layout.table and any(old is not None for old in batch.olds):
        olds = columns_of(layout, batch.keys, batch.olds)
        values = [each.alias(f"{_OLD}{each.name}") for each in olds if each.name in layout.value_columns]
        there = pl.Series(_OLD_THERE, [old is not None for old in batch.olds], dtype=pl.Boolean)
        plain = plain.with_columns(*values, there)
    if batch.latest is not None:
        plain = plain.with_columns(pl.Series(_LATEST, batch.latest, dtype=pl.Boolean))
    return plain


def _batch(frame: pl.DataFrame, layout: Layout) -> Batch:
    if _PICKLED in frame.columns:
        rows = [pickle.loads(row) for row in frame[_PICKLED].to_list()]
        keys, values = [key for key, _ in rows], [value for _, value in rows]
        return Batch.of_lists(layout, keys, values, frame[TIMESTAMP].to_list())
    reserved = [TIMESTAMP, TOMBSTONE] if TOMBSTONE in frame.columns else [TIMESTAMP]
    batch = Batch.of_frame(layout, frame.select(*layout.names, *reserved), olds=_olds(frame, layout))
    if _LATEST in frame.columns:
        batch.latest = frame[_LATEST].fill_null(True).to_list()
    return batch


def _olds(frame: pl.DataFrame, layout: Layout) -> list[Any] | None:
    if _OLD_THERE not in frame.columns:
        return None
    names = [name for name in layout.names if name not in layout.value_columns]
    olds = frame.select(*names, *(pl.col(f"{_OLD}{name}").alias(name) for name in layout.value_columns))
    values = values_of(layout, olds)
    return [value if there else None for value, there in zip(values, frame[_OLD_THERE].to_list(), strict=True)]


def _pickled_frame(batch: Batch) -> pl.DataFrame:
    rows = [pickle.dumps(row) for row in zip(batch.keys, batch.values, strict=True)]
    return pl.DataFrame(
        [
            pl.Series(_PICKLED, rows, dtype=pl.Binary),
            pl.Series(TIMESTAMP, batch.times, dtype=pl.Int64),
        ]
    )


def _keys(frame: pl.DataFrame, key: Sequence[pa.Field]) -> pl.DataFrame:
    """Return the columns that determine the bucket: those of the key, without its window."""
    if _PICKLED not in frame.columns:
        return frame.select(field.name for field in key)
    keys = [pickle.loads(row)[0] for row in frame[_PICKLED].to_list()]
    bare = Layout(schema=pa.schema(key), key=tuple(field.name for field in key), bucket_columns=None)
    found = [each.key if isinstance(each, Windowed) else each for each in keys]
    return pl.DataFrame(columns_of(bare, found, [None] * len(found)))
