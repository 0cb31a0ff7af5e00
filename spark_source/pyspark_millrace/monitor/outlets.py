"""Outlets of metrics: an HTTP endpoint, a text file, a push gateway.

Prometheus scrapes the endpoint. The text file (for a node exporter) and the gateway are updated after each batch. They
suit drivers that Prometheus cannot reach, or that end before a scrape. A background thread does this, because computing
the metrics asks brokers for the lag.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError

from prometheus_client import CollectorRegistry, make_wsgi_app, push_to_gateway, write_to_textfile

from millrace.config.loopback import is_loopback
from millrace.config.references import resolve_references
from millrace.config.security_options import ListenerSecurity, SecurityProtocol
from millrace.errors import EnvironmentProblemError, InvalidConfigError
from millrace.security.http_access import HttpAccess
from millrace.security.https import HttpServer
from pyspark_millrace.monitor.background import Background

_log = logging.getLogger(__name__)

_JOB: Final = "millrace_spark"
_PROTOCOL: Final = "security.protocol"


class Outlets:
    """All outlets of a process. Wake ``writing`` after each change of the metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._textfiles: set[Path] = set()
        self._gateways: set[str] = set()
        self._served: dict[tuple[str, int], int] = {}
        self.writing = Background("millrace-metrics", self._write, "metrics were not written")

    @property
    def ports(self) -> list[int]:
        """Ports on which metrics are served."""
        return list(self._served.values())

    def serve(self, host: str, port: int, security: Mapping[str, Any] | None = None) -> int:
        """Serve ``/metrics``; returns the port, which the system chooses for 0.

        ``security`` has ``security.protocol`` and options of a listener for TLS and users. A repeated call returns the
        first port. Raises ``EnvironmentProblemError`` if the port is in use, and ``InvalidConfigError``.
        """
        if (host, port) in self._served:
            return self._served[(host, port)]
        access = _access(host, port, security or {})
        try:
            server = HttpServer(host, port, make_wsgi_app(self._registry), tls=access.tls, users=access.users)
        except OSError as error:
            raise EnvironmentProblemError(
                f"metrics cannot be served on {host}:{port}: {error.strerror}; choose another port, or 0 for any"
            ) from error
        self._served[(host, port)] = int(server.server_port)
        return self._served[(host, port)]

    def add_textfile(self, path: str | Path) -> None:
        """Write a file after each batch; the file is replaced atomically."""
        self._textfiles.add(Path(path))

    def add_gateway(self, address: str) -> None:
        """Push to ``host:port`` after each batch, as job ``millrace_spark`` of this host."""
        self._gateways.add(address)

    def _write(self) -> None:
        for path in list(self._textfiles):
            try:
                write_to_textfile(str(path), self._registry)
            except OSError as error:
                _log.warning("metrics were not written to %s: %s", path, error)
        for address in list(self._gateways):
            try:
                push_to_gateway(address, _JOB, self._registry, {"instance": socket.gethostname()}, timeout=5)
            except (URLError, OSError) as error:
                _log.warning("metrics were not pushed to %s: %s", address, error)


def _access(host: str, port: int, security: Mapping[str, Any]) -> HttpAccess:
    """Return the security of an address. Raises ``InvalidConfigError``."""
    options = resolve_references(security)
    given = str(options.pop(_PROTOCOL, ""))
    if given and given.upper() not in (*SecurityProtocol,):
        raise InvalidConfigError(f"{_PROTOCOL}={given!r} of the metrics: expected {', '.join(SecurityProtocol)}")
    protocol = SecurityProtocol(given.upper() or SecurityProtocol.PLAINTEXT)
    if not (given or is_loopback(host)):
        raise InvalidConfigError(
            f"metrics at {host}:{port} have no encryption, and the address is not loopback: set {_PROTOCOL}=SSL and "
            f"ssl.keystore.location, or {_PROTOCOL}=PLAINTEXT in a network that you trust"
        )
    return HttpAccess.of("metrics", protocol, ListenerSecurity.load(options))
