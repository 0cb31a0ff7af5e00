"""Security of the metrics' address: TLS with the options of listeners, and users."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import NamedTuple

from millrace.config.broker import BrokerConfig
from millrace.config.listener_options import METRICS
from millrace.errors import InvalidConfigError
from millrace.security import Reloading, TlsMaterial, server_context
from millrace_broker.security import is_loopback, users_of


class MetricsAccess(NamedTuple):
    """Security of the metrics."""

    tls: Reloading[ssl.SSLContext] | None
    users: Mapping[str, str] | None
    """Passwords by the names of users; None if everybody may read the metrics."""


def metrics_access(config: BrokerConfig, host: str) -> MetricsAccess:
    """Return the security of the metrics on a host. Raises ``InvalidConfigError`` if it cannot be as configured."""
    protocol, options = config.metrics_security_protocol, config.security_of(METRICS)
    if not (protocol.has_tls or config.allow_plaintext_listeners or is_loopback(host)):
        raise InvalidConfigError(
            f"metrics at {host}:{config.metrics_port} have no encryption, and the address is not loopback: set "
            "metrics.security.protocol=SSL, or allow.plaintext.listeners=true in a network that you trust"
        )
    users = users_of(options) if protocol.has_sasl else None
    if users is not None and not users:
        raise InvalidConfigError(
            f"metrics.security.protocol={protocol} without users: set listener.name.metrics.plain.sasl.jaas.config "
            'with user_<name>="<password>"'
        )
    return MetricsAccess(_reloading(config) if protocol.has_tls else None, users)


def _reloading(config: BrokerConfig) -> Reloading[ssl.SSLContext]:
    options = config.security_of(METRICS)

    def make(material: TlsMaterial) -> ssl.SSLContext:
        return server_context(options, material)

    try:
        return Reloading("metrics", options, make)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"metrics: {error.message}") from None
