"""The check of calls that only brokers of the cluster may make.

Such a call must arrive at the listener that brokers use for it.
"""

from __future__ import annotations

from millrace.acls import CLUSTER_NAME, AclOperation, ResourceType
from millrace.config.security_options import SecurityProtocol
from millrace.errors import ClusterAuthorizationError
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.network import CONTROLLER_CALLS
from millrace_broker.security import ANONYMOUS


def check_is_broker(broker: Broker, context: RequestContext) -> None:
    """Raise ``ClusterAuthorizationError`` unless the caller is a broker of this cluster, at the listener for the call.

    Calls between controller and brokers come by ``control.plane.listener.name``, all others by
    ``inter.broker.listener.name``. If that listener has no security, brokers cannot be told from others, and every
    caller is accepted. ``User:ANONYMOUS`` in ``broker.principals`` accepts callers without an identity too. The audit
    gets a denial of ``CLUSTER_ACTION``, also for a caller with that right.
    """
    config = broker.config
    listener = config.inter_broker_listener
    if context.api_name in CONTROLLER_CALLS:
        listener = config.control_plane_listener
    if context.listener_name == listener or listener == config.inter_broker_listener:
        if config.security_protocol_of(listener) is SecurityProtocol.PLAINTEXT:
            return
        if context.listener_name == listener and context.is_broker:
            return
    if context.principal == ANONYMOUS and str(ANONYMOUS) in config.broker_principal_names:
        return
    if broker.audit is not None:
        broker.audit.record(context, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME, is_allowed=False)
    raise ClusterAuthorizationError(
        f"{context.api_name} is a call of brokers: {context.principal} at listener {context.listener_name} is none. "
        f"Brokers come by listener {listener}, as one of broker.principals"
    )
