"""The options ``log.cleaner.*`` as settings of the log cleaner."""

from __future__ import annotations

from millrace.config.broker import BrokerConfig
from millrace_broker.log.cleaning.log_cleaner import CleanerSettings


def cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    """Read the options ``log.cleaner.*``."""
    return CleanerSettings(
        threads=config.log_cleaner_threads,
        dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_size,
        load_factor=config.log_cleaner_io_buffer_load_factor,
        io_buffer_bytes=config.log_cleaner_io_buffer_size,
        io_bytes_per_second_max=config.log_cleaner_io_max_bytes_per_second,
        backoff_ms=config.log_cleaner_backoff_ms,
    )
