"""Metadata storage of a cluster with ZooKeeper's semantics.

``interface`` defines the guarantees of every store. ``embedded`` is the store of a single broker. ``zookeeper`` is
the store of a cluster (it needs kazoo, so its users import it themselves). ``single_calls`` is shared by the stores.
``outcomes`` determines the outcome of a write whose response was lost.

Layout: ``paths``, ``nodes``, ``acl_nodes``, ``token_nodes``, ``notices``, with the encoding of ``json_node``.

Parts of the embedded store: ``tree``, ``watches``. Parts of the other: ``zookeeper_link`` (a session),
``zookeeper_client`` (kazoo), ``zookeeper_watches``, ``zookeeper_tls``.
"""

from millrace.coordination.embedded import METADATA_FILE, EmbeddedCoordination, EmbeddedStore
from millrace.coordination.interface import (
    ANY_VERSION,
    AccessDeniedError,
    BadVersionError,
    Check,
    ConnectionLossError,
    Coordination,
    CoordinationError,
    Create,
    Delete,
    EventType,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NodeStat,
    NoNodeError,
    NotEmptyError,
    OnLoop,
    Operation,
    SessionExpiredError,
    SessionState,
    SessionStore,
    Watch,
    WatchEvent,
    Write,
    ensure_path,
)

__all__ = [
    "ANY_VERSION",
    "METADATA_FILE",
    "AccessDeniedError",
    "BadVersionError",
    "Check",
    "ConnectionLossError",
    "Coordination",
    "CoordinationError",
    "Create",
    "Delete",
    "EmbeddedCoordination",
    "EmbeddedStore",
    "EventType",
    "NoChildrenForEphemeralsError",
    "NoNodeError",
    "NodeExistsError",
    "NodeStat",
    "NotEmptyError",
    "OnLoop",
    "Operation",
    "SessionExpiredError",
    "SessionState",
    "SessionStore",
    "Watch",
    "WatchEvent",
    "Write",
    "ensure_path",
]
