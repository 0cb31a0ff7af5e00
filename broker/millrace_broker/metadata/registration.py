"""Registration of a broker, with cluster id and ephemeral node."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from millrace.config.listeners import Listener
from millrace.config.security_options import SecurityProtocol
from millrace.coordination import (
    BadVersionError,
    Coordination,
    Create,
    NodeExistsError,
    NoNodeError,
    Write,
    ensure_path,
    paths,
)
from millrace.coordination.nodes import BrokerNode, ClusterIdNode, Endpoint
from millrace.coordination.outcomes import settle
from millrace.errors import EnvironmentProblemError
from millrace.ids import id_text


class BrokerIdTakenError(EnvironmentProblemError):
    """Another broker of the cluster has this id."""


class EndpointTakenError(EnvironmentProblemError):
    """Another broker of the cluster has registered this broker's advertised address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBroker:
    """Registered broker.

    ``endpoints`` has its addresses for clients and other brokers, by the names of its listeners.
    """

    broker_id: int
    rack: str
    endpoints: Mapping[str, Listener]


def ensure_roots(coordination: Coordination) -> None:
    """Create the persistent root nodes."""
    for path in paths.ROOTS:
        ensure_path(coordination, path)


def cluster_id(coordination: Coordination) -> str:
    """Return the cluster id, which the first caller creates.

    The id has 22 characters as in Kafka (base64url of a random UUID).
    """
    try:
        return ClusterIdNode.decode(coordination.get(paths.CLUSTER_ID)[0]).cluster_id
    except NoNodeError:
        new = ClusterIdNode(id_text(uuid.uuid4()))
    try:
        coordination.create(paths.CLUSTER_ID, new.encode())
    except NodeExistsError:
        return cluster_id(coordination)  # another broker created it first
    return new.cluster_id


def register(coordination: Coordination, broker_id: int, node: BrokerNode, *, patience_s: float = 0) -> int:
    """Register a broker for the lifetime of the session. Return its epoch, which grows with each registration.

    A registration of the same address belongs to this broker before a crash, because no other process can listen there.
    The function waits up to ``patience_s`` for the end of that registration.

    Raises ``BrokerIdTakenError`` if the id belongs to another broker. Raises ``EndpointTakenError`` if the address
    belongs to another broker, because calls for one of them would then reach the other.
    """
    deadline = time.monotonic() + patience_s
    path = paths.broker_path(broker_id)
    while True:
        _await_endpoints(coordination, broker_id, node, deadline)
        try:
            settle(coordination, [Create(path, node.encode(), ephemeral=True)])
        except NodeExistsError:
            _await_id(coordination, broker_id, node, deadline)
            continue
        _, stat = coordination.get(path)
        return stat.created_id


def change_registration(coordination: Coordination, broker_id: int, epoch: int, node: BrokerNode) -> None:
    """Change the addresses of the registration of this epoch. Do nothing if it is gone."""
    path = paths.broker_path(broker_id)
    with contextlib.suppress(NoNodeError):
        while True:
            data, stat = coordination.get(path)
            if stat.created_id != epoch or data == node.encode():
                return
            with contextlib.suppress(BadVersionError):
                settle(coordination, [Write(path, node.encode(), stat.version)])


def _await_endpoints(coordination: Coordination, broker_id: int, node: BrokerNode, deadline: float) -> None:
    """Wait until no other broker is registered at an address of ``node``."""
    mine = {(each.host, each.port) for each in node.endpoints}
    for other in live_ids(coordination):
        present, gone = _registered(coordination, other)
        if other == broker_id or present is None:
            continue
        shared = sorted(mine & {(each.host, each.port) for each in present.endpoints})
        if shared and not gone.wait(deadline - time.monotonic()):
            host, port = shared[0]
            raise EndpointTakenError(
                f"broker {other} of this cluster advertises {host}:{port}, so broker {broker_id} cannot: "
                "correct advertised.listeners of one of them"
            )


def _await_id(coordination: Coordination, broker_id: int, node: BrokerNode, deadline: float) -> None:
    present, gone = _registered(coordination, broker_id)
    if present is None:
        return
    if present.endpoints[0] != node.endpoints[0] or not gone.wait(deadline - time.monotonic()):
        raise BrokerIdTakenError(
            f"broker id {broker_id} is taken by a live broker of this cluster, at {present.host}:{present.port}: "
            "give this one another broker.id"
        )


def _registered(coordination: Coordination, broker_id: int) -> tuple[BrokerNode | None, threading.Event]:
    """Return a broker's registration, and an event that is set when it changes or ends."""
    changed = threading.Event()
    try:
        data, _ = coordination.get(paths.broker_path(broker_id), lambda _: changed.set())
    except NoNodeError:
        return None, changed
    return BrokerNode.decode(data), changed


def live_ids(coordination: Coordination) -> list[int]:
    """Return the ids of the registered brokers, sorted."""
    return sorted(int(name) for name in coordination.children(paths.BROKER_IDS))


def live_brokers(coordination: Coordination) -> list[LiveBroker]:
    """Return the registered brokers, by id."""
    ids = live_ids(coordination)
    found = coordination.get_many([paths.broker_path(each) for each in ids])
    return [live_broker(each, BrokerNode.decode(node[0])) for each, node in zip(ids, found, strict=True) if node]


def broker_node(
    endpoints: Mapping[str, Listener],
    *,
    rack: str,
    timestamp_ms: int,
    security_protocol_of: Callable[[str], SecurityProtocol] = lambda _: SecurityProtocol.PLAINTEXT,
) -> BrokerNode:
    """Return the registration of a broker at the advertised addresses of its listeners."""
    return BrokerNode.at(
        tuple(Endpoint(name, security_protocol_of(name), *address) for name, address in endpoints.items()),
        rack=rack,
        timestamp_ms=timestamp_ms,
    )


def live_broker(broker_id: int, node: BrokerNode) -> LiveBroker:
    """Return a registered broker and its addresses."""
    endpoints = {each.listener: Listener(each.host, each.port) for each in node.endpoints}
    return LiveBroker(broker_id=broker_id, rack=node.rack, endpoints=endpoints)
