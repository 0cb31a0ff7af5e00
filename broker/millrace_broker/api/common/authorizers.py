"""Authorizer of a broker, for the calls that manage ACLs."""

from __future__ import annotations

from millrace.errors import SecurityDisabledError
from millrace_broker.security import Authorizer


def require_authorizer(authorizer: Authorizer | None) -> Authorizer:
    """Return the broker's authorizer. Raises ``SecurityDisabledError`` if the broker has none."""
    if authorizer is None:
        raise SecurityDisabledError("this broker has no ACLs, because it has no authorizer: set authorizer.class.name")
    return authorizer
