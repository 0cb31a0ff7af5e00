"""Directory of ``millrace security``: an authority, certificates, and properties of brokers and clients.

Invariants

- ``create``, ``add_client`` and ``add_broker`` overwrite no certificate and no key. A changed file is replaced as a
  whole, so that a reader sees the earlier or the new content.
- A file with a private key or a password is never readable for others, also not while it is being written.
- The first authority in the trust store is that whose key is there. It issues the next certificates. Certificates of
  the others stay valid until ``retire`` removes them.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.config.base import read_properties
from millrace.config.listeners import Listener, parse_listeners
from millrace.config.loopback import LOOPBACK_HOSTS
from millrace.errors import EnvironmentProblemError, UsageError
from millrace.security.authority import Authority
from millrace.security.scram import ScramCredential
from millrace.security.stores import certificates_of
from millrace_broker.cli.whole_files import PUBLIC_MODE, SECRET_MODE, properties_text, write_whole
from millrace_broker.security import ACL_AUTHORIZER

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

TRUST_STORE: Final = "ca.pem"
AUTHORITY: Final = "ca-key.pem"
ADMIN: Final = "admin"
"""The super user."""
_BROKER: Final = "broker"
"""Name of the principal of all brokers."""
_MECHANISM: Final = "SCRAM-SHA-512"
_OF_ONE_BROKER: Final = ("broker.id", "listeners", "advertised.listeners", "ssl.keystore.location")
"""Options that differ between the brokers of a cluster."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NAME_OF_BROKER: Final = re.compile(rf"{_BROKER}-(\d+)")
"""Name of a broker's files, without the suffix."""
_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_PRIVATE_KEY: Final = b"PRIVATE KEY-----"
_PASSWORD_BYTES: Final = 24
_MAPPING_RULES: Final = f"RULE:^CN=[^,]*,OU=brokers$/{_BROKER}/,RULE:^CN=([^,]*),OU=clients$/$1/"
"""The organizational unit keeps a client with the name of a broker apart from the brokers."""
_ZOOKEEPER_USER: Final = _BROKER
_ZOOKEEPER_SECRET: Final = "zookeeper.secret"
_ZOOKEEPER_JAAS: Final = "zookeeper.jaas.conf"
"""Files of a ZooKeeper on this machine. No file of a client ends so."""
_TLS_PORT_DISTANCE: Final = 100
_ANY: Final = "0.0.0.0"


class Place(NamedTuple):
    """Host and port at which clients reach a broker."""

    host: str
    port: int

    @property
    def is_local(self) -> bool:
        """True if only clients on this machine can reach the broker."""
        return self.host in LOOPBACK_HOSTS

    @property
    def hosts(self) -> Sequence[str]:
        """The names that the broker's certificate has."""
        return LOOPBACK_HOSTS if self.is_local else (self.host,)

    def tls(self) -> Place:
        """Return the address for brokers and for clients with a certificate."""
        return self._replace(port=self.port + _TLS_PORT_DISTANCE)

    def __str__(self) -> str:
        return str(Listener(self.host, self.port))


def _check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None or name == _BROKER or _NAME_OF_BROKER.fullmatch(name):
        raise UsageError(
            f"client {name!r}: expected letters, digits, '.', '_' or '-', and no {_BROKER!r}, alone or with a number"
        )


def _credential(name: str, password: str) -> str:
    """Return an element of ``sasl.scram.credentials``."""
    return f"{_MECHANISM}=[name={name},{ScramCredential.of_password(_MECHANISM, password).stored()}]"


def replication_options(brokers: int) -> dict[str, str]:
    """Return the options for the replication of topics in a cluster of so many brokers."""
    factor, in_sync = str(min(3, brokers)), str(min(2, brokers))
    return {
        "default.replication.factor": factor,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": factor,
        "share.coordinator.state.topic.min.isr": in_sync,
    }


class ZooKeeperLogin(NamedTuple):
    """Authentication of brokers to a ZooKeeper on this machine."""

    jaas: Path
    """ZooKeeper's JAAS file, which has the secret."""
    broker_options: Mapping[str, str]
    """Options of the brokers, with a reference to the secret, so that they can be on a command line."""


@dataclass(frozen=True, slots=True)
class SecurityDirectory:
    """The files of a cluster's security. ``location`` is where they are on the machines that use them."""

    path: Path
    location: Path

    @classmethod
    def at(cls, path: Path, location: Path | None = None) -> SecurityDirectory:
        """Return the directory at a path, with absolute names in its properties."""
        return cls(path.absolute(), (location or path).absolute())

    @classmethod
    def of_existing(cls, path: Path) -> SecurityDirectory:
        """Return a directory with the location that its properties have. Raises ``UsageError`` if it has none."""
        admin = path / f"{ADMIN}.properties"
        if not admin.is_file():
            raise UsageError(f"{path} has no {admin.name}: millrace security init makes such a directory")
        return cls.at(path, Path(read_properties(admin)["ssl.truststore.location"]).parent)

    def create(self, brokers: Sequence[Place], clients: Sequence[str], days: int, zookeeper: str = "") -> None:
        """Write all files. Raises ``UsageError`` if the directory has files, or a name cannot be one."""
        for name in clients:
            _check_name(name)
        if self.path.exists() and any(self.path.iterdir()):
            raise UsageError(
                f"{self.path} has files, and none is overwritten: name another --directory, or renew its certificates "
                "with millrace security rotate"
            )
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = Authority.new()
        self._write(AUTHORITY, authority.pem(), SECRET_MODE)
        self._write(TRUST_STORE, authority.certificate_pem(), PUBLIC_MODE)
        passwords = {name: secrets.token_urlsafe(_PASSWORD_BYTES) for name in dict.fromkeys((ADMIN, *clients))}
        credentials = ";".join(_credential(name, password) for name, password in passwords.items())
        for number, place in enumerate(brokers, start=1):
            options = self._broker_options(number, place, credentials)
            if zookeeper:
                options = {"zookeeper.connect": zookeeper} | replication_options(len(brokers)) | options
            self._write_broker(authority, number, place, options, days)
        for name, password in passwords.items():
            self._write_client(authority, name, password, brokers, days)

    def add_client(self, name: str, days: int, register: Callable[[str, str, str], None] | None = None) -> None:
        """Write the files of another user, after ``register`` took its name, the mechanism and the password.

        Without ``register``, the credential goes into the properties of all brokers, which add it at their next start.
        Raises ``UsageError`` if the directory has the user, and the errors of ``register``.
        """
        authority, places = self._authority(), self._places()
        if (self.path / f"{name}.pem").exists():
            raise UsageError(
                f"{self.path} has the files of a user {name}, and none is overwritten: choose another name"
            )
        _check_name(name)
        password = secrets.token_urlsafe(_PASSWORD_BYTES)
        if register is not None:
            register(name, _MECHANISM, password)
        else:
            for number in places:
                self._add_credential(self.broker_properties(number), _credential(name, password))
        self._write_client(authority, name, password, list(places.values()), days)

    def _add_credential(self, path: Path, credential: str) -> None:
        """Add a credential to the properties of a broker. All other lines stay as they are."""
        option = "sasl.scram.credentials"
        lines = path.read_text("utf-8").splitlines()
        changed = [f"{line};{credential}" if line.partition("=")[0].strip() == option else line for line in lines]
        if changed == lines:
            changed.append(f"{option}={credential}")
        self._write(path.name, "".join(f"{line}\n" for line in changed).encode(), SECRET_MODE, replaces=True)

    def add_broker(self, place: Place, days: int) -> Path:
        """Write certificate and properties of another broker, and return the path of the properties.

        Its options are those of the broker with the lowest number, except its id, addresses and certificate. Raises
        ``UsageError`` if the cluster has no ZooKeeper, or a broker with this address.
        """
        authority, places = self._authority(), self._places()
        first, number = min(places), max(places) + 1
        options = read_properties(self.broker_properties(first))
        if "zookeeper.connect" not in options:
            raise UsageError(
                f"{self.broker_properties(first).name} has no zookeeper.connect, and a broker with its metadata in its "
                "data directory is alone: make the files of a cluster with millrace security init --zookeeper"
            )
        if place in places.values():
            raise UsageError(f"a broker of {self.path} has the address {place}: each broker has its own")
        own = self._broker_options(number, place, credentials="")
        options.pop("advertised.listeners", None)
        options |= {option: own[option] for option in _OF_ONE_BROKER if option in own}
        self._write_broker(authority, number, place, options, days)
        return self.broker_properties(number)

    def _places(self) -> dict[int, Place]:
        """Return the addresses of the brokers by their numbers. Raises ``UsageError`` if there is none."""
        found = {}
        for path in self.path.glob(f"{_BROKER}-*.properties"):
            number = _NAME_OF_BROKER.fullmatch(path.stem)
            if number is None:
                continue  # a client can have a name such as broker-audit
            options = read_properties(path)
            try:
                host, port = parse_listeners(options.get("advertised.listeners") or options["listeners"])["SASL_SSL"]
            except (KeyError, ValueError):
                raise UsageError(
                    f"{path} has no address of the listener SASL_SSL, at which users authenticate: add "
                    "SASL_SSL://host:port to listeners, and to advertised.listeners if that is set"
                ) from None
            found[int(number[1])] = Place("localhost" if host in LOOPBACK_HOSTS else host, port)
        if not found:
            raise UsageError(f"{self.path} has no properties of brokers: millrace security init makes such a directory")
        return dict(sorted(found.items()))

    def _broker_options(self, number: int, place: Place, credentials: str) -> dict[str, str]:
        listening = Place("127.0.0.1" if place.is_local else _ANY, place.port)
        options = {
            "broker.id": str(number),
            "listeners": f"SASL_SSL://{listening},SSL://{listening.tls()}",
            "inter.broker.listener.name": "SSL",
            "listener.name.ssl.ssl.client.auth": "required",
            "ssl.keystore.location": str(self.location / f"{_BROKER}-{number}.pem"),
            "ssl.truststore.location": str(self.location / TRUST_STORE),
            "ssl.principal.mapping.rules": _MAPPING_RULES,
            "sasl.enabled.mechanisms": _MECHANISM,
            "sasl.scram.credentials": credentials,
            "authorizer.class.name": ACL_AUTHORIZER,
            "super.users": f"User:{ADMIN}",
        }
        if not place.is_local:
            options["advertised.listeners"] = f"SASL_SSL://{place},SSL://{place.tls()}"
        return options

    def _write_broker(
        self, authority: Authority, number: int, place: Place, options: Mapping[str, str], days: int
    ) -> None:
        """Write the certificate of a broker, and its properties."""
        name = f"{_BROKER}-{number}"
        self._write(f"{name}.pem", authority.issue(f"CN={name},OU=brokers", place.hosts, days), SECRET_MODE)
        self._write_properties(name, "A broker: millrace broker --config THIS_FILE", options)

    def _write_client(
        self, authority: Authority, name: str, password: str, brokers: Sequence[Place], days: int
    ) -> None:
        """Write the certificate of a client, and properties by password, by certificate, and for librdkafka."""
        self._write(f"{name}.pem", authority.issue(f"CN={name},OU=clients", (), days), SECRET_MODE)
        trust_store = str(self.location / TRUST_STORE)
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        common = {"ssl.truststore.type": "PEM", "ssl.truststore.location": trust_store}
        by_password = {
            "bootstrap.servers": ",".join(map(str, brokers)),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": _MECHANISM,
        }
        login = f'{module} required username="{name}" password="{password}";'
        self._write_properties(
            name,
            "A client with a password: of millrace (--client-config THIS_FILE), and of Kafka in Java",
            {**by_password, "sasl.jaas.config": login, **common},
        )
        self._write_properties(
            f"{name}.librdkafka",
            "A client with a password: librdkafka, in C, Python, Go, .NET and JavaScript",
            {**by_password, "sasl.username": name, "sasl.password": password, "ssl.ca.location": trust_store},
        )
        self._write_properties(
            f"{name}.tls",
            "A client with a certificate: of millrace (--client-config THIS_FILE), and of Kafka in Java",
            {
                "bootstrap.servers": ",".join(str(each.tls()) for each in brokers),
                "security.protocol": "SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.location / f"{name}.pem"),
                **common,
            },
        )

    def renew(self, days: int, overlap_s: float) -> dict[str, datetime]:
        """Issue all certificates again, by the newest authority. Return their ends by their files.

        Files of others (``foreign_files``) stay as they are. Raises ``UsageError`` if the newest authority is younger
        than ``overlap_s``, and ``InvalidConfigError`` for a damaged certificate, before any file is changed.
        """
        authority = self._authority()
        age_s = time.time() - (self.path / TRUST_STORE).stat().st_mtime
        if len(self._authorities()) > 1 and age_s < overlap_s:
            raise UsageError(
                f"the authority in {self.path / TRUST_STORE} is {age_s:.0f} s old, and brokers and clients may not "
                f"trust it yet: try again in {overlap_s - age_s:.0f} s, or give --overlap 0 if all of them have it"
            )
        renewed = {path.name: authority.renew(certificate, days) for path, certificate in self._certificates()}
        for name, content in renewed.items():
            self._write(name, content, SECRET_MODE, replaces=True)
        return {name: certificates_of(name, content)[0].not_valid_after_utc for name, content in renewed.items()}

    def foreign_files(self) -> list[str]:
        """Return the names of PEM files that ``renew`` leaves as they are, such as revocation lists."""
        own = {path for path, _ in self._certificates()}
        return [path.name for path in self._stores() if path not in own]

    def add_authority(self) -> str:
        """Add a new authority to the trust store, for the next certificates. Return its name.

        Raises ``UsageError`` if an earlier authority is to be retired first.
        """
        self._authority()
        if len(self._authorities()) > 1:
            raise UsageError(
                f"{self.path / TRUST_STORE} has two authorities already: renew the certificates with millrace security "
                "rotate, and remove the earlier authority with --retire-ca"
            )
        authority = Authority.new()
        trusted = authority.certificate_pem() + (self.path / TRUST_STORE).read_bytes()
        # The trust store is written first. With only the key there, certificates could be issued that no peer trusts.
        self._write(TRUST_STORE, trusted, PUBLIC_MODE, replaces=True)
        self._write(AUTHORITY, authority.pem(), SECRET_MODE, replaces=True)
        return authority.certificate.subject.rfc4514_string()

    def retire(self) -> list[str]:
        """Remove the earlier authorities from the trust store. Return their names.

        Raises ``UsageError`` if a certificate is still one of theirs.
        """
        authority = self._authority()
        late = [path.name for path, certificate in self._certificates() if not authority.has_issued(certificate)]
        if late:
            raise UsageError(
                f"{', '.join(late)} in {self.path} have certificates of an earlier authority: renew them with millrace "
                "security rotate, and give brokers and clients time to read them"
            )
        names = [each.subject.rfc4514_string() for each in self._authorities() if each != authority.certificate]
        if names:
            self._write(TRUST_STORE, authority.certificate_pem(), PUBLIC_MODE, replaces=True)
        return names

    def broker_properties(self, number: int) -> Path:
        """Return the properties file of a broker. Raises ``UsageError`` if there is none."""
        path = self.path / f"{_BROKER}-{number}.properties"
        if not path.is_file():
            raise UsageError(
                f"{self.path} has no {path.name}: it was made for fewer brokers. Start as many as it has, or make "
                "another one with millrace security init"
            )
        return path

    @property
    def has_zookeeper_login(self) -> bool:
        """True if the nodes of a ZooKeeper on this machine may belong to the brokers of this directory."""
        return (self.path / _ZOOKEEPER_SECRET).exists()

    def zookeeper_login(self) -> ZooKeeperLogin:
        """Return the login to a ZooKeeper on this machine. Make its secret if there is none.

        The JAAS file follows the secret, so that a removed secret is replaced at the next start.
        """
        secret_file, jaas = self.path / _ZOOKEEPER_SECRET, self.path / _ZOOKEEPER_JAAS
        if not self.has_zookeeper_login:
            self._write(secret_file.name, secrets.token_urlsafe(_PASSWORD_BYTES).encode(), SECRET_MODE)
        module, secret = "org.apache.zookeeper.server.auth.DigestLoginModule", secret_file.read_text("ascii").strip()
        section = f'Server {{\n    {module} required\n    user_{_ZOOKEEPER_USER}="{secret}";\n}};\n'
        self._write(jaas.name, section.encode(), SECRET_MODE, replaces=True)
        return ZooKeeperLogin(
            jaas,
            {
                "zookeeper.sasl.mechanism": "DIGEST-MD5",
                "zookeeper.sasl.username": _ZOOKEEPER_USER,
                "zookeeper.sasl.password": f"${{directory:{self.path}:{secret_file.name}}}",
                "zookeeper.set.acl": "true",
            },
        )

    def _authority(self) -> Authority:
        path = self.path / AUTHORITY
        try:
            content = path.read_bytes()
        except OSError as error:
            raise EnvironmentProblemError(
                f"{path} cannot be read: {error.strerror}. millrace security init makes such a directory"
            ) from error
        return Authority.of_pem(str(path), content)

    def _authorities(self) -> list[Certificate]:
        path = self.path / TRUST_STORE
        return certificates_of(str(path), path.read_bytes())

    def _stores(self) -> list[Path]:
        return [path for path in sorted(self.path.glob("*.pem")) if path.name not in (TRUST_STORE, AUTHORITY)]

    def _certificates(self) -> Iterator[tuple[Path, Certificate]]:
        """Find the key stores whose certificate an authority of the trust store has issued."""
        issuers = {each.subject for each in self._authorities()}
        for path in self._stores():
            content = path.read_bytes()
            if _PRIVATE_KEY not in content or _CERTIFICATE not in content:
                continue
            certificate = certificates_of(str(path), content)[0]
            if certificate.issuer in issuers:
                yield path, certificate

    def _write_properties(self, name: str, comment: str, options: Mapping[str, str]) -> None:
        text = f"# {comment}\n{properties_text(options)}"
        self._write(f"{name}.properties", text.encode(), SECRET_MODE)

    def _write(self, name: str, content: bytes, mode: int, *, replaces: bool = False) -> None:
        write_whole(self.path / name, content, mode, replaces=replaces)
