"""Options of a broker that have changed while it runs, handed to whoever goes by them. In the administration thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.config.dynamic import FOLLOWER_RATE, LEADER_RATE
from millrace_broker.log.cleaning.settings import cleaner_settings
from millrace_broker.quotas import CallClass

if TYPE_CHECKING:
    from millrace_broker.broker import Broker


def reconfigure(broker: Broker) -> None:
    """Go by ``broker.broker_configs`` from now on. Who reads ``broker.config`` at the time, need not be told here."""
    config = broker.config = broker.broker_configs.current
    broker.executors.on_loop(_in_loop, broker)
    broker.logs.producer_expiration_ms = config.producer_id_expiration_ms
    if broker.logs.cleaner is not None:
        broker.logs.cleaner.reconfigure(cleaner_settings(config))
    broker.logs.defaults = config.topic_defaults
    for topic in broker.catalog.set_defaults(config.topic_defaults):
        broker.changes.deployment.configured(topic.name, topic.config)


def _in_loop(broker: Broker) -> None:
    configs = broker.broker_configs
    broker.admission.connections.maxima[CallClass.CLIENT] = configs.current.max_connections
    broker.executors.resize_io(configs.current.num_io_threads)
    if configs.current.is_clustered:
        broker.member.controlling.take_config(configs.current)
    broker.replicas.resize_fetchers(configs.current.num_replica_fetchers)
    broker.replicas.set_throttle_rates(
        leader_bytes_per_s=configs.rate(LEADER_RATE), follower_bytes_per_s=configs.rate(FOLLOWER_RATE)
    )
