"""What sees every record on its way: ``interceptor.classes`` (KIP-42).

A failing interceptor is logged and otherwise as if it were not there: it never keeps a record from being sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millrace.clients.model import BatchMetadata, ProducerRecord, RecordMetadata
from millrace.errors import MillraceError

logger = logging.getLogger(__name__)


class ProducerInterceptor:
    """Base of a producer's interceptors; each method does nothing unless overridden."""

    def configure(self, configs: Mapping[str, Any]) -> None:
        """Told the producer's options before it is first called."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """A record is about to be sent, in the thread that sends it: return it, or the one to send instead."""
        return record

    def on_send_table(self, topic: str, rows: Any) -> Any:
        """A table, or the list given to ``send_batch``, is about to be sent: return it, or another one."""
        return rows

    def on_acknowledgement(self, metadata: RecordMetadata | BatchMetadata | None, error: MillraceError | None) -> None:
        """A record is acknowledged or has failed, in the producer's thread; of tables and lists, a batch."""

    def close(self) -> None:
        """The producer is closed."""


class Interceptors:
    """The interceptors of a producer, called one after another."""

    def __init__(self, interceptors: Sequence[ProducerInterceptor]) -> None:
        self._interceptors = interceptors

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """What is to be sent instead of a record."""
        for interceptor in self._interceptors:
            record = _call(interceptor.on_send, record, otherwise=record)
        return record

    def on_send_table(self, topic: str, rows: Any) -> Any:
        """What is to be sent instead of a table."""
        for interceptor in self._interceptors:
            rows = _call(interceptor.on_send_table, topic, rows, otherwise=rows)
        return rows

    def on_acknowledgement(self, metadata: RecordMetadata | BatchMetadata | None, error: MillraceError | None) -> None:
        """Tell all of them."""
        for interceptor in self._interceptors:
            _call(interceptor.on_acknowledgement, metadata, error)

    def close(self) -> None:
        """Close all of them."""
        for interceptor in self._interceptors:
            _call(interceptor.close)


def _call(method: Callable[..., Any], *arguments: Any, otherwise: Any = None) -> Any:
    try:
        return method(*arguments)
    except Exception:
        logger.exception("a producer's interceptor failed")
        return otherwise
