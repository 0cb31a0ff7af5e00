"""Broker metrics for Prometheus.

``prometheus`` computes the metrics when they are scraped, and ``access`` secures their address.
"""

from millrace_broker.metrics.access import metrics_access
from millrace_broker.metrics.prometheus import MetricsListener, metrics_of

__all__ = ["MetricsListener", "metrics_access", "metrics_of"]
