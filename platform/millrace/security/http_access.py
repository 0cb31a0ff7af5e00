"""Security of the metrics addresses.

An address may have TLS, with the options of listeners, and users with passwords.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from millrace.config.security_options import ListenerSecurity, SecurityProtocol
from millrace.errors import InvalidConfigError
from millrace.security.reloading import Reloading
from millrace.security.tls import server_context


class HttpAccess(NamedTuple):
    """Security of one address."""

    tls: Reloading[ssl.SSLContext] | None
    users: Mapping[str, str] | None
    """Passwords by the names of users; None if everybody may read."""

    @classmethod
    def of(cls, name: str, protocol: SecurityProtocol, options: ListenerSecurity) -> HttpAccess:
        """Return the access of a security protocol. Messages of errors begin with ``name``.

        Raises ``InvalidConfigError`` for SASL without users, and for stores that cannot be used.
        """
        users = options.users if protocol.has_sasl else None
        if users is not None and not users:
            raise InvalidConfigError(
                f'{name}: {protocol} needs users: set sasl.jaas.config with user_<name>="<password>" for them'
            )
        try:
            tls = Reloading(name, options, partial(server_context, options)) if protocol.has_tls else None
        except InvalidConfigError as error:
            raise InvalidConfigError(f"{name}: {error.message}") from None
        return cls(tls, users)
