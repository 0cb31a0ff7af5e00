"""Keycloak, an OpenID provider that others make, on loopback."""

from __future__ import annotations

import json
import os
import shutil
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from benchmarks.workspace import free_port, start, stop, tail

from ..planted_secrets import planted
from . import install

VERSION: Final = "26.1.4"
AUDIENCE: Final = "millrace"
CLIENT_ID, SECRET = "orders", planted("keycloak-orders")
STRANGER_ID, STRANGER_SECRET = "payments", planted("keycloak-payments")
"""A client whose tokens have another audience."""
PRINCIPAL_CLAIM: Final = "azp"
"""Claim with the client's name. The claim ``sub`` is a random number."""
_REALM: Final = "company"
_ADMIN, _ADMIN_PASSWORD = "admin", planted("keycloak-admin")
_START_SECONDS_MAX: Final = 300
_ANSWER_SECONDS_MAX: Final = 30


@dataclass(frozen=True, slots=True)
class Keycloak:
    """A running server."""

    url: str

    @property
    def issuer(self) -> str:
        """The realm's name in tokens."""
        return f"{self.url}/realms/{_REALM}"

    @property
    def token_endpoint(self) -> str:
        """The address at which clients get tokens."""
        return f"{self.issuer}/protocol/openid-connect/token"

    @property
    def jwks_endpoint(self) -> str:
        """The address at which brokers get the keys."""
        return f"{self.issuer}/protocol/openid-connect/certs"

    def rotate_keys(self) -> None:
        """Sign tokens with a new key from now on."""
        key = {
            "name": f"rotated-{time.time_ns()}",
            "providerId": "rsa-generated",
            "providerType": "org.keycloak.keys.KeyProvider",
            "config": {"priority": [str(time.time_ns() // 10**9)], "algorithm": ["RS256"]},
        }
        self._administer("POST", "components", key)

    def disable(self, client_id: str) -> None:
        """Give a client no more tokens."""
        (client,) = self._administer("GET", f"clients?clientId={client_id}")
        self._administer("PUT", f"clients/{client['id']}", {**client, "enabled": False})

    def _administer(self, method: str, path: str, body: object = None) -> Any:
        login = {
            "grant_type": "password",
            "client_id": "admin-cli",
            "username": _ADMIN,
            "password": _ADMIN_PASSWORD,
        }
        endpoint = f"{self.url}/realms/master/protocol/openid-connect/token"
        token = _ask("POST", endpoint, urlencode(login).encode())["access_token"]
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        return _ask(method, f"{self.url}/admin/realms/{_REALM}/{path}", data, **headers)


def _ask(method: str, url: str, data: bytes | None, **headers: str) -> Any:
    request = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS_MAX) as answer:
        return json.loads(answer.read() or b"null")


def _realm() -> dict[str, Any]:
    mapper = {
        "name": "audience",
        "protocol": "openid-connect",
        "protocolMapper": "oidc-audience-mapper",
        "config": {"included.custom.audience": AUDIENCE, "access.token.claim": "true"},
    }

    def client(name: str, secret: str, mappers: list[dict[str, Any]]) -> dict[str, Any]:
        flows = {"serviceAccountsEnabled": True, "standardFlowEnabled": False, "publicClient": False}
        return {"clientId": name, "secret": secret, "protocolMappers": mappers, **flows}

    clients = [client(CLIENT_ID, SECRET, [mapper]), client(STRANGER_ID, STRANGER_SECRET, [])]
    return {"realm": _REALM, "enabled": True, "clients": clients}


def _installed() -> Path:
    def make(folder: Path) -> None:
        artifact = f"org.keycloak:keycloak-quarkus-dist:{VERSION}:zip"
        copy = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
        options = [f"-Dartifact={artifact}", f"-DoutputDirectory={folder}", install.maven_repository()]
        install.run(["mvn", "-q", "-B", copy, *options])
        archive = folder / f"keycloak-quarkus-dist-{VERSION}.zip"
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
        archive.unlink()
        (folder / f"keycloak-{VERSION}" / "bin" / "kc.sh").chmod(0o755)

    return install.made_once(f"keycloak-{VERSION}", make) / f"keycloak-{VERSION}"


@contextmanager
def running(directory: Path) -> Iterator[Keycloak]:
    """Run a server with a new realm of two clients. Its log is in ``directory``. Raises ``InstallError``."""
    home, port, log = _installed(), free_port(), directory / "keycloak.log"
    imported = home / "data" / "import"
    imported.mkdir(parents=True, exist_ok=True)
    (imported / f"{_REALM}-realm.json").write_text(json.dumps(_realm()))
    shutil.rmtree(home / "data" / "h2", ignore_errors=True)  # the realm of the run before
    command = [home / "bin" / "kc.sh", "start-dev", "--import-realm", "--http-host=127.0.0.1", f"--http-port={port}"]
    environment = {"KC_BOOTSTRAP_ADMIN_USERNAME": _ADMIN, "KC_BOOTSTRAP_ADMIN_PASSWORD": _ADMIN_PASSWORD}
    process = start([str(each) for each in command], log, env=os.environ | environment)
    try:
        server = Keycloak(f"http://127.0.0.1:{port}")
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not _answers(server):
            if process.poll() is not None or time.monotonic() > deadline:
                raise install.InstallError(f"Keycloak did not start: {tail(log)}")
            time.sleep(0.5)
        yield server
    finally:
        stop(process)


def _answers(server: Keycloak) -> bool:
    try:
        _ask("GET", server.jwks_endpoint, None)
    except OSError:
        return False
    return True
