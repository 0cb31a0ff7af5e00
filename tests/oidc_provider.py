"""An OpenID provider for tests, over HTTP on loopback.

The provider rotates its keys, and issues tokens for clients.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import ECKey, Key, RSAKey

from .planted_secrets import planted

ISSUER = "https://login.example"
AUDIENCE = "millrace"
CLIENT_ID, SECRET = "orders", planted("client-swordfish")


class Provider:
    """Keys, the client ``orders``, and counts of what was asked."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.clients = {CLIENT_ID: SECRET}
        self.asked = {"/jwks": 0, "/token": 0}
        self.forms: list[dict[str, list[str]]] = []
        self.lifetime_s = 3600
        self.status = 200
        """HTTP status of all answers."""
        self.url = ""
        self.rotate()

    def rotate(self, kind: str = "RSA") -> Key:
        """Replace all keys with another."""
        number = str(time.monotonic_ns())
        if kind == "RSA":
            self.keys = [RSAKey.generate_key(2048, {"kid": number, "use": "sig"})]
        else:
            self.keys = [ECKey.generate_key("P-256", {"kid": number, "use": "sig"})]
        return self.keys[0]

    def jwks(self) -> dict[str, Any]:
        return {"keys": [key.as_dict(private=False) for key in self.keys]}

    def token(self, key: Key | None = None, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """Sign a token. A claim that is None is left out."""
        key = key or self.keys[0]
        now = int(time.time())
        all_claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": CLIENT_ID,
            "scope": "read write",
            "iat": now,
            "exp": now + self.lifetime_s,
        } | claims
        algorithm = "RS256" if isinstance(key, RSAKey) else "ES256"
        heads = {"alg": algorithm, "kid": key.kid} | (header or {})
        given = {name: value for name, value in all_claims.items() if value is not None}
        return jwt.encode({k: v for k, v in heads.items() if v is not None}, given, key, algorithms=[heads["alg"]])

    def is_client(self, authorization: str) -> bool:
        client_id, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        return self.clients.get(client_id) == secret


@contextmanager
def running(tls: ssl.SSLContext | None = None) -> Iterator[Provider]:
    """Run a provider at ``url``, with https if there is TLS."""
    provider = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(provider.status, provider.jwks())

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            provider.forms.append(form)
            if not provider.is_client(self.headers.get("Authorization", "")):
                self._answer(401, {"error": "invalid_client"})
                return
            answer = {"access_token": provider.token(), "token_type": "Bearer", "expires_in": provider.lifetime_s}
            self._answer(provider.status, answer)

        def _answer(self, status: int, document: dict[str, Any]) -> None:
            provider.asked[self.path] += 1
            body = json.dumps(document).encode()
            self.send_response(status)
            if status in (301, 302):
                self.send_header("Location", f"{provider.url}/elsewhere")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        provider.url = f"{scheme}://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()
