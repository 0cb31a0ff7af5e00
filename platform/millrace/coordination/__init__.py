"""Where a cluster keeps its metadata: ZooKeeper's semantics as an interface, and a store that needs no ZooKeeper.

``interface`` says what every store promises, ``embedded`` is the one for a single broker, ``paths`` and ``nodes``
say what is kept where.
"""

from millrace.coordination.embedded import METADATA_FILE, EmbeddedCoordination, EmbeddedStore
from millrace.coordination.interface import (
    ANY_VERSION,
    BadVersionError,
    Check,
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
    Operation,
    SessionExpiredError,
    Watch,
    WatchEvent,
    Write,
    ensure_path,
)

__all__ = [
    "ANY_VERSION",
    "METADATA_FILE",
    "BadVersionError",
    "Check",
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
    "Operation",
    "SessionExpiredError",
    "Watch",
    "WatchEvent",
    "Write",
    "ensure_path",
]
