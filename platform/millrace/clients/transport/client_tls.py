"""Security of a client.

It covers the client's TLS, for Kafka's framing and for gRPC, and its user.
"""

from __future__ import annotations

import ssl
from typing import NamedTuple

from millrace.clients.transport.tls_socket import GRPC_ALPN, TlsSocket
from millrace.config.client import ClientConfig, Transport
from millrace.security import Reloading, TlsMaterial, client_context, refuse_for_grpc
from millrace.security.sasl import CredentialsSource, credentials_source


class ClientTls(NamedTuple):
    """TLS objects made of a client's key stores and trust stores."""

    context: ssl.SSLContext
    material: TlsMaterial


def credentials_of(config: ClientConfig) -> CredentialsSource | None:
    """Return the credentials of a client with SASL. Raises ``InvalidConfigError``."""
    if not config.security_protocol.has_sasl:
        return None
    username, password = config.sasl_login
    return credentials_source(config.sasl_mechanism, username, password, config, config.login)


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
