"""Admission of calls, which bounds the resources that clients can take.

Admission is below the listeners. Each protocol has its calls admitted here.

* ``call_classes``     classes of calls: client calls, control calls of clients and operators, calls of other brokers
* ``admission``        places for requests and memory for bytes, by class
* ``connections``      places for connections, by class
* ``parked_calls``     memory of calls that wait for others, and early answers to some of them
* ``waiting``          marks a wait for others in the code of a call
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
