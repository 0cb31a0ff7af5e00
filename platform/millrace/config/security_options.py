"""TLS options of clients and listeners, and Kafka's security protocols.

Names, meanings and defaults are Kafka's (``SslConfigs``); a description names each difference. Java key stores (JKS)
are read by Java alone.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from millrace.config.base import Config
from millrace.config.integers import INT_MAX
from millrace.config.jaas import parse_jaas
from millrace.config.kerberos_options import KerberosClient
from millrace.config.kerberos_rules import KerberosRule, parse_kerberos_rules
from millrace.config.oauth_options import OAuthClient, OAuthValidation
from millrace.config.validators import LOWER_CASE, parsed_by

_TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_USER_OPTION: Final = "user_"
_RULES: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,\s*|$)")
"""One rule of ``ssl.principal.mapping.rules``, as in Kafka's ``SslPrincipalMapper``."""


class SecurityProtocol(StrEnum):
    """Security protocol of connections (Kafka's ``SecurityProtocol``).

    It determines whether connections have TLS, and whether clients authenticate by SASL.
    """

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """True if connections are encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """True if clients authenticate by SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class SaslMechanism(StrEnum):
    """SASL mechanisms of this release, by Kafka's names."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"
    GSSAPI = "GSSAPI"


def parse_mechanisms(text: str) -> tuple[SaslMechanism, ...]:
    """Parse ``sasl.enabled.mechanisms``. Raises ``ValueError`` for a mechanism that is not there."""
    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in (*SaslMechanism,):
            raise ValueError(f"SASL mechanism {name} is not supported: expected {', '.join(SaslMechanism)}")
    if not names:
        raise ValueError(f"expected SASL mechanisms: {', '.join(SaslMechanism)}")
    return tuple(SaslMechanism(name) for name in names)


class MappingRule(NamedTuple):
    """One rule of ``ssl.principal.mapping.rules``. The rule ``DEFAULT`` has no pattern."""

    pattern: str
    replacement: str = ""
    case: str = ""
    """``L`` for lower case, ``U`` for upper case."""


def parse_mapping_rules(text: str) -> list[MappingRule]:
    """Parse ``ssl.principal.mapping.rules``. Raises ``ValueError``."""
    rules: list[MappingRule] = []
    position = 0
    text = text.strip() or "DEFAULT"
    while position < len(text):
        found = _RULES.match(text, position)
        if found is None or found.end() == position:
            raise ValueError(
                f"{text[position:]!r} is no rule: expected DEFAULT or RULE:pattern/replacement/[LU], with commas"
            )
        default, pattern, replacement, case = found.groups()
        if default is None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        rules.append(MappingRule("") if default else MappingRule(pattern, replacement, case))
        position = found.end()
    return rules


def _store_type(value: object) -> object:
    if isinstance(value, str) and value.upper() == "JKS":
        raise ValueError(
            "key stores of Java are not read: convert yours with keytool -importkeystore -deststoretype PKCS12"
        )
    return value.upper() if isinstance(value, str) else value


StoreType = Annotated[Literal["", "PEM", "PKCS12"], BeforeValidator(_store_type)]
"""Format of a store; empty: that of its content."""


class SslOptions(Config):
    """Options of TLS at either end of a connection."""

    ssl_keystore_type: StoreType = Field(
        "", description="PEM or PKCS12. The default is the format of the file. Kafka's default is JKS."
    )
    ssl_keystore_location: str = Field(
        "", description="File with the own certificate, its chain, and its private key (PEM or PKCS12)."
    )
    ssl_keystore_password: str = Field("", repr=False, description="Password of a PKCS12 key store.")
    ssl_key_password: str = Field("", repr=False, description="Password of an encrypted private key in PEM.")
    ssl_keystore_certificate_chain: str = Field(
        "", description="Own certificate and its chain as PEM text, in place of ssl.keystore.location."
    )
    ssl_keystore_key: str = Field(
        "", repr=False, description="Private key (PKCS #8) as PEM text, for ssl.keystore.certificate.chain."
    )
    ssl_truststore_type: StoreType = Field(
        "", description="PEM or PKCS12. The default is the format of the file. Kafka's default is JKS."
    )
    ssl_truststore_location: str = Field(
        "",
        description="File with the certificates of the authorities that the other side's certificate may have. The "
        "default is the authorities of the system.",
    )
    ssl_truststore_password: str = Field("", repr=False, description="Password of a PKCS12 trust store.")
    ssl_truststore_certificates: str = Field(
        "", description="Certificates of the authorities as PEM text, in place of ssl.truststore.location."
    )
    ssl_crl_location: str = Field(
        "",
        description="PEM file with revocation lists, one of each authority up to the root. A certificate of the other "
        "side is refused if it or one of its authorities is revoked, or if a list is missing. If the trust store has "
        "an intermediate authority without its root, only the list of the certificate's own issuer is used. Kafka has "
        "none; the name is librdkafka's.",
    )
    ssl_enabled_protocols: str = Field("TLSv1.2,TLSv1.3", description="Accepted versions of TLS.")
    ssl_cipher_suites: str = Field(
        "",
        description="Accepted cipher suites, by their IANA or OpenSSL names. The default is OpenSSL's choice. With "
        "TLSv1.3 the list names its three suites too, because they are always on.",
    )
    ssl_endpoint_identification_algorithm: Annotated[Literal["https", ""], LOWER_CASE] = Field(
        "https",
        description="https: the certificate of the server must name the host of the connection. Empty: any name is "
        "accepted.",
    )
    ssl_reload_interval_ms: int = Field(
        10_000,
        ge=0,
        le=INT_MAX,
        description="Time between two checks whether the content of key stores, trust stores or revocation lists has "
        "changed. New connections use the new content. Kafka has no such option.",
    )

    @field_validator("ssl_enabled_protocols")
    @classmethod
    def _check_versions(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",") if name.strip()]
        wrong = [name for name in names if name not in _TLS_VERSIONS]
        if wrong or not names:
            raise ValueError(f"expected {' or '.join(_TLS_VERSIONS)} or both: older versions are insecure")
        return value

    @model_validator(mode="after")
    def _check_stores(self) -> Self:
        if bool(self.ssl_keystore_certificate_chain) != bool(self.ssl_keystore_key):
            raise ValueError("ssl.keystore.certificate.chain and ssl.keystore.key belong together: set both")
        if self.ssl_keystore_key and self.ssl_keystore_location:
            raise ValueError("ssl.keystore.location and ssl.keystore.key are both set: remove one")
        if self.ssl_truststore_certificates and self.ssl_truststore_location:
            raise ValueError("ssl.truststore.location and ssl.truststore.certificates are both set: remove one")
        return self

    @property
    def tls_versions(self) -> list[str]:
        """The accepted versions of TLS, the oldest first."""
        named = {part.strip() for part in self.ssl_enabled_protocols.split(",")}
        return [name for name in _TLS_VERSIONS if name in named]


class SaslLogin(OAuthClient, KerberosClient):
    """Options of a client's logins. A broker is a client of the other brokers."""


class ListenerSecurity(OAuthValidation, SaslLogin, SslOptions):
    """Options of a listener's security, each of which may be ``listener.name.<name>.<option>``."""

    ssl_client_auth: Annotated[Literal["required", "requested", "none"], LOWER_CASE] = Field(
        "none",
        description="Whether clients of a listener with TLS have a certificate: required, requested, or none. A "
        "listener for gRPC has no requested. A listener with SASL_SSL takes only "
        "listener.name.<name>.ssl.client.auth.",
    )
    ssl_principal_mapping_rules: Annotated[str, parsed_by(parse_mapping_rules)] = Field(
        "DEFAULT",
        description="Rules that make a principal's name from the distinguished name of a client's certificate, as "
        "RULE:pattern/replacement/[LU],DEFAULT. The first rule that matches decides.",
    )
    sasl_kerberos_principal_to_local_rules: Annotated[str, parsed_by(parse_kerberos_rules)] = Field(
        "DEFAULT",
        description="Rules that make a user's name from a Kerberos principal, in Kafka's syntax. The first rule that "
        "applies decides. DEFAULT takes the first component of principals in the broker's realm.",
    )

    sasl_enabled_mechanisms: Annotated[str, parsed_by(parse_mechanisms)] = Field(
        "SCRAM-SHA-512,SCRAM-SHA-256",
        description="SASL mechanisms of a listener: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI. Kafka's "
        "default is GSSAPI.",
    )
    sasl_jaas_config: Annotated[str, parsed_by(parse_jaas, or_empty=True)] = Field(
        "",
        repr=False,
        description="Login module with username and password of this broker at the listener between brokers, and "
        'user_<name>="<password>" for each user of PLAIN. Kafka has listener.name.<name>.<mechanism>.sasl.jaas.config, '
        "which is read too: the modules of all mechanisms together.",
    )
    max_connection_creation_rate: int = Field(
        INT_MAX,
        ge=1,
        le=INT_MAX,
        description="Largest number of new connections a second. Further ones wait. With listener.name.<name>. it is "
        "that of one listener. The listener between brokers, if it is not the only one, does not count for the "
        "broker's.",
    )
    connections_max_reauth_ms: int = Field(
        0,
        ge=0,
        le=INT_MAX,
        description="Time after which a connection with SASL has to authenticate again (KIP-368); 0: never. With "
        "listener.name.<name>.<mechanism>. it is that of one mechanism.",
    )

    @property
    def mechanisms(self) -> tuple[SaslMechanism, ...]:
        """The enabled SASL mechanisms."""
        return parse_mechanisms(self.sasl_enabled_mechanisms)

    @property
    def kerberos_rules(self) -> list[KerberosRule]:
        """Rules for the names of Kerberos principals."""
        return parse_kerberos_rules(self.sasl_kerberos_principal_to_local_rules)

    @property
    def login(self) -> dict[str, str]:
        """Options of the login module in ``sasl.jaas.config``."""
        return parse_jaas(self.sasl_jaas_config) if self.sasl_jaas_config else {}

    @property
    def users(self) -> dict[str, str]:
        """Passwords of the users of PLAIN, by their names."""
        return {
            name.removeprefix(_USER_OPTION): value
            for name, value in self.login.items()
            if name.startswith(_USER_OPTION)
        }

    @model_validator(mode="after")
    def _check_tokens(self) -> Self:
        if SaslMechanism.OAUTHBEARER in self.mechanisms and not self.sasl_oauthbearer_jwks_endpoint_url:
            raise ValueError("OAUTHBEARER needs the keys of the provider: set sasl.oauthbearer.jwks.endpoint.url")
        return self
