"""Interceptors of a producer: ``interceptor.classes`` (KIP-42).

A failure of an interceptor is logged and otherwise ignored; it never prevents a send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millrace.clients.interceptor_calls import call_interceptor
from millrace.clients.model import BatchMetadata, ProducerRecord, RecordMetadata
from millrace.errors import MillraceError


class ProducerInterceptor:
    """Base of a producer's interceptors; each method does nothing unless overridden."""

    def configure(self, configs: Mapping[str, Any]) -> None:
        """Receive the producer's options before the first call."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Intercept a record in the thread that sends it: return it, or the one to send instead."""
        return record

    def on_send_table(self, topic: str, rows: Any) -> Any:
        """Intercept a table, or the list given to ``send_batch``: return it, or another one."""
        return rows

    def on_acknowledgement(self, metadata: RecordMetadata | BatchMetadata | None, error: MillraceError | None) -> None:
        """Handle the acknowledgement or failure of a record, or of a batch of a table or list, in the producer's
        thread.
        """

    def close(self) -> None:
        """Release resources when the producer is closed."""


class Interceptors:
    """Interceptors of a producer, called one after another."""

    def __init__(self, interceptors: Sequence[ProducerInterceptor]) -> None:
        self._interceptors = interceptors

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record to send instead of ``record``."""
        for interceptor in self._interceptors:
            record = call_interceptor(interceptor.on_send, record, otherwise=record)
        return record

    def on_send_table(self, topic: str, rows: Any) -> Any:
        """Return the table to send instead of ``rows``."""
        for interceptor in self._interceptors:
            rows = call_interceptor(interceptor.on_send_table, topic, rows, otherwise=rows)
        return rows

    def on_acknowledgement(self, metadata: RecordMetadata | BatchMetadata | None, error: MillraceError | None) -> None:
        """Call ``on_acknowledgement`` of all interceptors."""
        for interceptor in self._interceptors:
            call_interceptor(interceptor.on_acknowledgement, metadata, error)

    def close(self) -> None:
        """Close all interceptors."""
        for interceptor in self._interceptors:
            call_interceptor(interceptor.close)
