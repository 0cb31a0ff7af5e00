"""Run of a job: session, progress, signals, errors, exit code.

Exit codes: 0 done or stopped; 1 failed, with the reason on standard error; 2 wrong arguments. A job without a
checkpoint to resume from returns 3 if it was stopped early.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from millrace.errors import MillraceError
from pyspark_millrace.job.command_line import ArgumentsT, StreamArguments
from pyspark_millrace.job.signals import stop_on_signals, stop_on_signals_of_jvm

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

EXIT_CUT_OFF: Final = 3
_POLL_SECONDS: Final = 0.2
_PROGRESS_SECONDS: Final = 5.0
_LAST_BATCH_SECONDS: Final = 10.0
"""Grace period of a query that is stopped: a third of the period before Kubernetes kills the process."""
_SIGNAL_SECONDS: Final = 0.5
"""A signal reaches the JVM and this process. This process may receive it this much later."""

_QUERY_FAILURE_LOGGERS: Final = (
    "streaming.runtime.MicroBatchExecution",
    "datasources.v2.AppendDataExec",
    "datasources.v2.WriteToDataSourceV2Exec",
)


class Report:
    """Console report with a line for each written micro-batch.

    ``rows`` is the total number of rows.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._last = -1

    def add(self, batch_id: int, rows: int, seconds: float) -> None:
        """Report a finished batch; repeated and empty batches are ignored."""
        if batch_id <= self._last or not rows:
            return
        self._last = batch_id
        self.rows += rows
        say(f"batch {batch_id}: {rows:,} rows in {seconds:.1f} s ({rows / max(seconds, 0.001):,.0f} rows/s)")

    def add_progress(self, query: StreamingQuery) -> None:
        """Report the batches in Spark's recent progress."""
        for progress in query.recentProgress:
            milliseconds = progress["durationMs"].get("triggerExecution", 0)
            self.add(progress["batchId"], progress["numInputRows"], milliseconds / 1000)


@dataclass(frozen=True, slots=True)
class QueryJob:
    """Names of a query, its source, target and checkpoint, for its messages."""

    name: str
    source: str
    target: str
    checkpoint: str
    counted: str = "rows"
    delta: bool = True
    spark_counts: bool = True
    """True if Spark's progress counts the rows; otherwise the job adds them to the report."""


def run_query(
    job: QueryJob,
    arguments: StreamArguments,
    stopping: Event,
    start: Callable[[SparkSession, Report], StreamingQuery],
) -> None:
    """Start Spark and the query, report its batches until it ends or is stopped, and print a summary.

    Raises the error of the query.
    """
    root = os.path.dirname(job.checkpoint) or "."
    spark = start_spark(job.name, stopping, profile=arguments.profile, delta=job.delta, checkpoint_root=root)
    say(f"{job.source} at {arguments.servers} -> {job.target} (checkpoint {job.checkpoint})")
    started, report = time.monotonic(), Report()
    query = start(spark, report)
    follow(query, stopping, report.add_progress if job.spark_counts else lambda query: None)
    seconds = time.monotonic() - started
    say(f"{report.rows:,} {job.counted} in {seconds:.1f} s ({report.rows / seconds:,.0f} /s) -> {job.target}")
    spark.stop()


def start_spark(
    name: str,
    stopping: Event,
    *,
    profile: str = "default",
    delta: bool = True,
    checkpoint_root: str | None = None,
) -> SparkSession:
    """Create the session of a job (see ``pyspark_millrace.session``): quiet, with signals handled by the job."""
    from pyspark_millrace import session

    spark = session(name, profile=profile, delta=delta, checkpoint_root=checkpoint_root)
    spark.sparkContext.setLogLevel("ERROR")
    # The job prints one sentence in place of Spark's long log of a query failure.
    log4j = spark._jvm.org.apache.logging.log4j
    for logger in _QUERY_FAILURE_LOGGERS:
        log4j.core.config.Configurator.setLevel(f"org.apache.spark.sql.execution.{logger}", log4j.Level.OFF)
    # Spark's context has just installed its own handler of Ctrl-C, which would abort running work.
    stop_on_signals(stopping)
    stop_on_signals_of_jvm(spark.sparkContext, stopping)
    return spark


def follow(
    query: StreamingQuery, stopping: Event, each_time: Callable[[StreamingQuery], None] = lambda query: None
) -> None:
    """Wait until the query ends or is stopped, if possible between two micro-batches.

    Raises the error of the query.
    """
    while query.isActive and not stopping.is_set():
        stopping.wait(_POLL_SECONDS)
        each_time(query)
    if stopping.is_set() and query.isActive:
        say(f"stopping: the next run reads records again that are not committed within {_LAST_BATCH_SECONDS:.0f} s")
        _let_batch_end(query)
        query.stop()
    else:
        query.awaitTermination()
    each_time(query)


def _let_batch_end(query: StreamingQuery) -> None:
    """Wait until the current micro-batch is committed, or the grace period ends."""
    deadline = time.monotonic() + _LAST_BATCH_SECONDS
    before = _batches_done(query)
    while (
        query.isActive
        and query.status["isTriggerActive"]
        and _batches_done(query) == before
        and time.monotonic() < deadline
    ):
        time.sleep(_POLL_SECONDS)


def _batches_done(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


@contextmanager
def watched(spark: SparkSession, stopping: Event) -> Iterator[None]:
    """Report the progress of Spark's work in the block every few seconds, and cancel it when the job is stopped.

    Cancelled work raises Spark's error. Work that ends before the cancellation succeeds.
    """
    over = Event()
    watcher = Thread(target=_watch, args=(spark.sparkContext, stopping, over), name="watcher of the job")
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(context: SparkContext, stopping: Event, over: Event) -> None:
    from py4j.protocol import Py4JError

    try:
        _report_progress(context, stopping, over)
        if not over.is_set():
            say("stopping: records that are not committed yet are left out")
        while not over.wait(_POLL_SECONDS):
            context.cancelAllJobs()  # repeatedly, because Spark may be between two jobs
    except Py4JError:
        return  # the JVM has ended, which the waiting thread notices itself


def _report_progress(context: SparkContext, stopping: Event, over: Event) -> None:
    told = time.monotonic()
    while not stopping.is_set() and not over.wait(_POLL_SECONDS):
        if time.monotonic() - told >= _PROGRESS_SECONDS and (progress := _progress(context)):
            say(progress)
            told = time.monotonic()


def _progress(context: SparkContext) -> str | None:
    """Return the progress of Spark's active job; None between two jobs."""
    tracker = context.statusTracker()
    jobs = [job for number in tracker.getActiveJobsIds() if (job := tracker.getJobInfo(number)) is not None]
    stages = [stage for job in jobs for number in job.stageIds if (stage := tracker.getStageInfo(number)) is not None]
    if not stages:
        return None
    done, all_ = sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
    return f"Spark's job {jobs[0].jobId}: {done} of {all_} tasks are done"


def run_job(run: Callable[[ArgumentsT, Event], None], arguments: ArgumentsT, *, exit_cut_off: int = 0) -> int:
    """Run a job and return its exit code; SIGTERM and Ctrl-C set the event.

    ``exit_cut_off`` is the exit code of a run that a signal broke off. It is 0 for a query that resumes at its next
    start.
    """
    stopping = Event()
    stop_on_signals(stopping)
    try:
        run(arguments, stopping)
    except MillraceError as error:
        complain(error.message)
        return 1
    except Exception as error:  # noqa: BLE001  reported in a sentence and by the exit code
        if stopping.wait(_SIGNAL_SECONDS):
            # The signal stopped Spark as well, perhaps in the middle of a call. Committed batches stay committed.
            return exit_cut_off
        from pyspark_millrace.spark_errors import explain

        complain(explain(error))
        return 1
    return 0


def say(text: str) -> None:
    """Print a line and flush it, so that it appears in a pipe as well."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def complain(reason: str) -> None:
    """Print the reason of a failure."""
    sys.stderr.write(f"error: {reason}\n")
