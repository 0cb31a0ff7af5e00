"""State of the Kafka layer, which is that of sessions and caches only."""

from __future__ import annotations

from typing import Final

from millrace.config.broker import BrokerConfig
from millrace.kafka_protocol.calls.api_versions import ApiVersion
from millrace_broker.kafka_api.fetch_sessions import ConsumerSessions
from millrace_broker.kafka_api.misdirected_clients import MisdirectedClients
from millrace_broker.kafka_api.row_batches import RowBatches


class KafkaState:
    """State that the calls of one listener share."""

    def __init__(self, config: BrokerConfig) -> None:
        self.fetch_sessions: Final = ConsumerSessions()
        self.row_batches: Final = RowBatches()
        """Columnar batches as rows."""
        self.misdirected: Final = MisdirectedClients()
        self.api_versions: tuple[ApiVersion, ...] = ()
        """Answer of ApiVersions."""
