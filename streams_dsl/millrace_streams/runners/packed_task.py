"""Stateful processor of a stage, with stores in Spark's state store.

Each store has a list, its log. The pages of all stores share one map, because opening a state variable costs some
milliseconds in every micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from millrace_streams.graph.store_names import PAGES, state_name
from millrace_streams.runners.bucket_tasks import KeptTasks
from millrace_streams.runners.packed_rows import OUT, Packed
from millrace_streams.runners.references import ReferredSource, resolved
from millrace_streams.runners.worker import WorkerStage, total_dropped
from millrace_streams.state.pages import Page
from millrace_streams.state.rows import LIMITS, Limits
from pyspark_millrace.worker_garbage import settle_worker

_CHUNK: Final = StructType([StructField("chunk", BinaryType())])
_PAGE: Final = StructType(
    [StructField("store", StringType()), StructField("slot", LongType()), StructField("part", IntegerType())]
)


class PackedTask(StatefulProcessor):  # type: ignore[misc]
    """Spark's ``StatefulProcessor`` that runs a stage. A micro-batch makes one call per bucket with rows."""

    def __init__(
        self, worker_stage: WorkerStage, limits: Limits = LIMITS, sources: Mapping[str, ReferredSource] | None = None
    ) -> None:
        """Create the processor of ``worker_stage``; ``limits`` are those of its stores' logs and pages.

        ``sources`` are the sources that it reads itself, by the node of their rows.
        """
        self._worker_stage = worker_stage
        self._sources = dict(sources or {})
        self._limits = limits
        self._states: dict[str, SparkVariables] = {}

    def init(self, handle: Any) -> None:
        """Open the log of each store, and the pages."""
        specs = self._worker_stage.stores
        pages = handle.getMapState(PAGES, _PAGE, _CHUNK) if specs else None
        for spec in specs:
            self._states[spec.name] = SparkVariables(
                spec.name, handle.getListState(state_name(spec.name), _CHUNK), pages
            )

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """Run a bucket's part of a micro-batch. Argument names are Spark's, which passes them by keyword."""
        own: list[Packed] = []
        given = (Packed(*(row[name] for name in Packed._fields)) for row in rows)
        for packed in chain.from_iterable(resolved(each, self._sources) for each in given):
            if packed.stage == self._worker_stage.stage.number:
                own.append(packed)
            else:
                yield Row(**packed._asdict())
        if own:
            for packed in self._run(own, own[0].bucket):
                yield Row(**packed._asdict())

    def _run(self, runs: list[Packed], bucket: int) -> Iterator[Packed]:
        worker_stage = self._worker_stage
        tasks = KeptTasks(
            partial(worker_stage.task, bucket), worker_stage.stores, self._states, worker_stage.buckets, self._limits
        )
        outcome = worker_stage.run(tasks, runs, bucket)
        yield from worker_stage.packed(outcome, bucket)
        dropped = sum(run.dropped for run in runs) + total_dropped(outcome.result)
        yield Packed(OUT, bucket, records=sum(run.records for run in runs), dropped=dropped)

    def close(self) -> None:
        """Settle the worker; no resource is open. Spark calls it at the end of a task."""
        settle_worker()


@dataclass(frozen=True, slots=True)
class SparkVariables:
    """State of one store in Spark's state store, for the current bucket."""

    store: str
    log: Any
    pages: Any

    def read_log(self) -> list[bytes]:
        """Return the log's chunks, in order."""
        return [bytes(row[0]) for row in self.log.get()]

    def append_to_log(self, chunk: bytes) -> None:
        """Append a chunk to the log."""
        self.log.appendValue((chunk,))

    def replace_log(self, chunk: bytes) -> None:
        """Replace the whole log by one chunk."""
        self.log.put([(chunk,)])

    def read_page(self, page: Page) -> bytes | None:
        """Return a page; None if it is empty."""
        row = self.pages.getValue((self.store, *page))
        return None if row is None else bytes(row[0])

    def write_page(self, page: Page, chunk: bytes) -> None:
        """Write a page."""
        self.pages.updateValue((self.store, *page), (chunk,))

    def remove_page(self, page: Page) -> None:
        """Remove a page, if it exists."""
        self.pages.removeKey((self.store, *page))
