"""Interceptors of a consumer (KIP-42; Kafka's ``ConsumerInterceptor``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millrace.clients.consuming.records import ConsumerRecords
from millrace.clients.interceptor_calls import call_interceptor
from millrace.clients.model import OffsetAndMetadata, TopicPartition


class ConsumerInterceptor:
    """Base of interceptors. An exception is logged, and the input is passed on unchanged, as in Kafka."""

    def configure(self, configs: Mapping[str, Any]) -> None:
        """Receive the consumer's options before the first call."""

    def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
        """Inspect or replace the result of ``poll``; the tables of ``poll_table`` do not pass here."""
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Receive committed offsets."""

    def close(self) -> None:
        """Release resources when the consumer is closed."""


class ConsumerInterceptors:
    """All interceptors of a consumer, in the order of ``interceptor.classes``."""

    def __init__(self, interceptors: list[Any], configs: Mapping[str, Any]) -> None:
        self._interceptors = interceptors
        for interceptor in interceptors:
            interceptor.configure(configs)

    def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
        """Pass records through all interceptors."""
        for interceptor in self._interceptors:
            records = call_interceptor(interceptor.on_consume, records, otherwise=records)
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Call ``on_commit`` of all interceptors."""
        for interceptor in self._interceptors:
            call_interceptor(interceptor.on_commit, offsets)

    def close(self) -> None:
        """Close all interceptors."""
        for interceptor in self._interceptors:
            call_interceptor(interceptor.close)
