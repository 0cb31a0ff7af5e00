"""``monitor(spark)``: offset commits, locks and metrics of streaming queries.

The monitor gets Spark's events and the reports of tasks. One monitor serves all sessions of a process.

Invariants: an error in the monitor neither ends nor delays a query. Spark's listener thread only records the events,
and the monitor's own threads call the brokers.
"""

from __future__ import annotations

import atexit
import logging
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from prometheus_client import CollectorRegistry
from pyspark.sql.streaming.listener import StreamingQueryListener

from millrace.clients import Admin
from millrace.clients.model import TopicPartition
from millrace.errors import UsageError
from pyspark_millrace.checkpoints.query_log import checkpoint_directory
from pyspark_millrace.checkpoints.running import RunningLocks
from pyspark_millrace.monitor.exposition import MonitorCollector
from pyspark_millrace.monitor.group_commits import COMMIT_TIMEOUTS_MS, CommitTarget, GroupCommits
from pyspark_millrace.monitor.lags import LAG_TIMEOUTS_MS, Lags
from pyspark_millrace.monitor.measurements import Measurements
from pyspark_millrace.monitor.outlets import Outlets
from pyspark_millrace.monitor.progress import parse_progress
from pyspark_millrace.reading.reports import ADDRESS_PROPERTY, read_datagram
from pyspark_millrace.spark_connect import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_DATAGRAM_BYTES_MAX: Final = 4096
_DRAIN_S: Final = 10.0


def monitor(
    spark: SparkSession,
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
    textfile: str | Path | None = None,
    pushgateway: str | None = None,
    client_config: Mapping[str, Any] | None = None,
    security: Mapping[str, Any] | None = None,
) -> Monitor:
    """Monitor the streaming queries of a session, also with Spark Connect. A repeated call adds outlets.

    At the end of each batch its offsets are committed to the group of the query (``group.id``, ``groupIdPrefix``).
    Metrics are served on ``host:port`` (0: any free port, see ``Monitor.outlets.ports``), written to ``textfile``, and
    pushed to ``pushgateway``. ``client_config`` has client options for all brokers.

    ``security`` is about ``host:port``: ``security.protocol`` (SSL, SASL_SSL), and options of a broker's listener such
    as ``ssl.keystore.location``, ``ssl.client.auth`` and ``sasl.jaas.config`` with users. Beyond loopback it is
    needed. Raises ``EnvironmentProblemError`` for a port that is in use, and ``InvalidConfigError``.
    """
    watching = _of_process()
    watching.client_config.update(client_config or {})
    watching.attach(spark)
    if port is not None:
        watching.outlets.serve(host, port, security)
    if textfile is not None:
        watching.outlets.add_textfile(textfile)
    if pushgateway is not None:
        watching.outlets.add_gateway(pushgateway)
    return watching


class Monitor:
    """Monitor of this process, created by ``monitor``.

    ``registry`` holds the metrics, so that an application can serve them together with its own.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.outlets = Outlets(self.registry)
        self.measurements = Measurements()
        self.client_config: dict[str, Any] = {}
        self._admins: dict[tuple[str, tuple[int, ...]], Admin] = {}
        self._admins_lock = threading.Lock()
        self._sessions: WeakSet[Any] = WeakSet()
        self._locks = RunningLocks()
        self._reports: str | None = None
        self._commits = GroupCommits(
            lambda servers: self._admin(servers, COMMIT_TIMEOUTS_MS), self.outlets.writing.wake
        )
        lags = Lags(lambda servers: self._admin(servers, LAG_TIMEOUTS_MS))
        self.registry.register(MonitorCollector(self.measurements.snapshot, lambda: self._commits.statistics, lags))
        atexit.register(self.drain)

    def attach(self, spark: SparkSession) -> None:
        """Listen to a session's queries, and let the tasks of queries from this thread or its children report."""
        if spark not in self._sessions:
            _add_listener(spark, _Listener(self, spark))
            self._sessions.add(spark)
        if not is_connect(spark):
            context = spark.sparkContext
            if self._reports is None:
                conf = context.getConf()
                host = conf.get("spark.driver.host") or "127.0.0.1"
                self._reports = self._receive_reports(conf.get("spark.driver.bindAddress") or host, host)
            context.setLocalProperty(ADDRESS_PROPERTY, self._reports)

    def drain(self, timeout_s: float = _DRAIN_S) -> bool:
        """Wait until all events so far have reached groups and outlets; returns whether they have."""
        deadline = time.monotonic() + timeout_s
        for spark in list(self._sessions):
            _wait_for_events(spark, max(0.0, deadline - time.monotonic()))
        waits = (self._commits.wait_until_idle, self.outlets.writing.wait_until_idle)
        return all(wait(max(0.0, deadline - time.monotonic())) for wait in waits)

    # --- events of the listener, in Spark's thread ----------------------------------------------------------------

    def started(self, spark: SparkSession, query_id: str, run_id: str, name: str) -> None:
        """Record the start of a query, and lock its checkpoint against resets."""
        self.measurements.started(query_id, run_id, name)
        if not is_connect(spark):
            self._lock(spark, query_id, run_id, name)

    def progressed(self, text: str) -> None:
        """Record a finished batch, and schedule its group commit."""
        batch = parse_progress(text)
        if batch is None:
            return
        self.measurements.progressed(batch, time.time())
        self.outlets.writing.wake()
        for source in batch.sources:
            group_id = source.origin and source.origin.group_of(batch.query_id)
            if source.origin is not None and group_id:
                offsets = {TopicPartition(*key): offset for key, offset in source.end.next_offsets.items()}
                self._commits.commit(CommitTarget(source.origin.bootstrap_servers, group_id), offsets)

    def terminated(self, query_id: str, run_id: str) -> None:
        """Record the end of a query, and release its lock."""
        self.measurements.terminated(query_id, run_id)
        self._locks.ended(run_id)
        self.outlets.writing.wake()

    # --- brokers, locks, task reports -----------------------------------------------------------------------------

    def _admin(self, bootstrap_servers: str, timeouts: Mapping[str, int]) -> Admin:
        key = (bootstrap_servers, tuple(timeouts.values()))
        with self._admins_lock:
            if key not in self._admins:
                self._admins[key] = Admin({**timeouts, **self.client_config, "bootstrap.servers": bootstrap_servers})
            return self._admins[key]

    def _lock(self, spark: SparkSession, query_id: str, run_id: str, name: str) -> None:
        """Lock the checkpoint of a query, if it is on a local file system."""
        query = spark.streams.get(query_id)
        if query is None:
            return  # it has ended already
        location = query._jsq.streamingQuery().resolvedCheckpointRoot()
        try:
            if not self._locks.started(checkpoint_directory(location), run_id, f"query {name or query_id}"):
                _log.warning("%s is locked: another driver may run its query", location)
        except UsageError:
            return
        except OSError as error:
            _log.warning("%s is not locked: %s", location, error)

    def _receive_reports(self, bind: str, host: str) -> str:
        """Receive task reports in a thread; returns the address for the tasks."""
        receiver = socket.socket(socket.AF_INET6 if ":" in bind else socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind((bind, 0))
        token = secrets.token_hex(8)

        def receive() -> None:
            while True:
                if (report := read_datagram(receiver.recv(_DATAGRAM_BYTES_MAX), token)) is not None:
                    self.measurements.read(report)

        threading.Thread(target=receive, name="millrace-task-reports", daemon=True).start()
        return f"{host}:{receiver.getsockname()[1]}:{token}"


class _Listener(StreamingQueryListener):  # type: ignore[misc]  # pyspark is not typed
    """Spark's ``StreamingQueryListener``, which passes events on as PySpark delivers them."""

    def __init__(self, watching: Monitor, spark: SparkSession) -> None:
        self._monitor = watching
        self._spark = spark

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  Spark's name
        self._monitor.started(self._spark, str(event.id), str(event.runId), event.name or "")

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802  Spark's name
        self._monitor.progressed(event.progress.json)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802  Spark's name
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802  Spark's name
        self._monitor.terminated(str(event.id), str(event.runId))

    @property
    def _jlistener(self) -> Any:
        """Java listener that the JVM calls; PySpark reads it by this name."""
        return self._spark._jvm.PythonStreamingQueryListenerWrapper(_JavaEvents(self._monitor, self._spark))


class _JavaEvents:
    """Query listener for a JVM that runs beside this process.

    The listener reads only the needed fields of an event. PySpark would read every field of an event: hundreds of calls
    into the JVM, which cost more than a small micro-batch.
    """

    def __init__(self, watching: Monitor, spark: SparkSession) -> None:
        self._monitor = watching
        self._spark = spark

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  Spark's name
        self._monitor.started(self._spark, event.id().toString(), event.runId().toString(), event.name() or "")

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802  Spark's name
        self._monitor.progressed(event.progress().json())

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802  Spark's name
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802  Spark's name
        self._monitor.terminated(event.id().toString(), event.runId().toString())

    class Java:
        """The Java interface of these methods."""

        implements: Final = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


def _add_listener(spark: SparkSession, listener: _Listener) -> None:
    """Register the listener with Spark.

    The thread in which Spark Connect calls it may outlive its session, and would keep the program from ending. It is a
    daemon thread if the thread that starts it is one.
    """
    if not is_connect(spark):
        spark.streams.addListener(listener)
        return
    added: Future[None] = Future()

    def add() -> None:
        try:
            added.set_result(spark.streams.addListener(listener))
        except Exception as error:  # noqa: BLE001  the caller of the result gets it
            added.set_exception(error)

    threading.Thread(target=add, name="millrace-add-listener", daemon=True).start()
    added.result()


@cache
def _of_process() -> Monitor:
    return Monitor()


def _wait_for_events(spark: SparkSession, timeout_s: float) -> None:
    """Wait until Spark has delivered all events so far."""
    if is_connect(spark) or spark.sparkContext._jsc is None:
        return  # Connect does not report it; an ended session has delivered its events
    from py4j.protocol import Py4JError

    try:
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(int(timeout_s * 1000))
    except (Py4JError, OSError) as error:
        _log.warning("waiting for Spark's events failed: %s", error)
