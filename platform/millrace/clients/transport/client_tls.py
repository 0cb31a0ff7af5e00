"""Security of a client: its TLS, for Kafka's framing and gRPC, and its user."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from millrace.clients.transport.tls_socket import GRPC_ALPN, TlsSocket
from millrace.config.client import ClientConfig, Transport
from millrace.errors import InvalidConfigError
from millrace.security import Reloading, TlsMaterial, client_context, refuse_for_grpc
from millrace.security.sasl import SaslCredentials


class ClientTls(NamedTuple):
    """What a client's stores are made into."""

    context: ssl.SSLContext
    material: TlsMaterial


def credentials_of(config: ClientConfig) -> SaslCredentials | None:
    """Return the user of a client with SASL. Raises ``InvalidConfigError`` for gRPC, which has no SASL yet."""
    if not config.security_protocol.has_sasl:
        return None
    if config.transport is Transport.GRPC:
        raise InvalidConfigError(
            f"security.protocol={config.security_protocol} cannot be set with transport=grpc: use SSL with a "
            "certificate of the client, or transport=auto"
        )
    return SaslCredentials(config.sasl_mechanism, *config.sasl_login)


def tls_of(config: ClientConfig) -> Reloading[ClientTls] | None:
    """Return the TLS of a client; None for a client without. Raises ``InvalidConfigError``."""
    if not config.security_protocol.has_tls:
        return None
    if config.transport is Transport.GRPC:
        refuse_for_grpc(config, "transport=grpc")

    def make(material: TlsMaterial) -> ClientTls:
        context = client_context(config, material)
        context.set_alpn_protocols([GRPC_ALPN])
        context.sslsocket_class = TlsSocket
        return ClientTls(context, material)

    return Reloading(f"client {config.client_id or config.bootstrap_servers}", config, make)
