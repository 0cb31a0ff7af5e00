"""Notices of changed configurations, nodes under ``/config/changes`` that all brokers watch.

A change and its notice are written in one transaction, so a broker that reads the notice also reads the change.

Source: Kafka's ``ZkNodeChangeNotificationListener``.
"""

from __future__ import annotations

from millrace.coordination import Create, paths
from millrace.coordination.notices import ConfigChangeNode


def notice(entity: str) -> Create:
    """Return the operation that announces a changed configuration of ``entity`` (``paths.config_entity``)."""
    return Create(paths.CONFIG_CHANGE, ConfigChangeNode(entity).encode(), sequential=True)
