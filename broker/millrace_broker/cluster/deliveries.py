"""Delivery of the controller's requests to the brokers.

This broker gets them directly, the others over the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from millrace.config.broker import BrokerConfig
from millrace.coordination.nodes import BrokerNode
from millrace_broker.cluster.wire import (
    leader_and_isr_message,
    read_errors,
    stop_replica_message,
    update_metadata_message,
)
from millrace_broker.decisions import (
    Answers,
    BrokerRequest,
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from millrace_broker.metadata import LiveBroker, registration
from millrace_broker.network import Peers


class ThisBroker(Protocol):
    """The controller's own broker, which gets its requests without the network."""

    async def leader_and_isr(self, request: LeaderAndIsrRequest, leaders: Sequence[LiveBroker]) -> Answers:
        """Lead and follow partitions."""
        ...

    async def stop_replica(self, request: StopReplicaRequest) -> Answers:
        """Stop replicas."""
        ...

    async def update_metadata(self, request: UpdateMetadataRequest, brokers: Sequence[LiveBroker]) -> None:
        """Apply the live brokers and the leadership of partitions."""
        ...


class Deliveries:
    """The controller's connections to the brokers. For the event loop's thread."""

    def __init__(self, config: BrokerConfig, peers: Peers, this_broker: ThisBroker) -> None:
        self._broker_id: Final = config.broker_id
        self._timeout_s: Final = config.controller_socket_timeout_ms / 1000
        self._peers: Final = peers
        self._this_broker: Final = this_broker
        self._addresses: dict[int, LiveBroker] = {}

    def take_brokers(self, nodes: Mapping[int, BrokerNode]) -> None:
        """Set the brokers' addresses that the controller has read."""
        self._addresses = {each: registration.live_broker(each, node) for each, node in nodes.items()}
        for broker in self._addresses.values():
            self._peers.know(broker.broker_id, broker.endpoints)

    async def deliver(self, broker_id: int, request: BrokerRequest) -> Answers:
        """Send a request to a broker; returns its answers. Raises the broker's error, ``BrokerUnavailableError``."""
        if broker_id == self._broker_id:
            return await self._deliver_here(request)
        call = partial(self._peers.call, broker_id, timeout_s=self._timeout_s)
        match request:
            case LeaderAndIsrRequest():
                answer: Any = await call("LeaderAndIsr", leader_and_isr_message(request, self._addresses))
            case StopReplicaRequest():
                answer = await call("StopReplica", stop_replica_message(request))
            case UpdateMetadataRequest():
                await call("UpdateMetadata", update_metadata_message(request, self._addresses))
                return {}
        return read_errors(answer.topics)

    async def _deliver_here(self, request: BrokerRequest) -> Answers:
        known = self._addresses
        match request:
            case LeaderAndIsrRequest():
                leaders = [known[each] for each in request.live_leaders if each in known]
                return await self._this_broker.leader_and_isr(request, leaders)
            case StopReplicaRequest():
                return await self._this_broker.stop_replica(request)
            case UpdateMetadataRequest():
                brokers = [known[each] for each in request.live_brokers if each in known]
                await self._this_broker.update_metadata(request, brokers)
                return {}
