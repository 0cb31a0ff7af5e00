"""Prometheus metrics of a broker, computed when they are scraped.

The statistics are read in the event loop, which alone may access them. The HTTP server has its own threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millrace.errors import EnvironmentProblemError
from millrace_broker.broker import BrokerStatistics
from millrace_broker.controller.event_loop import ControllerLoopStatistics
from millrace_broker.controller.statistics import ControllerStatistics
from millrace_broker.log.cleaning.log_cleaner import CleanerStatistics
from millrace_broker.log.tiered.manager import TieringStatistics
from millrace_broker.purgatory import PurgatoryStatistics
from millrace_broker.replication.runtime import ReplicationStatistics

_ANSWER_S: Final = 5.0
"""Time limit of the event loop. If it exceeds the limit, it is stuck, and the scrape fails."""


class MetricsListener:
    """HTTP server of ``/metrics``, from ``serve`` to ``close``."""

    def __init__(self, statistics: Callable[[], BrokerStatistics]) -> None:
        """Create the server in an event loop, which then runs ``statistics``."""
        self._collector: Final = BrokerCollector(statistics, asyncio.get_running_loop())

    def serve(self, host: str, port: int) -> int:
        """Start and return the port; the system chooses it for port 0. Raises ``EnvironmentProblemError``."""
        registry = CollectorRegistry()
        registry.register(self._collector)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise EnvironmentProblemError(
                f"metrics cannot be served on {host}:{port}: {error.strerror}; "
                "set metrics.port to another port, or 0 for any free one"
            ) from error
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop the server and wait for its thread. Do not call it in the event loop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class BrokerCollector(Collector):
    """Collector that computes the metrics on each scrape. Call it outside the event loop's thread."""

    def __init__(self, statistics: Callable[[], BrokerStatistics], loop: asyncio.AbstractEventLoop) -> None:
        self._statistics = statistics
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics. Raises ``TimeoutError`` if the broker's event loop does not answer."""
        found = asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(_ANSWER_S)
        yield from metrics_of(found)

    def describe(self) -> list[Metric]:
        """Return no metrics, so that the registration does not collect any."""
        return []

    async def _read(self) -> BrokerStatistics:
        return self._statistics()


def metrics_of(found: BrokerStatistics) -> Iterator[Metric]:
    """Yield the metrics of a broker's statistics; docs/operations.md has the table."""
    yield GaugeMetricFamily("millrace_topics", "Topics.", found.topics)
    yield GaugeMetricFamily("millrace_partitions", "Partitions.", found.partitions)
    admission = found.admission
    yield _by("millrace_requests", "Requests that run.", "class", admission.by_class)
    yield GaugeMetricFamily("millrace_connections", "Open connections.", admission.connections)
    yield GaugeMetricFamily("millrace_request_bytes", "Bytes of requests and responses held.", admission.bytes_in_use)
    yield CounterMetricFamily("millrace_requests_refused", "Requests beyond a limit, refused.", admission.refused)
    yield CounterMetricFamily("millrace_requests_delayed", "Requests that had to wait for memory.", admission.delayed)
    yield GaugeMetricFamily("millrace_parked_requests", "Requests that wait for others.", admission.parked)
    yield GaugeMetricFamily("millrace_parked_bytes", "Memory of requests that wait.", admission.parked_bytes)
    yield CounterMetricFamily(
        "millrace_parked_requests_evicted", "Fetches answered empty for want of memory.", admission.evicted
    )
    yield from _purgatories(
        {
            "fetch": found.delayed_fetches,
            "fetch of committed records": found.delayed_committed_fetches,
            "produce": found.replication.waiting,
            "rebalance": found.groups.rebalances,
            "heartbeat": found.groups.heartbeats,
            "share heartbeat": found.share_groups.heartbeats,
            "transaction to be ended": found.transactions.waiting,
        }
    )
    yield _by("millrace_groups", "Consumer groups that are coordinated here.", "state", found.groups.by_state)
    yield GaugeMetricFamily("millrace_group_offsets", "Offsets that groups have committed.", found.groups.offsets)
    yield GaugeMetricFamily(
        "millrace_share_groups", "Share groups that are coordinated here.", found.share_groups.groups
    )
    yield GaugeMetricFamily("millrace_share_members", "Their members.", found.share_groups.members)
    yield GaugeMetricFamily(
        "millrace_share_acquired", "Records given out, not acknowledged.", found.share_groups.acquired
    )
    transactions = found.transactions
    yield _by("millrace_transactional_ids", "Transactional ids by state.", "state", transactions.by_state)
    ended = CounterMetricFamily("millrace_transactions_ended", "Transactions, by how they ended.", labels=["how"])
    for how, count in transactions.ended.items():
        ended.add_metric([how], count)
    yield ended
    yield from _replication(found.replication)
    commit = found.fsyncs
    yield CounterMetricFamily("millrace_sync_waits", "Appends that waited for a sync.", commit.waits)
    yield CounterMetricFamily("millrace_syncs", "Syncs that they took.", commit.syncs)
    reads = found.remote_reads
    yield GaugeMetricFamily("millrace_remote_reads_pending", "Reads of the remote store, not ended.", reads.pending)
    yield CounterMetricFamily("millrace_remote_reads", "Reads of the remote store that ended.", reads.done)
    yield CounterMetricFamily("millrace_remote_reads_refused", "Reads refused: too many waited.", reads.refused)
    if found.cleaner is not None:
        yield from _cleaner(found.cleaner)
    if found.tiering is not None:
        yield from _tiering(found.tiering)
    if found.controlling is not None:
        yield from _controlling(found.controlling)


def _purgatories(found: Mapping[str, PurgatoryStatistics]) -> Iterator[Metric]:
    """Yield the metrics of Kafka's ``DelayedOperationPurgatory``: ``NumDelayedOperations``, ``PurgatorySize``."""
    labels = ["purgatory"]
    delayed = GaugeMetricFamily("millrace_delayed_operations", "Operations that wait.", labels=labels)
    watched = GaugeMetricFamily("millrace_delayed_watched", "Pairs of one and a key it waits for.", labels=labels)
    completed = CounterMetricFamily("millrace_delayed_completed", "Operations that had waited.", labels=labels)
    expired = CounterMetricFamily("millrace_delayed_expired", "Those whose time had run out.", labels=labels)
    for name, numbers in found.items():
        delayed.add_metric([name], numbers.delayed)
        watched.add_metric([name], numbers.watched)
        completed.add_metric([name], numbers.completed)
        expired.add_metric([name], numbers.expired)
    yield from (delayed, watched, completed, expired)


def _replication(found: ReplicationStatistics) -> Iterator[Metric]:
    yield GaugeMetricFamily("millrace_partitions_led", "Partitions led, by a controller's word.", found.led)
    yield GaugeMetricFamily("millrace_partitions_followed", "Partitions followed.", found.followed)
    yield GaugeMetricFamily("millrace_under_replicated", "Partitions led without all in sync.", found.under_replicated)
    yield GaugeMetricFamily("millrace_under_min_isr", "Of these, with fewer than asked for.", found.under_min_isr)
    yield CounterMetricFamily("millrace_isr_shrinks", "Replicas dropped from an ISR.", found.isr_shrinks)
    yield CounterMetricFamily("millrace_isr_expands", "Replicas added to an ISR.", found.isr_expands)


def _controlling(found: ControllerLoopStatistics) -> Iterator[Metric]:
    cluster, events = found.cluster, found.events
    yield GaugeMetricFamily("millrace_active_controllers", "1 where the controller is.", int(cluster is not None))
    yield GaugeMetricFamily("millrace_controller_queue", "Events that it has to handle.", found.events_waiting)
    yield GaugeMetricFamily("millrace_controller_requests", "Requests to brokers, unsent.", found.requests_waiting)
    yield _by("millrace_controller_state", "What it does.", "event", {events.current: 1} if events.current else {})
    yield CounterMetricFamily("millrace_controller_queue_seconds", "How long events waited.", events.waited_s)
    for name, text, numbers in (
        ("millrace_controller_events", "Events that were handled.", events.handled),
        ("millrace_controller_event_seconds", "How long that took.", events.seconds),
    ):
        counted = CounterMetricFamily(name, text, labels=["event"])
        for event, number in numbers.items():
            counted.add_metric([event], number)
        yield counted
    if cluster is not None:
        yield from _cluster(cluster)


def _cluster(found: ControllerStatistics) -> Iterator[Metric]:
    """Yield the metrics that only the controller has."""
    yield GaugeMetricFamily("millrace_cluster_brokers", "Brokers that are alive.", found.brokers)
    yield GaugeMetricFamily("millrace_cluster_topics", "Topics.", found.topics)
    yield GaugeMetricFamily("millrace_cluster_partitions", "Partitions.", found.partitions)
    yield GaugeMetricFamily("millrace_offline_partitions", "Partitions without a leader.", found.offline_partitions)
    yield GaugeMetricFamily(
        "millrace_preferred_replica_imbalance", "Partitions not led by the preferred.", found.not_led_by_preferred
    )
    yield GaugeMetricFamily("millrace_reassigned_partitions", "Partitions on the move.", found.reassigned_partitions)
    yield GaugeMetricFamily("millrace_topics_to_delete", "Topics that are being deleted.", found.topics_to_delete)
    yield GaugeMetricFamily(
        "millrace_topics_ineligible_to_delete", "Of these, that wait.", found.topics_ineligible_for_deletion
    )
    yield CounterMetricFamily("millrace_leader_elections", "Leaders elected.", found.elections)
    yield CounterMetricFamily("millrace_unclean_elections", "Of these, not in sync.", found.unclean_elections)


def _cleaner(found: CleanerStatistics) -> Iterator[Metric]:
    """Yield the metrics of Kafka's ``LogCleaner`` and ``LogCleanerManager``."""
    yield CounterMetricFamily("millrace_cleanings", "Partitions cleaned, each time counted.", found.cleanings)
    yield CounterMetricFamily("millrace_cleaner_read_bytes", "Bytes gone through for it.", found.bytes_read)
    yield CounterMetricFamily("millrace_cleaner_written_bytes", "Bytes that were left of them.", found.bytes_written)
    yield CounterMetricFamily("millrace_cleaner_seconds", "How long it took, of all threads.", found.seconds)
    yield GaugeMetricFamily("millrace_cleaner_in_progress", "Partitions being cleaned.", len(found.in_progress))
    yield GaugeMetricFamily("millrace_cleaner_dirty_ratio_max", "Dirty part of the dirtiest.", found.dirtiest_ratio)
    yield GaugeMetricFamily(
        "millrace_uncleanable_partitions",
        "Partitions whose cleaning failed.",
        len(found.uncleanable),
    )


def _tiering(found: TieringStatistics) -> Iterator[Metric]:
    yield GaugeMetricFamily("millrace_tiered_partitions", "Partitions with remote storage.", len(found.partitions))
    yield GaugeMetricFamily("millrace_tiering_in_progress", "Partitions being worked at.", len(found.in_progress))
    yield CounterMetricFamily("millrace_tiering_failures", "Tries that failed.", found.failures)
    yield GaugeMetricFamily("millrace_tiered_deletions", "Folders that are to be removed.", found.deletions)
    yield GaugeMetricFamily("millrace_tiered_cached_bytes", "Cached index bytes.", found.cached_bytes)


def _by(name: str, text: str, label: str, numbers: Mapping[str, int]) -> Metric:
    metric = GaugeMetricFamily(name, text, labels=[label])
    for value, number in numbers.items():
        metric.add_metric([value], number)
    return metric
