"""Client of metrics over HTTPS, for brokers and drivers of Spark."""

from __future__ import annotations

import base64
import ssl
import urllib.request

from .certificates import Authority
from .integration.waiting import STALL_S


def read_metrics(port: int, authority: Authority, own: str = "", **headers: str) -> str:
    """Read the metrics at a port, whose certificate is of the authority. ``own`` is the client's key store."""
    trusted = ssl.create_default_context(cadata=authority.identity.pem().decode())
    if own:
        trusted.load_cert_chain(own)
    request = urllib.request.Request(f"https://127.0.0.1:{port}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=STALL_S, context=trusted) as answer:
        found: str = answer.read().decode()
        return found


def basic(user: str, password: str) -> dict[str, str]:
    """Return the header by which a user authenticates."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}
