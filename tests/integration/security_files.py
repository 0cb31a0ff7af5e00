"""Files of ``millrace security init`` for brokers in threads, whose ports are free ones."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path
from typing import Any, Self

from millrace.config.base import read_properties
from millrace_broker.cli.security_directory import Place, SecurityDirectory
from millrace_broker.testing import EmbeddedBroker

RELOAD_MS = 100
"""``ssl.reload.interval.ms`` of brokers and clients."""


class SecurityFiles:
    """A security directory for brokers on this machine.

    The directory gives the security options of brokers and clients.
    """

    def __init__(self, path: Path, brokers: int = 1) -> None:
        self.directory = SecurityDirectory.at(path)
        self.directory.create([Place("localhost", 0)] * brokers, ["client", "guest"], days=1)

    @classmethod
    def of(cls, path: Path) -> Self:
        """Return an existing directory."""
        found = cls.__new__(cls)
        found.directory = SecurityDirectory.at(path)
        return found

    def copied(self, path: Path) -> Self:
        """Return a copy, whose properties name the files of the copy."""
        shutil.copytree(self.path, path)
        for each in path.glob("*.properties"):
            each.write_text(each.read_text().replace(str(self.path), str(path)))
        return self.of(path)

    @property
    def path(self) -> Path:
        return self.directory.path

    def broker(self, number: int = 1, **options: str) -> dict[str, str]:
        """Return the options of a broker, at free ports."""
        found = read_properties(self.directory.broker_properties(number))
        found["listeners"] = "SASL_SSL://127.0.0.1:0,SSL://127.0.0.1:0"
        return (
            found
            | {"ssl.reload.interval.ms": str(RELOAD_MS)}
            | {name.replace("_", "."): value for name, value in options.items()}
        )

    def client(self, name: str, *brokers: EmbeddedBroker, **options: Any) -> dict[str, Any]:
        """Return the options of a client, such as ``admin`` or ``client.tls``."""
        found: dict[str, Any] = read_properties(self.path / f"{name}.properties")
        listener = found["security.protocol"]
        found["bootstrap.servers"] = ",".join(f"127.0.0.1:{each.server.ports[listener]}" for each in brokers)
        if "librdkafka" not in name:
            found["ssl.reload.interval.ms"] = RELOAD_MS
        return found | {name.replace("_", "."): value for name, value in options.items()}

    def secrets(self) -> set[str]:
        """Return the passwords, and the lines of the private keys."""
        found = set()
        for path in self.path.glob("*.librdkafka.properties"):
            found.add(read_properties(path)["sasl.password"])
        for path in self.path.glob("*.pem"):
            key = path.read_text().partition("-----BEGIN PRIVATE KEY-----")[2].partition("-----END")[0]
            found.update(line for line in key.splitlines() if line)
        return found

    def is_served(self, number: int, broker: EmbeddedBroker, listener: str = "SASL_SSL") -> bool:
        """Return whether a broker shows the certificate of its file."""
        shown = ssl.get_server_certificate(("127.0.0.1", broker.server.ports[listener]))
        return shown.strip() in (self.path / f"broker-{number}.pem").read_text()
