"""Where a cluster keeps its metadata: ZooKeeper's semantics as an interface, and a store that needs no ZooKeeper.

``interface`` says what every store promises, ``embedded`` is the one for a single broker, ``zookeeper`` the one for a
cluster (it needs kazoo, and is imported by who uses it); ``single_calls`` is what stores share. ``outcomes`` finds out
what became of a write whose answer was lost. ``paths`` and ``nodes`` say what is kept where.
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
