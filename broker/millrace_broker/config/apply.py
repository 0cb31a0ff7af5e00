"""Application of a changed configuration to logs and topics.

The code runs in the administration thread.
"""

from __future__ import annotations

from collections.abc import Callable

from millrace.config.broker import BrokerConfig
from millrace.config.topic import TopicConfig
from millrace_broker.log import LogManager
from millrace_broker.log.cleaning.settings import cleaner_settings
from millrace_broker.log.tiered.settings import tiering_settings
from millrace_broker.metadata import TopicCatalog


def apply_to_logs(
    config: BrokerConfig, logs: LogManager, catalog: TopicCatalog, configured: Callable[[str, TopicConfig], None]
) -> None:
    """Apply a configuration to the logs. Call ``configured`` with each topic whose options its defaults change."""
    logs.producer_expiration_ms = config.producer_id_expiration_ms
    if logs.cleaner is not None:
        logs.cleaner.reconfigure(cleaner_settings(config))
    if logs.tiering is not None:
        logs.tiering.reconfigure(tiering_settings(config))
    logs.defaults = config.topic_defaults
    for topic in catalog.set_defaults(config.topic_defaults):
        configured(topic.name, topic.config)
