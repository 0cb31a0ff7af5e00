"""Security of one listener.

The code keeps the listener's certificates, finds the principals of its connections, and recognises brokers. Kafka's
classes are ``SslChannelBuilder`` and ``KafkaPrincipalBuilder``.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.config.broker import BrokerConfig
from millrace.config.kerberos_rules import user_of
from millrace.config.loopback import is_loopback
from millrace.config.oauth_options import check_encryption
from millrace.config.security_options import SaslMechanism, SecurityProtocol, parse_mapping_rules
from millrace.errors import InvalidConfigError
from millrace.security import Reloading, TlsMaterial, server_context
from millrace.security.kerberos import check_kerberos
from millrace.security.stores import certificates_of
from millrace_broker.security.certificates import distinguished_name, names_host, principal_of
from millrace_broker.security.principal import ANONYMOUS, USER, KafkaPrincipal
from millrace_broker.security.sasl import SaslAccess

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from millrace_broker.security.tokens import TokenValidator

_logger: Final = logging.getLogger(__name__)


class ListenerTls(NamedTuple):
    """TLS context and certificate, made from a listener's stores."""

    context: ssl.SSLContext
    material: TlsMaterial
    own_name: str
    """Distinguished name of the listener's own certificate."""


class ListenerAccess:
    """Security of one listener."""

    def __init__(self, config: BrokerConfig, name: str) -> None:
        """Read the stores of a listener with TLS. Raises ``InvalidConfigError`` if its options cannot be met."""
        self.protocol: Final = config.security_protocol_of(name)
        self.options: Final = config.security_of(name)
        client_auth = f"listener.name.{name.lower()}.ssl.client.auth"
        is_ignored = config.ssl_client_auth != "none" and client_auth not in config.listener_overrides
        if self.protocol is SecurityProtocol.SASL_SSL and is_ignored:
            _logger.warning(
                "listener %s asks its clients for no certificates, because ssl.client.auth=%s is not for SASL_SSL: set "
                "%s if it has to",
                name,
                config.ssl_client_auth,
                client_auth,
            )
        self._max_reauth_ms: Final = config.max_reauth_ms_by_mechanism(name)
        self._rules: Final = parse_mapping_rules(self.options.ssl_principal_mapping_rules)
        self._is_between_brokers: Final = name in (config.inter_broker_listener, config.control_plane_listener)
        self._authenticates_brokers: Final = config.authenticates_brokers
        self._brokers: Final = principals(config.broker_principals)
        is_kerberos = config.sasl_mechanism_inter_broker_protocol is SaslMechanism.GSSAPI
        self._own_user: Final = self._kerberos_user() if is_kerberos else self.options.login.get("username", "")
        advertised = config.advertised_addresses.get(name)
        self._host: Final = "" if advertised is None or advertised.is_on_all_interfaces else advertised.host
        """Host by which clients connect; empty if it is not configured."""
        self.tls: Final = self._reloading(name) if self.protocol.has_tls else None
        """The certificates of a listener with TLS."""
        if self._is_between_brokers and config.is_clustered:
            self._check_between_brokers(name)

        if self.protocol.has_sasl and SaslMechanism.PLAIN in self.options.mechanisms and not self.options.users:
            raise InvalidConfigError(
                f"listener {name} has the SASL mechanism PLAIN without users: set listener.name.{name.lower()}.plain."
                'sasl.jaas.config with user_<name>="<password>", or leave PLAIN out of sasl.enabled.mechanisms'
            )

        if self.protocol.has_sasl and SaslMechanism.GSSAPI in self.options.mechanisms:
            check_kerberos(f"sasl.enabled.mechanisms of listener {name}")
        self._validator: Final = self._token_validator(name)

    def _kerberos_user(self) -> str:
        """Return the user that this broker is for the others. Raises ``InvalidConfigError`` if no rule applies."""
        name, at, realm = self.options.login.get("principal", "").partition("@")
        if not at:
            return name.partition("/")[0]
        try:
            return user_of(f"{name}@{realm}", realm, self.options.kerberos_rules)
        except ValueError as error:
            raise InvalidConfigError(f"principal in sasl.jaas.config: {error}") from None

    def _token_validator(self, name: str) -> TokenValidator | None:
        """Return the validation of tokens at a listener with OAUTHBEARER. Raises ``InvalidConfigError``."""
        if not (self.protocol.has_sasl and SaslMechanism.OAUTHBEARER in self.options.mechanisms):
            return None
        # Loaded only where it is used, because its HTTP client takes 1 MB of memory.
        from millrace_broker.security.tokens import ProviderKeys, TokenValidator

        try:
            if self.protocol.has_tls:
                check_encryption("sasl.oauthbearer.jwks.endpoint.url", self.options.sasl_oauthbearer_jwks_endpoint_url)
            keys = ProviderKeys(self.options, self.options.login, time.monotonic)
        except ValueError as error:
            raise InvalidConfigError(f"listener {name}: {error}") from None
        except InvalidConfigError as error:
            raise InvalidConfigError(f"listener {name}: {error.message}") from None
        return TokenValidator(self.options, keys)

    def _reloading(self, name: str) -> Reloading[ListenerTls]:
        def make(material: TlsMaterial) -> ListenerTls:
            context = server_context(self.options, material)
            own = certificates_of("ssl.keystore.location", material.certificate_chain)[0]
            if self._host and not names_host(own, self._host):
                _logger.warning(
                    "the certificate of listener %s does not name %s, its host in advertised.listeners, so that "
                    "clients refuse it: take a certificate for this host, or advertise a host that it names",
                    name,
                    self._host,
                )
            return ListenerTls(context, material, _name_of(own))

        try:
            return Reloading(f"listener {name}", self.options, make)
        except InvalidConfigError as error:
            raise InvalidConfigError(f"listener {name}: {error.message}") from None

    def _check_between_brokers(self, name: str) -> None:
        if self.protocol is SecurityProtocol.SSL and self.options.ssl_client_auth != "required":
            raise InvalidConfigError(
                f"brokers call each other by listener {name}, whose clients need no certificate, so that any of them "
                f"could act as a broker: set listener.name.{name.lower()}.ssl.client.auth=required"
            )

    def principal(self, certificate: bytes | None) -> KafkaPrincipal:
        """Return the principal of a connection with TLS and this client certificate (DER).

        At a listener with SASL, SASL alone decides, whatever the certificate. Raises ``SslAuthenticationError`` if no
        mapping rule matches.
        """
        if certificate is None or self.protocol.has_sasl:
            return ANONYMOUS
        return principal_of(distinguished_name(certificate), self._rules)

    @property
    def sasl(self) -> SaslAccess:
        """The part of the security that SASL uses."""
        return SaslAccess(self.options, self._validator, self._max_reauth_ms)

    def is_broker(self, principal: KafkaPrincipal) -> bool:
        """Return whether a connection of this listener with this principal is a broker's."""
        return self._is_between_brokers and self._is_brokers_name(principal)

    def believes_broker(self, principal: KafkaPrincipal) -> bool:
        """Return whether a client that introduces itself as a broker counts as one.

        It then has the limits of brokers, and no quotas of clients. Without authentication between brokers, each client
        at their listener may count as one.
        """
        return self._is_brokers_name(principal) or (self._is_between_brokers and not self._authenticates_brokers)

    def _is_brokers_name(self, principal: KafkaPrincipal) -> bool:
        if principal == ANONYMOUS:
            return False
        if self._brokers:
            return principal in self._brokers
        if self.protocol.has_sasl:
            return principal == KafkaPrincipal(USER, self._own_user)
        return self.tls is not None and principal == principal_of(self.tls.value.own_name, self._rules)


def _name_of(certificate: Certificate) -> str:
    """Return the distinguished name of a certificate."""
    from cryptography.hazmat.primitives.serialization import Encoding

    return distinguished_name(certificate.public_bytes(Encoding.DER))


def principals(text: str) -> Collection[KafkaPrincipal]:
    """Parse principals: ``User:a;User:b``. Raises ``InvalidConfigError``."""
    found = set()
    for part in filter(None, (part.strip() for part in text.split(";"))):
        kind, colon, name = part.partition(":")
        if not (kind and colon and name):
            raise InvalidConfigError(f"broker.principals has {part!r}: expected User:name, separated by semicolons")
        found.add(KafkaPrincipal(kind, name))
    return found


def check_plaintext(config: BrokerConfig) -> None:
    """Raise ``InvalidConfigError`` if a listener without TLS is not on loopback, unless the configuration allows it."""
    if config.allow_plaintext_listeners:
        return
    for name, address in config.listener_addresses.items():
        if not config.security_protocol_of(name).has_tls and not is_loopback(address.host):
            raise InvalidConfigError(
                f"listener {name}://{address} has no encryption, and its address is not loopback: everyone on the "
                f"network could read and change its data. Give it TLS (listener.security.protocol.map={name}:SSL and "
                "ssl.keystore.location), or set allow.plaintext.listeners=true in a network that you trust"
            )


def warn_of_open_zookeeper(config: BrokerConfig) -> None:
    """Log a warning if ACLs and users are in a ZooKeeper beyond loopback that does not know who the broker is.

    It resolves names of hosts, so it may block.
    """
    zookeeper = config.zookeeper_config
    if not config.authorizer_class_name or zookeeper is None or zookeeper.authenticates:
        return
    if not zookeeper.address.is_loopback:
        _logger.warning(
            "this broker does not authenticate to ZooKeeper at %s, so everyone who reaches it can change users and "
            "ACLs there: set zookeeper.sasl.mechanism, .username and .password, or zookeeper.ssl.client.enable=true "
            "and zookeeper.ssl.keystore.location, and zookeeper.set.acl=true",
            zookeeper.address.hosts,
        )


def check_authorizer(config: BrokerConfig) -> None:
    """Raise ``InvalidConfigError`` if a listener is not on loopback, and there is no authorizer."""
    if config.authorizer_class_name:
        return
    for name, address in config.listener_addresses.items():
        if not is_loopback(address.host):
            raise InvalidConfigError(
                f"listener {name}://{address} is not on loopback, and without an authorizer everyone who reaches it "
                "could do everything: set authorizer.class.name=millrace_broker.security.AclAuthorizer and super.users "
                "(millrace security init writes both). In a network that you trust, "
                "allow.everyone.if.no.acl.found=true lets everyone use what no ACL is for"
            )
