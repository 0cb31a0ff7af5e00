"""Authorizer of a broker, for the calls that manage ACLs."""

from __future__ import annotations

from millrace.errors import SecurityDisabledError
from millrace_broker.broker import Broker
from millrace_broker.security import Authorizer


def authorizer_of(broker: Broker) -> Authorizer:
    """Return the authorizer. Raises ``SecurityDisabledError`` if the broker has none."""
    if broker.authorizer is None:
        raise SecurityDisabledError("this broker has no ACLs, because it has no authorizer: set authorizer.class.name")
    return broker.authorizer
