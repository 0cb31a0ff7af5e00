"""The options of tiered storage, and their check against topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.config.broker import BrokerConfig
from millrace.config.topic import TopicConfig
from millrace.errors import EnvironmentProblemError
from millrace_broker.log.tiered.cache import CACHE_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class TieringSettings:
    """The settings of tiered storage (``remote.log.manager.*``). Bytes per second are for all threads together."""

    threads: int = 2
    interval_ms: int = 30_000
    backoff_ms: int = 500
    backoff_max_ms: int = 30_000
    jitter: float = 0.2
    bytes_per_second_max: float = float(2**63)
    cache_bytes_max: int = CACHE_BYTES_MAX


def tiering_settings(config: BrokerConfig) -> TieringSettings:
    """Read the options ``remote.log.manager.*``."""
    return TieringSettings(
        threads=config.remote_log_manager_copier_thread_pool_size,
        interval_ms=config.remote_log_manager_task_interval_ms,
        backoff_ms=config.remote_log_manager_task_retry_backoff_ms,
        backoff_max_ms=config.remote_log_manager_task_retry_backoff_max_ms,
        jitter=config.remote_log_manager_task_retry_jitter,
        bytes_per_second_max=float(config.remote_log_manager_copy_max_bytes_per_second),
        cache_bytes_max=config.remote_log_index_file_cache_total_size_bytes,
    )


def check_tiered_topics(config: BrokerConfig, topics: Mapping[str, TopicConfig]) -> None:
    """Raise ``EnvironmentProblemError`` when topics have remote segments but the broker does not enable remote
    storage.
    """
    tiered = sorted(name for name, each in topics.items() if each.remote_storage_enable)
    if tiered and not config.remote_log_storage_system_enable:
        raise EnvironmentProblemError(
            f"topics {', '.join(tiered)} have remote.storage.enable=true: start the broker with "
            "remote.log.storage.system.enable=true and its remote.log.storage.uri, or disable it on these topics first"
        )
