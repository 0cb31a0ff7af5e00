"""Security of the metrics' address."""

from __future__ import annotations

from millrace.config.broker import BrokerConfig
from millrace.config.listener_options import METRICS
from millrace.config.loopback import is_loopback
from millrace.errors import InvalidConfigError
from millrace.security.http_access import HttpAccess


def metrics_access(config: BrokerConfig, host: str) -> HttpAccess:
    """Return the security of the metrics on a host. Raises ``InvalidConfigError`` if it cannot be as configured."""
    protocol, options = config.metrics_security_protocol, config.security_of(METRICS)
    if not (protocol.has_tls or config.allow_plaintext_listeners or is_loopback(host)):
        raise InvalidConfigError(
            f"metrics at {host}:{config.metrics_port} have no encryption, and the address is not loopback: set "
            "metrics.security.protocol=SSL, or allow.plaintext.listeners=true in a network that you trust"
        )
    if protocol.has_sasl and not options.users:
        raise InvalidConfigError(
            f"metrics.security.protocol={protocol} without users: set listener.name.metrics.plain.sasl.jaas.config "
            'with user_<name>="<password>"'
        )
    return HttpAccess.of("metrics", protocol, options)
