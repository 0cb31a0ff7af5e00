"""Prometheus metrics of a broker, computed when they are scraped.

The statistics are read in the event loop, which alone may access them. The HTTP server has its own threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millrace.errors import EnvironmentProblemError
from millrace.quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER_KEYS,
)
from millrace.security.http_access import HttpAccess
from millrace.security.https import HttpServer
from millrace_broker.audit import AuditStatistics
from millrace_broker.broker import BrokerStatistics
from millrace_broker.controller.event_loop import ControllerLoopStatistics
from millrace_broker.controller.statistics import ControllerStatistics
from millrace_broker.log.cleaning.log_cleaner import CleanerStatistics
from millrace_broker.log.remote_log_manager import TieringStatistics
from millrace_broker.purgatory import PurgatoryStatistics
from millrace_broker.replication.runtime import ReplicationStatistics

_ANSWER_S: Final = 5.0
"""Time limit of the event loop. If it exceeds the limit, it is stuck, and the scrape fails."""


class MetricsListener:
    """HTTP server of ``/metrics``, from ``serve`` to ``close``."""

    def __init__(self, statistics: Callable[[], BrokerStatistics], access: HttpAccess) -> None:
        """Create the server in an event loop, which then runs ``statistics``."""
        self._access: Final = access
        self._collector: Final = BrokerCollector(statistics, asyncio.get_running_loop())

    def serve(self, host: str, port: int) -> int:
        """Start and return the port; the system chooses it for port 0. Raises ``EnvironmentProblemError``."""
        registry = CollectorRegistry()
        registry.register(self._collector)
        try:
            self._server = HttpServer(
                host, port, make_wsgi_app(registry), tls=self._access.tls, users=self._access.users
            )
        except OSError as error:
            raise EnvironmentProblemError(
                f"metrics cannot be served on {host}:{port}: {error.strerror}; "
                "set metrics.port to another port, or 0 for any free one"
            ) from error
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop the server and wait for its thread. Do not call it in the event loop."""
        self._server.close()


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
    yield _by("millrace_requests", "Running requests.", "class", admission.by_class)
    yield GaugeMetricFamily("millrace_connections", "Open connections.", admission.connections)
    yield GaugeMetricFamily(
        "millrace_request_bytes", "Bytes of requests and responses in memory.", admission.bytes_in_use
    )
    yield CounterMetricFamily("millrace_requests_refused", "Requests that were refused at a limit.", admission.refused)
    yield CounterMetricFamily("millrace_requests_delayed", "Requests that had to wait for memory.", admission.delayed)
    yield CounterMetricFamily(
        "millrace_requests_gave_way",
        "Requests that stopped in the middle and gave way to others.",
        admission.gave_way,
    )
    yield GaugeMetricFamily("millrace_parked_requests", "Requests that wait in a purgatory.", admission.parked)
    yield GaugeMetricFamily(
        "millrace_parked_bytes", "Memory of the requests that wait in a purgatory.", admission.parked_bytes
    )
    yield CounterMetricFamily(
        "millrace_parked_requests_evicted",
        "Fetches that were answered empty because the memory for waiting requests was full.",
        admission.evicted,
    )
    yield from _quotas(found)
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
    yield _by("millrace_groups", "Consumer groups of this coordinator.", "state", found.groups.by_state)
    yield GaugeMetricFamily("millrace_group_offsets", "Offsets that groups have committed.", found.groups.offsets)
    yield GaugeMetricFamily("millrace_share_groups", "Share groups of this coordinator.", found.share_groups.groups)
    yield GaugeMetricFamily("millrace_share_members", "Members of the share groups.", found.share_groups.members)
    yield GaugeMetricFamily("millrace_share_acquired", "Acquired records of share groups.", found.share_groups.acquired)
    transactions = found.transactions
    yield _by("millrace_transactional_ids", "Transactional ids by state.", "state", transactions.by_state)
    ended = CounterMetricFamily("millrace_transactions_ended", "Ended transactions, by outcome.", labels=["how"])
    for how, count in transactions.ended.items():
        ended.add_metric([how], count)
    yield ended
    yield from _replication(found.replication)
    commit = found.fsyncs
    yield CounterMetricFamily("millrace_sync_waits", "Appends that waited for a sync.", commit.waits)
    yield CounterMetricFamily("millrace_syncs", "Syncs for these appends.", commit.syncs)
    reads = found.remote_reads
    yield GaugeMetricFamily("millrace_remote_reads_pending", "Pending reads of the remote store.", reads.pending)
    yield CounterMetricFamily("millrace_remote_reads", "Completed reads of the remote store.", reads.done)
    yield CounterMetricFamily(
        "millrace_remote_reads_refused",
        "Reads of the remote store that were refused because too many were pending.",
        reads.refused,
    )
    if found.cleaner is not None:
        yield from _cleaner(found.cleaner)
    if found.tiering is not None:
        yield from _tiering(found.tiering)
    if found.audit is not None:
        yield from _audit(found.audit)
    yield from _controlling(found.controlling)


def _audit(found: AuditStatistics) -> Iterator[Metric]:
    yield CounterMetricFamily("millrace_audit_decisions", "Decisions that the audit took.", found.recorded)
    yield CounterMetricFamily("millrace_audit_written", "Decisions that this broker wrote to __audit.", found.written)
    yield CounterMetricFamily("millrace_audit_lost", "Decisions that were lost at a bound of the audit.", found.dropped)
    yield GaugeMetricFamily("millrace_audit_waiting_rows", "Rows of the audit in memory.", found.waiting_rows)
    yield GaugeMetricFamily("millrace_audit_spooled_batches", "Batches in audit.spool.dir.", found.spooled_batches)
    yield GaugeMetricFamily("millrace_audit_spooled_bytes", "Bytes in audit.spool.dir.", found.spooled_bytes)
    yield CounterMetricFamily(
        "millrace_audit_damaged_files", "Files of audit.spool.dir that could not be read.", found.damaged_files
    )
    yield GaugeMetricFamily(
        "millrace_audit_failing", "1 while __audit cannot be written, 0 otherwise.", int(found.is_failing)
    )


_QUOTA_METRICS: Final = {
    PRODUCER_BYTE_RATE: ("millrace_produce_byte_rate", "millrace_produce_throttle_time"),
    CONSUMER_BYTE_RATE: ("millrace_fetch_byte_rate", "millrace_fetch_throttle_time"),
    REQUEST_PERCENTAGE: ("millrace_request_time", "millrace_request_throttle_time"),
    CONTROLLER_MUTATION_RATE: ("millrace_controller_mutation_rate", "millrace_controller_mutation_throttle_time"),
}
"""Names of the rate and of the throttle time by quota, as Kafka's types ``Produce``, ``Fetch``, ``Request`` and
``ControllerMutation`` have them.
"""


def _quotas(found: BrokerStatistics) -> Iterator[Metric]:
    """Yield the metrics of Kafka's ``ClientQuotaManager``, for clients with quotas, and of ``ConnectionQuotas``."""
    yield CounterMetricFamily(
        "millrace_connections_throttled",
        "New connections that waited for a rate of the listener or broker.",
        found.connections_delayed,
    )
    yield CounterMetricFamily(
        "millrace_connections_refused", "New connections beyond their address's rate.", found.connections_refused
    )
    labels = ["user", "client_id"]
    for key, (rate_name, throttle_name) in _QUOTA_METRICS.items():
        rate = GaugeMetricFamily(rate_name, f"Use of {key}: {USER_KEYS[key]}.", labels=labels)
        throttled = CounterMetricFamily(throttle_name, f"Seconds of throttling by {key}.", labels=labels)
        for use in found.quotas:
            if use.key == key:
                rate.add_metric([use.user, use.client_id], use.rate)
                throttled.add_metric([use.user, use.client_id], use.throttled_s)
        yield from (rate, throttled)


def _purgatories(found: Mapping[str, PurgatoryStatistics]) -> Iterator[Metric]:
    """Yield the metrics of Kafka's ``DelayedOperationPurgatory``: ``NumDelayedOperations``, ``PurgatorySize``."""
    labels = ["purgatory"]
    delayed = GaugeMetricFamily("millrace_delayed_operations", "Delayed operations.", labels=labels)
    watched = GaugeMetricFamily(
        "millrace_delayed_watched", "Pairs of a delayed operation and a watched key.", labels=labels
    )
    completed = CounterMetricFamily("millrace_delayed_completed", "Completed delayed operations.", labels=labels)
    expired = CounterMetricFamily("millrace_delayed_expired", "Delayed operations that timed out.", labels=labels)
    for name, numbers in found.items():
        delayed.add_metric([name], numbers.delayed)
        watched.add_metric([name], numbers.watched)
        completed.add_metric([name], numbers.completed)
        expired.add_metric([name], numbers.expired)
    yield from (delayed, watched, completed, expired)


def _replication(found: ReplicationStatistics) -> Iterator[Metric]:
    yield GaugeMetricFamily("millrace_partitions_led", "Partitions that this broker leads.", found.led)
    yield GaugeMetricFamily("millrace_partitions_followed", "Partitions that this broker follows.", found.followed)
    yield GaugeMetricFamily(
        "millrace_under_replicated", "Led partitions with a replica outside the ISR.", found.under_replicated
    )
    yield GaugeMetricFamily(
        "millrace_under_min_isr", "Led partitions whose ISR is below min.insync.replicas.", found.under_min_isr
    )
    yield CounterMetricFamily("millrace_isr_shrinks", "ISR shrinks.", found.isr_shrinks)
    yield CounterMetricFamily("millrace_isr_expands", "ISR expands.", found.isr_expands)


def _controlling(found: ControllerLoopStatistics) -> Iterator[Metric]:
    cluster, events = found.cluster, found.events
    yield GaugeMetricFamily(
        "millrace_active_controllers", "1 on the controller, 0 on other brokers.", int(cluster is not None)
    )
    yield GaugeMetricFamily("millrace_controller_queue", "Queued events of the controller.", found.events_waiting)
    yield GaugeMetricFamily(
        "millrace_controller_requests", "Queued requests of the controller to brokers.", found.requests_waiting
    )
    yield _by(
        "millrace_controller_state",
        "The event that the controller handles.",
        "event",
        {events.current: 1} if events.current else {},
    )
    yield CounterMetricFamily(
        "millrace_controller_queue_seconds", "Time that events of the controller waited.", events.waited_s
    )
    for name, text, numbers in (
        ("millrace_controller_events", "Handled events of the controller.", events.handled),
        ("millrace_controller_event_seconds", "Time that the controller needed for events.", events.seconds),
    ):
        counted = CounterMetricFamily(name, text, labels=["event"])
        for event, number in numbers.items():
            counted.add_metric([event], number)
        yield counted
    if cluster is not None:
        yield from _cluster(cluster)


def _cluster(found: ControllerStatistics) -> Iterator[Metric]:
    """Yield the metrics that only the controller has."""
    yield GaugeMetricFamily("millrace_cluster_brokers", "Live brokers.", found.brokers)
    yield GaugeMetricFamily("millrace_cluster_topics", "Topics.", found.topics)
    yield GaugeMetricFamily("millrace_cluster_partitions", "Partitions.", found.partitions)
    yield GaugeMetricFamily("millrace_offline_partitions", "Partitions without a leader.", found.offline_partitions)
    yield GaugeMetricFamily(
        "millrace_preferred_replica_imbalance",
        "Partitions not led by the preferred replica.",
        found.not_led_by_preferred,
    )
    yield GaugeMetricFamily(
        "millrace_reassigned_partitions", "Partitions that are being reassigned.", found.reassigned_partitions
    )
    yield GaugeMetricFamily("millrace_topics_to_delete", "Topics that are being deleted.", found.topics_to_delete)
    yield GaugeMetricFamily(
        "millrace_topics_ineligible_to_delete",
        "Topics whose deletion waits for a broker or a reassignment.",
        found.topics_ineligible_for_deletion,
    )
    yield CounterMetricFamily("millrace_leader_elections", "Leader elections.", found.elections)
    yield CounterMetricFamily("millrace_unclean_elections", "Unclean leader elections.", found.unclean_elections)


def _cleaner(found: CleanerStatistics) -> Iterator[Metric]:
    """Yield the metrics of Kafka's ``LogCleaner`` and ``LogCleanerManager``."""
    yield CounterMetricFamily("millrace_cleanings", "Cleanings of partitions.", found.cleanings)
    yield CounterMetricFamily("millrace_cleaner_read_bytes", "Bytes that the cleaner read.", found.bytes_read)
    yield CounterMetricFamily("millrace_cleaner_written_bytes", "Bytes that the cleaner wrote.", found.bytes_written)
    yield CounterMetricFamily("millrace_cleaner_seconds", "Time of all cleaner threads.", found.seconds)
    yield GaugeMetricFamily("millrace_cleaner_in_progress", "Partitions being cleaned.", len(found.in_progress))
    yield GaugeMetricFamily("millrace_cleaner_dirty_ratio_max", "Largest dirty ratio of a log.", found.dirtiest_ratio)
    yield GaugeMetricFamily(
        "millrace_uncleanable_partitions",
        "Partitions whose cleaning failed.",
        len(found.uncleanable),
    )


def _tiering(found: TieringStatistics) -> Iterator[Metric]:
    yield GaugeMetricFamily("millrace_tiered_partitions", "Partitions with remote storage.", len(found.partitions))
    yield GaugeMetricFamily(
        "millrace_tiering_in_progress", "Partitions that are being copied or cleaned up.", len(found.in_progress)
    )
    yield CounterMetricFamily("millrace_tiering_failures", "Failed attempts.", found.failures)
    yield GaugeMetricFamily(
        "millrace_tiered_deletions", "Folders in the remote store that wait for deletion.", found.deletions
    )
    yield GaugeMetricFamily("millrace_tiered_cached_bytes", "Cached index bytes.", found.cached_bytes)


def _by(name: str, text: str, label: str, numbers: Mapping[str, int]) -> Metric:
    metric = GaugeMetricFamily(name, text, labels=[label])
    for value, number in numbers.items():
        metric.add_metric([value], number)
    return metric
