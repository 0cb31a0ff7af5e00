"""Checks and principals of the calls of delegation tokens (KIP-48)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from millrace.errors import DelegationTokenRequestNotAllowedError, InvalidPrincipalTypeError
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.security import ANONYMOUS
from millrace_broker.security.principal import USER

NO_TIME: Final = -1
"""Timestamp in the response to a refused request."""
_REQUESTER_VERSION: Final = 3


class Principal(Protocol):
    """A principal in a message."""

    @property
    def principal_type(self) -> str:
        """Type of the principal."""
        ...

    @property
    def principal_name(self) -> str:
        """Name of the principal."""
        ...


def check_client(request: KafkaRequest) -> None:
    """Raise ``DelegationTokenRequestNotAllowedError`` for a client that may not use delegation tokens.

    A client with a token cannot make itself another one, which would outlive the first.
    """
    sasl, principal = request.context.sasl, request.context.principal
    if principal == ANONYMOUS or (sasl is not None and sasl.is_token):
        raise DelegationTokenRequestNotAllowedError(
            "delegation tokens are for clients that have authenticated by SASL or a certificate, not by such a token"
        )


def users(principals: Iterable[Principal]) -> tuple[str, ...]:
    """Return principals of a message as ``User:name``. Raises ``InvalidPrincipalTypeError``."""
    found = []
    for each in principals:
        if each.principal_type != USER:
            raise InvalidPrincipalTypeError(f"the principal type {each.principal_type!r} is refused: expected User")
        found.append(f"{each.principal_type}:{each.principal_name}")
    return tuple(found)


def parts(principal: str) -> tuple[str, str]:
    """Return type and name of ``User:name``."""
    kind, _, name = principal.partition(":")
    return kind, name


def requester_of(version: int, requester: str) -> tuple[str, str]:
    """Return type and name of the principal that asked for a token. Older versions of responses have none."""
    return parts(requester) if version >= _REQUESTER_VERSION else ("", "")
