"""Configuration of the ZooKeeper connection, with Kafka 3.9's names and defaults.

The stores of TLS are those of clients (``millrace.security``). Kafka reads SASL settings from the JVM's JAAS files;
here they are options.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field, model_validator

from millrace.config.base import Config
from millrace.config.integers import INT_MAX
from millrace.config.loopback import is_loopback
from millrace.config.security_options import StoreType
from millrace.config.validators import UPPER_CASE, parsed_by

_DEFAULT_PORT: Final = 2181


class ZooKeeperAddress(NamedTuple):
    """Parsed value of ``zookeeper.connect``.

    ``hosts`` are the hosts of the ensemble (``host:port,host:port``). ``chroot`` is the node above the cluster's nodes;
    an empty text is the root.
    """

    hosts: str
    chroot: str

    @classmethod
    def parse(cls, text: str) -> ZooKeeperAddress:
        """Parse ``host:port,host:port/chroot``. Raises ``ValueError``."""
        listed, slash, rest = text.strip().partition("/")
        hosts = [host.strip() for host in listed.split(",")]
        if not all(hosts):
            raise ValueError(f"{text!r} is not an address of ZooKeeper: expected host:port,host:port/chroot")
        for host in hosts:
            _, colon, port = host.rpartition(":")
            if colon and not host.endswith("]") and not (port.isdigit() and 0 < int(port) < 65536):
                raise ValueError(f"{host!r} has no valid port: expected host:port")
        chroot = (slash + rest).rstrip("/")
        if chroot and any(name in ("", ".", "..") for name in chroot[1:].split("/")):
            raise ValueError(f"{text!r} has a wrong chroot: expected /name/name without empty, . or .. parts")
        hosts = [host if ":" in host and not host.endswith("]") else f"{host}:{_DEFAULT_PORT}" for host in hosts]
        return cls(",".join(hosts), chroot)

    @property
    def is_loopback(self) -> bool:
        """True if only this machine reaches the ensemble. It resolves the names of the hosts."""
        names = (host.rpartition(":")[0].strip("[]") for host in self.hosts.split(","))
        return all(map(is_loopback, names))


class ZooKeeperConfig(Config):
    """Connection of a broker to ZooKeeper."""

    zookeeper_connect: Annotated[str, parsed_by(ZooKeeperAddress.parse)] = Field(
        description="Servers as host:port,host:port/chroot. The broker creates the chroot if it is missing."
    )
    zookeeper_session_timeout_ms: int = Field(
        18_000,
        ge=1,
        le=INT_MAX,
        description="Time without a heartbeat after which ZooKeeper ends the session of the broker.",
    )
    zookeeper_connection_timeout_ms: int | None = Field(
        None,
        ge=1,
        le=INT_MAX,
        description="Longest wait for a connection, at the start and after a loss. The default is "
        "the session's timeout.",
    )
    zookeeper_set_acl: bool = Field(
        False,
        description="Whether only the creator of a node can change it. Needs SASL or a certificate of the broker.",
    )
    zookeeper_sasl_mechanism: Literal["", "DIGEST-MD5", "GSSAPI"] = Field(
        "", description="SASL mechanism for ZooKeeper: DIGEST-MD5, GSSAPI, or none. Kafka takes it from JAAS."
    )
    zookeeper_sasl_username: str = Field("", description="User for DIGEST-MD5, or principal for GSSAPI.")
    zookeeper_sasl_password: str = Field("", repr=False, description="Password of DIGEST-MD5.")
    zookeeper_sasl_service: str = Field(
        "zookeeper", description="Service name in ZooKeeper's own principal, for GSSAPI."
    )
    zookeeper_ssl_client_enable: bool = Field(False, description="Whether to connect with TLS.")
    zookeeper_ssl_keystore_location: str = Field(
        "",
        description="File with the broker's certificate and its private key (PEM or PKCS12). It is read for each "
        "connection.",
    )
    zookeeper_ssl_keystore_password: str = Field(
        "", repr=False, description="Password of the private key, or of a PKCS12 key store."
    )
    zookeeper_ssl_keystore_type: StoreType = Field(
        "", description="PEM or PKCS12. The default is the format of the file."
    )
    zookeeper_ssl_truststore_location: str = Field(
        "",
        description="File with the authorities for ZooKeeper's certificate (PEM or PKCS12). It is read for each "
        "connection. The default is the authorities of the system.",
    )
    zookeeper_ssl_truststore_password: str = Field("", repr=False, description="Password of a PKCS12 trust store.")
    zookeeper_ssl_truststore_type: StoreType = Field(
        "", description="PEM or PKCS12. The default is the format of the file."
    )
    zookeeper_ssl_protocol: Literal["TLSv1.2", "TLSv1.3"] = Field(
        "TLSv1.2", description="Oldest accepted version of TLS."
    )
    zookeeper_ssl_cipher_suites: str = Field(
        "",
        description="Cipher suites of TLS 1.2 by their IANA or OpenSSL names, separated by commas. The default "
        "is OpenSSL's choice.",
    )
    zookeeper_ssl_endpoint_identification_algorithm: Annotated[Literal["HTTPS", ""], UPPER_CASE] = Field(
        "HTTPS", description="HTTPS: the certificate must name the host of the connection. Empty: any name is accepted."
    )

    @model_validator(mode="after")
    def _check_together(self) -> ZooKeeperConfig:
        if self.zookeeper_set_acl and not self.authenticates:
            raise ValueError(
                "zookeeper.set.acl=true needs an owner of the nodes: set zookeeper.sasl.mechanism, or "
                "zookeeper.ssl.client.enable=true and zookeeper.ssl.keystore.location"
            )
        if self.zookeeper_sasl_mechanism == "DIGEST-MD5" and not self.zookeeper_sasl_username:
            raise ValueError("zookeeper.sasl.mechanism=DIGEST-MD5 needs zookeeper.sasl.username and .password")
        return self

    @property
    def authenticates(self) -> bool:
        """True if the broker proves to ZooKeeper who it is, by SASL or by a certificate."""
        has_certificate = self.zookeeper_ssl_client_enable and bool(self.zookeeper_ssl_keystore_location)
        return bool(self.zookeeper_sasl_mechanism) or has_certificate

    @property
    def address(self) -> ZooKeeperAddress:
        """Parsed ``zookeeper.connect``."""
        return ZooKeeperAddress.parse(self.zookeeper_connect)

    @property
    def connection_timeout_ms(self) -> int:
        """Timeout for a connection."""
        return self.zookeeper_connection_timeout_ms or self.zookeeper_session_timeout_ms

    def sasl_options(self) -> dict[str, str] | None:
        """Return kazoo's SASL options, or None."""
        match self.zookeeper_sasl_mechanism:
            case "DIGEST-MD5":
                return {
                    "mechanism": "DIGEST-MD5",
                    "service": self.zookeeper_sasl_service,
                    "username": self.zookeeper_sasl_username,
                    "password": self.zookeeper_sasl_password,
                }
            case "GSSAPI":
                principal = {"principal": self.zookeeper_sasl_username} if self.zookeeper_sasl_username else {}
                return {"mechanism": "GSSAPI", "service": self.zookeeper_sasl_service, **principal}
            case _:
                return None
