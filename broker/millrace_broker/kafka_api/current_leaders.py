"""Current leaders of partitions in responses of Produce and Fetch (KIP-951).

A client that asked another broker gets the leaders with their addresses. So a client of an old leader continues with
the new one at once, without a Metadata request. Kafka's method is ``KafkaApis.getCurrentLeader``.
"""

from __future__ import annotations

from typing import Final

from millrace.errors import BrokerUnavailableError, FencedLeaderEpochError, NotLeaderError
from millrace_broker.kafka_api.brokers import Node, nodes
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.replication.runtime import LeaderAndEpoch

PRODUCE_CODES: Final = frozenset((NotLeaderError.code,))
"""Errors of Produce after which an answer names the leader."""
FETCH_CODES: Final = frozenset((NotLeaderError.code, FencedLeaderEpochError.code))
"""Errors of Fetch after which an answer names the leader."""
UNKNOWN: Final = LeaderAndEpoch(-1, -1)


class CurrentLeaders:
    """Leaders that one response names, if ``are_named`` in its version."""

    def __init__(self, request: KafkaRequest, *, are_named: bool) -> None:
        self._request: Final = request
        self._are_named: Final = are_named
        self._leaders: Final[set[int]] = set()
        self._is_misdirected = False

    def find(self, topic: str, partition: int) -> LeaderAndEpoch:
        """Return the leader of a partition that this broker does not lead, as far as this broker knows it."""
        request = self._request
        found = request.broker.partitions.leader_of(topic, partition)
        if not self._is_misdirected and found.leader_id != request.broker.config.broker_id:
            self._is_misdirected = True
            client = request.context
            now = request.broker.clock.monotonic()
            request.state.misdirected.note(client.client_address.host, client.client_id, now)
        if not self._are_named:
            return UNKNOWN
        self._leaders.add(found.leader_id)
        return found

    def endpoints(self) -> tuple[Node, ...]:
        """Return the named leaders that are alive and have the listener of the client."""
        if not self._leaders:
            return ()
        try:
            found = nodes(self._request.broker.member, self._request.context.listener_name)
            return tuple(node for node in found if node.node_id in self._leaders)
        except BrokerUnavailableError:
            return ()  # the client then asks another broker for its metadata
