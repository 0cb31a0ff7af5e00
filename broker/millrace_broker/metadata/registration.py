"""How a broker makes itself known: the cluster's id, its own ephemeral node, and the controller's chair."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from millrace.coordination import Coordination, Create, NodeExistsError, NoNodeError, Write, ensure_path, paths
from millrace.coordination.nodes import BrokerNode, ClusterIdNode, ControllerNode
from millrace.errors import EnvironmentProblemError
from millrace.ids import id_text


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBroker:
    """A registered broker and where clients reach it."""

    broker_id: int
    host: str
    port: int
    rack: str


def ensure_roots(coordination: Coordination) -> None:
    """Create the persistent nodes that everything else hangs on."""
    for path in paths.ROOTS:
        ensure_path(coordination, path)


def cluster_id(coordination: Coordination, *, make: Callable[[], str] | None = None) -> str:
    """The cluster's id, made by whoever asks first: 22 characters as Kafka's (base64url of a random UUID)."""
    try:
        return ClusterIdNode.decode(coordination.get(paths.CLUSTER_ID)[0]).cluster_id
    except NoNodeError:
        new = ClusterIdNode((make or _random_id)())
    try:
        coordination.create(paths.CLUSTER_ID, new.encode())
    except NodeExistsError:
        return cluster_id(coordination)  # another broker was faster
    return new.cluster_id


def register(coordination: Coordination, broker_id: int, node: BrokerNode) -> None:
    """Announce a broker for as long as the session lives. Raises ``EnvironmentProblemError`` if the id is taken."""
    try:
        coordination.create(paths.broker_path(broker_id), node.encode(), ephemeral=True)
    except NodeExistsError as error:
        raise EnvironmentProblemError(
            f"broker id {broker_id} is taken by a live broker of this cluster: give this one another broker.id"
        ) from error


def live_brokers(coordination: Coordination) -> list[LiveBroker]:
    """The registered brokers, by id."""
    brokers = []
    for name in coordination.children(paths.BROKER_IDS):
        try:
            node = BrokerNode.decode(coordination.get(paths.broker_path(int(name)))[0])
        except NoNodeError:
            continue  # it left between the two reads
        brokers.append(LiveBroker(broker_id=int(name), host=node.host, port=node.port, rack=node.rack))
    return sorted(brokers, key=lambda broker: broker.broker_id)


def become_controller(coordination: Coordination, broker_id: int, *, now_ms: int) -> int:
    """Take the controller's chair and return the new epoch. Raises ``NodeExistsError`` when it is taken."""
    node = ControllerNode(broker_id=broker_id, timestamp_ms=now_ms).encode()
    chair = Create(paths.CONTROLLER, node, ephemeral=True)
    try:
        data, stat = coordination.get(paths.CONTROLLER_EPOCH)
    except NoNodeError:
        coordination.multi([chair, Create(paths.CONTROLLER_EPOCH, b"1")])
        return 1
    epoch = int(data) + 1
    coordination.multi([chair, Write(paths.CONTROLLER_EPOCH, str(epoch).encode(), stat.version)])
    return epoch


def _random_id() -> str:
    return id_text(uuid.uuid4())
