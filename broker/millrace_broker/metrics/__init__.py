"""Broker metrics for Prometheus."""

from millrace_broker.metrics.prometheus import MetricsListener, metrics_of

__all__ = ["MetricsListener", "metrics_of"]
