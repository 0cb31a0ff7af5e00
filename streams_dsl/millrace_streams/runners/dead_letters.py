"""Dead letters: records that fail in a function or serde.

A record becomes a dead letter as a whole at the start of the stage that it reached. It changes nothing there, as if it
had not arrived; results of earlier stages stay. A dead letter holds the original key and value if they were bytes;
otherwise it holds them as JSON, as they reached that stage. Its headers have the record's position and the error.

The records that fail are the same as if they came one by one. A record may fail because of a state change of an earlier
record, which fails itself further on. So after a failure, the records before the failing one run by themselves first.
If they succeed, the record is bad. Parts that succeed are ended like batches of their own and are not repeated. The
next part is twice as long. So a batch with many bad records takes a few short runs for each of them. A batch with one
bad record takes about as long as three runs of a good batch.

If a result fails that a record only released (``steps.flow.RELEASED``), the result becomes the dead letter, and not the
record. Otherwise each later record would release the same result, and fail. The record is run again, and the result
leaves its store without any other effect. Each bad result takes such a run. Those that cannot depend on each other
(``Inputs.apart``), and fail in the same function call, take one together.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from millrace_streams.errors import UserFunctionError
from millrace_streams.frames.packed import pack_frame, unpack_frame
from millrace_streams.layout import Layout
from millrace_streams.runners.bucket_tasks import Tasks
from millrace_streams.runners.output import HEADERS_TYPE
from millrace_streams.runners.packed_rows import OUT, Packed
from millrace_streams.runners.shuffle import Roots
from millrace_streams.steps.batch import TIMESTAMP, Rows
from millrace_streams.steps.flow import ROOT, Flow, LeftOut
from millrace_streams.steps.task import Task, TaskResult, merged

DEAD_LETTERS: Final = "dead letters"
"""The ``target`` of dead letters among packed rows."""

COLUMNS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("node", pa.string()),
        ("reason", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
LAYOUT: Final = Layout(schema=COLUMNS, key=(), bucket_columns=None)
_HEADERS: Final = {
    "reason": "__millrace.errors.reason",
    "topic": "__millrace.errors.topic",
    "partition": "__millrace.errors.partition",
    "offset": "__millrace.errors.offset",
    "node": "__millrace.errors.node",
}
"""Headers of the jobs' dead letters, and the node's name."""
RECORDS: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", HEADERS_TYPE),
    ]
)


class DeadLetter(NamedTuple):
    """Failed record with its position, the failing node and the reason.

    A released result has the position of the record that released it. Without one (a punctuation by wall clock), the
    topic is empty, and partition and offset are -1.
    """

    topic: str
    partition: int
    offset: int
    node: str
    reason: str
    key: bytes | None
    value: bytes | None
    time_ms: int


def as_bytes(value: Any) -> bytes | None:
    """Return a key or value as written: bytes unchanged, others as JSON."""
    return value if value is None or isinstance(value, bytes) else json.dumps(value, default=repr).encode()


def packed_letters(letters: Sequence[DeadLetter], bucket: int) -> Iterator[Packed]:
    """Yield the packed row of dead letters."""
    if letters:
        columns = dict(zip((*COLUMNS.names, TIMESTAMP), zip(*letters, strict=True), strict=True))
        types = {"partition": pl.Int32, "key": pl.Binary, "value": pl.Binary, TIMESTAMP: pl.Int64}
        frame = pl.DataFrame(columns, schema_overrides=types)
        yield Packed(OUT, bucket, DEAD_LETTERS, rows=len(letters), payload=pack_frame(frame))


class RunPart(Protocol):
    """Run of a part of a batch through a task.

    Released rows in ``aside`` are left out.
    """

    def __call__(self, task: Task, arrivals: Mapping[str, Flow], *, aside: Collection[tuple[int, int]]) -> TaskResult:
        """Run the part."""
        ...


def run_without_bad(
    run: RunPart,
    tasks: Tasks,
    arrivals: Mapping[str, Flow],
    roots: Roots,
    topics: Sequence[str],
) -> tuple[TaskResult, list[DeadLetter]]:
    """Run a batch without the records and released results that fail.

    Raises ``UserFunctionError`` if none of them is the cause.
    """
    numbers = np.unique(np.concatenate([flow.marks[:, ROOT] for flow in arrivals.values()]))
    letters: list[DeadLetter] = []
    results: list[TaskResult] = []
    start, length = 0, len(numbers)
    bad: UserFunctionError | None = None
    """Error of the record that follows the current part, or of a result that it releases."""
    aside: dict[tuple[int, int], UserFunctionError] = {}
    """Bad results that the first record of the current part releases."""
    while start < len(numbers) or not results:
        task, part = tasks.begin(), numbers[start : start + length]
        try:
            result = run(task, _of_roots(arrivals, part), aside=aside)
        except UserFunctionError as error:
            root = roots.find(error.topic, error.partition, error.offset, topics)
            if error.released is not None:
                root, _ = error.released
            if root is None:
                raise
            bad, length = error, int(np.searchsorted(part, root))
            if length:
                continue
            part = part[:0]
        else:
            tasks.end(task, result)
            results.append(result)
            letters += (_letter_of_result(aside[left.root, left.number], left) for left in result.left_out)
            aside = {}
        start += len(part)
        length = max(2 * len(part), 1)
        if bad is not None and bad.released is not None:
            # Results with later numbers may differ without this one, so they must fail again.
            aside = {each: error for each, error in aside.items() if each < bad.released}
            aside.update({error.released: error for error in (bad, *bad.alike) if error.released is not None})
        elif bad is not None:
            letters.append(_letter(bad, arrivals, int(numbers[start])))
            start, aside = start + 1, {}
        bad = None
    return merged(results, task.stores), letters


def _of_roots(arrivals: Mapping[str, Flow], roots: Rows) -> dict[str, Flow]:
    """Return the rows of consecutive records."""
    found = {}
    for name, flow in arrivals.items():
        marks = flow.marks[:, ROOT]
        first, end = np.searchsorted(marks, roots[[0, -1]] + [0, 1]) if len(roots) else (0, 0)
        found[name] = Flow(flow.batch.take(np.arange(first, end)), flow.marks[first:end])
    return found


def _letter(error: UserFunctionError, arrivals: Mapping[str, Flow], root: int) -> DeadLetter:
    batch, row = next(
        (flow.batch, rows[0]) for flow in arrivals.values() if len(rows := np.flatnonzero(flow.marks[:, ROOT] == root))
    )
    return _letter_of_row(error, batch.keys[row], batch.values[row], batch.times[row])


def _letter_of_result(error: UserFunctionError, left_out: LeftOut) -> DeadLetter:
    return _letter_of_row(error, left_out.key, left_out.value, left_out.time_ms)


def _letter_of_row(error: UserFunctionError, key: Any, value: Any, time_ms: int) -> DeadLetter:
    return DeadLetter(
        error.topic or "",
        -1 if error.partition is None else error.partition,
        -1 if error.offset is None else error.offset,
        error.node or "",
        error.message,
        as_bytes(key),
        as_bytes(value),
        time_ms,
    )


@dataclass(frozen=True, slots=True)
class LetterRecords:
    """Conversion of packed dead letters to records of a topic of bytes.

    The object is a callable for ``mapInArrow``.
    """

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records of a Spark task's dead letters."""
        for batch in batches:
            for payload in batch.column("payload"):
                yield from self._records(unpack_frame(payload.as_py()))

    def _records(self, frame: pl.DataFrame) -> Iterator[pa.RecordBatch]:
        rows = frame.to_dicts()
        headers = [
            [{"key": name, "value": str(row[column]).encode()} for column, name in _HEADERS.items()] for row in rows
        ]
        columns = [
            pa.array([row["key"] for row in rows], pa.binary()),
            pa.array([row["value"] for row in rows], pa.binary()),
            pa.array([row[TIMESTAMP] * 1000 for row in rows], pa.int64()).cast(RECORDS.field("timestamp").type),
            pa.array(headers, HEADERS_TYPE),
        ]
        yield from pa.Table.from_arrays(columns, schema=RECORDS).to_batches()
