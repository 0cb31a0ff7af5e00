"""Calls that only brokers of the cluster may make."""

from __future__ import annotations

from millrace.errors import ClusterAuthorizationError
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker


def check_is_broker(broker: Broker, context: RequestContext) -> None:
    """Raise ``ClusterAuthorizationError`` unless the caller is a broker of this cluster.

    Without security at the listener between brokers, brokers cannot be told from others, and every caller is accepted.
    """
    if context.is_broker or not broker.config.authenticates_brokers:
        return
    raise ClusterAuthorizationError(
        f"{context.api_name} is a call of brokers: {context.principal} at listener {context.listener_name} is none. "
        f"Brokers come by listener {broker.config.inter_broker_listener}, as one of broker.principals"
    )
