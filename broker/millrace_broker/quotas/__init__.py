"""Admission of calls: what clients can make the broker hold, and the room that they cannot take.

It stands below the listeners: each protocol has its calls admitted here.

* ``call_classes``     whose call it is: a client's, one that keeps clients and operators in control, another broker's
* ``admission``        places for requests and memory for bytes, by class
* ``connections``      places for connections, by class
* ``parked_calls``     the memory of calls that wait for others, and which of them are answered early
* ``waiting``          how code that waits for others says so
* ``byte_budget``      bytes that calls share
"""

from millrace_broker.quotas.admission import (
    PARKED_CALL_BYTES,
    Admission,
    AdmissionStatistics,
    AdmittedCall,
    Room,
)
from millrace_broker.quotas.byte_budget import ByteBudget, Lease, SizeEstimate
from millrace_broker.quotas.call_classes import BROKER_SOFTWARE_NAME, CallClass, class_of
from millrace_broker.quotas.connections import ACTIVE_CONNECTION_S, Connections
from millrace_broker.quotas.waiting import Turn, current_call, parked

__all__ = [
    "ACTIVE_CONNECTION_S",
    "BROKER_SOFTWARE_NAME",
    "PARKED_CALL_BYTES",
    "Admission",
    "AdmissionStatistics",
    "AdmittedCall",
    "ByteBudget",
    "CallClass",
    "Connections",
    "Lease",
    "Room",
    "SizeEstimate",
    "Turn",
    "class_of",
    "current_call",
    "parked",
]
