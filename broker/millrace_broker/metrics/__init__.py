"""Broker metrics for Prometheus."""

from millrace_broker.metrics.access import metrics_access
from millrace_broker.metrics.prometheus import MetricsListener, metrics_of

__all__ = ["MetricsListener", "metrics_access", "metrics_of"]
