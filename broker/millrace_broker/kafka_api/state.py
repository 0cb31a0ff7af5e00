"""State of the Kafka layer, which has only sessions and caches."""

from __future__ import annotations

from typing import Final

from millrace.config.broker import BrokerConfig
from millrace.kafka_protocol.calls.api_versions import ApiVersion
from millrace_broker.api import ClientAddress
from millrace_broker.kafka_api.fetch_sessions import ConsumerSessions
from millrace_broker.kafka_api.misdirected_clients import MisdirectedClients
from millrace_broker.kafka_api.row_batches import RowBatches
from millrace_broker.kafka_api.share_sessions import ConnectionKey, ShareSessions
from millrace_broker.runtime import BackgroundTasks


class KafkaState:
    """State that the calls of all listeners share."""

    def __init__(self, config: BrokerConfig) -> None:
        self.fetch_sessions: Final = ConsumerSessions()
        self.share_sessions: Final = ShareSessions(config.group_share_max_share_sessions)
        self.background: Final = BackgroundTasks()
        """Work for clients whose connections were lost."""
        self.row_batches: Final = RowBatches()
        """Columnar batches as rows."""
        self.misdirected: Final = MisdirectedClients()
        self.api_versions: tuple[ApiVersion, ...] = ()
        """Answer of ApiVersions."""

    def connection_closed(self, listener_name: str, client_address: ClientAddress) -> None:
        """End the share sessions of a connection."""
        self.share_sessions.connection_closed(ConnectionKey(listener_name, client_address))
