"""TLS of connections to ZooKeeper, whose stores are those of clients (``millrace.security``)."""

from __future__ import annotations

import ssl
from functools import partial

from millrace.config.security_options import SslOptions
from millrace.config.zookeeper import ZooKeeperConfig
from millrace.errors import InvalidConfigError
from millrace.security import Reloading, client_context
from millrace.security.tls import TLS_1_3_SUITES


def zookeeper_tls(config: ZooKeeperConfig) -> Reloading[ssl.SSLContext] | None:
    """Return the context of connections with TLS, which follows its files. Raises ``InvalidConfigError``."""
    if not config.zookeeper_ssl_client_enable:
        return None
    options = _ssl_options(config)
    try:
        return Reloading("zookeeper.ssl.*", options, partial(client_context, options))
    except InvalidConfigError as error:
        raise InvalidConfigError(f"zookeeper.ssl.*: {error.message}") from error


def _ssl_options(config: ZooKeeperConfig) -> SslOptions:
    suites = config.zookeeper_ssl_cipher_suites
    return SslOptions.load(
        {
            "ssl.keystore.location": config.zookeeper_ssl_keystore_location,
            "ssl.keystore.type": config.zookeeper_ssl_keystore_type,
            "ssl.keystore.password": config.zookeeper_ssl_keystore_password,
            "ssl.key.password": config.zookeeper_ssl_keystore_password,
            "ssl.truststore.location": config.zookeeper_ssl_truststore_location,
            "ssl.truststore.type": config.zookeeper_ssl_truststore_type,
            "ssl.truststore.password": config.zookeeper_ssl_truststore_password,
            "ssl.enabled.protocols": "TLSv1.3" if config.zookeeper_ssl_protocol == "TLSv1.3" else "TLSv1.2,TLSv1.3",
            "ssl.cipher.suites": ",".join((suites, *sorted(TLS_1_3_SUITES))) if suites else "",
            "ssl.endpoint.identification.algorithm": config.zookeeper_ssl_endpoint_identification_algorithm,
            "ssl.reload.interval.ms": 0,  # connections to ZooKeeper are rare, and each reads the files
        }
    )
