"""Interceptors of consumers: an application's own eyes and hands on what is consumed and committed (KIP-42)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from millrace.clients.consuming.records import ConsumerRecords
from millrace.clients.model import OffsetAndMetadata, TopicPartition

logger = logging.getLogger(__name__)


class ConsumerInterceptor:
    """Override what matters. An exception is logged, and what was given goes on unchanged, as in Kafka."""

    def configure(self, configs: Mapping[str, Any]) -> None:
        """Told the consumer's options before it is first called."""

    def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
        """See, or replace, what ``poll`` is about to return (tables of ``poll_table`` do not pass here)."""
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Offsets have been committed."""

    def close(self) -> None:
        """The consumer is closed."""


class ConsumerInterceptors:
    """All interceptors of a consumer, in the order of ``interceptor.classes``."""

    def __init__(self, interceptors: list[Any], configs: Mapping[str, Any]) -> None:
        self._interceptors = interceptors
        for interceptor in interceptors:
            interceptor.configure(configs)

    def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
        """Pass records through all of them."""
        for interceptor in self._interceptors:
            records = _call(interceptor.on_consume, records, otherwise=records)
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Tell all of them."""
        for interceptor in self._interceptors:
            _call(interceptor.on_commit, offsets)

    def close(self) -> None:
        """Close all of them."""
        for interceptor in self._interceptors:
            _call(interceptor.close)


def _call(method: Callable[..., Any], *arguments: Any, otherwise: Any = None) -> Any:
    try:
        return method(*arguments)
    except Exception:  # a fault of the interceptor must not stop the consumer
        logger.exception("an interceptor failed")
        return otherwise
