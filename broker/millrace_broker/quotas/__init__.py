"""Admission of calls, and quotas of clients.

Admission bounds the resources that all clients together can take, in the broker's own interest: places and memory. It
refuses or delays a call before its work. The listeners of all protocols use it.

* ``call_classes``        classes of calls: client calls, control calls of clients and operators, calls of other brokers
* ``admission``           places for requests and memory for bytes, by class
* ``connections``         places for connections, by class
* ``address_connections`` open connections of each address
* ``parked_calls``        memory of calls that wait for others, and early answers to some of them
* ``waiting``             marks a wait for others in the code of a call
* ``byte_budget``         bytes that calls share
* ``receptions``          requests that are being received, and give way if they stall

Quotas bound what a single client can take, as an administrator configures it (KIP-13, KIP-124, KIP-599, KIP-612). They
count the work of a call, and throttle its client after it. Admission and quotas are independent of each other.

* ``quota_table``         configured quotas, and the precedence between them
* ``token_bucket``        rates, pure
* ``client_quotas``       use of quotas by the calls of each client
* ``measured_work``       processor time of calls
* ``connection_rates``    rates of new connections
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
from millrace_broker.quotas.client_quotas import ClientQuotas, QuotaUse, Usage
from millrace_broker.quotas.connection_rates import ConnectionRates
from millrace_broker.quotas.connections import ACTIVE_CONNECTION_S, Connections
from millrace_broker.quotas.quota_table import QuotaTable
from millrace_broker.quotas.receptions import Reception, Receptions
from millrace_broker.quotas.token_bucket import TokenBucket
from millrace_broker.quotas.waiting import Turn, current_call, parked, pause

__all__ = [
    "ACTIVE_CONNECTION_S",
    "BROKER_SOFTWARE_NAME",
    "PARKED_CALL_BYTES",
    "Admission",
    "AdmissionStatistics",
    "AdmittedCall",
    "ByteBudget",
    "CallClass",
    "ClientQuotas",
    "ConnectionRates",
    "Connections",
    "Lease",
    "QuotaTable",
    "QuotaUse",
    "Reception",
    "Receptions",
    "Room",
    "SizeEstimate",
    "TokenBucket",
    "Turn",
    "Usage",
    "class_of",
    "current_call",
    "parked",
    "pause",
]
