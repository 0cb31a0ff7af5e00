"""Broker options that name its listeners.

Names and rules are Kafka's. ``listeners`` parses and checks the values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import Field, model_validator

from millrace.config.base import option_name
from millrace.config.listeners import (
    GRPC_LISTENER,
    KAFKA_LISTENER,
    Listener,
    ListenerProtocol,
    check_control_plane,
    check_listeners,
    listeners_at,
    parse_advertised_listeners,
    parse_listeners,
    parse_protocols,
    parse_security_protocols,
)
from millrace.config.security_options import ListenerSecurity, SaslMechanism, SecurityProtocol
from millrace.config.update_modes import PER_BROKER
from millrace.config.validators import parsed_by
from millrace.errors import InvalidConfigError

_GONE: Final = ("frame.listener.port", "advertised.frame.port")
"""Options of earlier releases, where gRPC was at ``listeners`` and Kafka's framing at a port of its own."""
_FIXED: Final = {
    "sasl.server.max.receive.size": "131072 bytes",
    "connection.failed.authentication.delay.ms": "100 ms",
}
"""Options of Kafka whose values cannot be changed here, with these values."""


def refuse_unsupported(names: Iterable[str]) -> None:
    """Raise ``InvalidConfigError`` with the remedy for options that are gone, and for fixed ones."""
    for name in map(option_name, names):
        if name in _GONE:
            raise InvalidConfigError(
                f"{name} is gone: listeners and advertised.listeners have the addresses of all listeners, "
                f"such as listeners={KAFKA_LISTENER}://host:9092,{GRPC_LISTENER}://host:9093 for Kafka's framing and "
                "for gRPC"
            )
        if name in _FIXED:
            raise InvalidConfigError(f"{name} cannot be set: it is always {_FIXED[name]} here. Remove it")


METRICS: Final = "METRICS"
"""Name in ``listener.name.<name>.<option>`` of the address of ``metrics.port``, which is not in ``listeners``."""

_MECHANISM: Final = r"(?P<mechanism>plain|scram-sha-\d+|oauthbearer|gssapi)"
_REAUTHENTICATION: Final = "connections.max.reauth.ms"
_OVERRIDE: Final = re.compile(
    rf"listener\.name\.(?P<listener>.+?)(?:\.{_MECHANISM}(?=\.{re.escape(_REAUTHENTICATION)}$))?"
    r"\.(?P<option>(?:ssl|sasl|connections|max)\..+)"
)
"""Option of one listener: ``listener.name.<name in lower case>.<option>``.

``connections.max.reauth.ms`` may also be that of one mechanism of it.
"""

_OF_MECHANISM: Final = re.compile(
    rf"(listener\.name\..+)\.{_MECHANISM}(?=\.sasl\.jaas\.config$|(?<=\.oauthbearer)\.sasl\.oauthbearer\.)"
)
"""Kafka's names of ``sasl.jaas.config`` and of the options of OAUTHBEARER for one mechanism of a listener."""


def without_mechanism(option: str) -> str:
    """Return the option of a listener for all of its mechanisms, such as ``sasl.jaas.config``; others unchanged."""
    return _OF_MECHANISM.sub(r"\1", option)


def shared_name(option: str) -> str:
    """Return the option of all listeners that ``listener.name.<name>.<option>`` overrides; others unchanged."""
    found = _OVERRIDE.fullmatch(without_mechanism(option))
    return option if found is None else found["option"]


def take_listener_overrides(values: dict[str, Any]) -> dict[str, str]:
    """Remove the options ``listener.name.<name>.<option>`` from a broker's. Return them by their dotted names.

    Raises ``InvalidConfigError`` for an option that a listener cannot have of its own.
    """
    taken = {}
    for name in [name for name in values if name.startswith("listener.name.")]:
        plain = without_mechanism(name)
        if plain != name:
            value = values.pop(name)
            is_jaas = plain.endswith(".sasl.jaas.config")  # which has the login modules of all mechanisms
            values[plain] = f"{values.get(plain, '')}{value}" if is_jaas else value
    for name in [name for name in values if name.startswith("listener.name.")]:
        found = _OVERRIDE.fullmatch(name)
        if found is None or found["option"] not in ListenerSecurity.option_names():
            raise InvalidConfigError(
                f"{name} is no option of a listener: expected listener.name.<name>.<option> with one of "
                f"{', '.join(ListenerSecurity.option_names())}"
            )
        taken[name] = str(values.pop(name))
    return taken


_CREDENTIAL: Final = re.compile(r"\s*(SCRAM-SHA-\d+)=\[name=([^,\]]+),([^\]]+)\]\s*")


def parse_scram_credentials(text: str) -> list[tuple[str, str, str]]:
    """Parse ``sasl.scram.credentials``: mechanism, user, and Kafka's text of the stored credential, of each.

    Raises ``ValueError``, which quotes nothing of the text.
    """
    found = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        match = _CREDENTIAL.fullmatch(part)
        if match is None:
            raise ValueError("expected SCRAM-SHA-512=[name=user,salt=...,stored_key=...,server_key=...,iterations=...]")
        found.append((match[1], match[2], match[3]))
    return found


class ListenerOptions(ListenerSecurity):
    """Options of the broker's listeners."""

    renamed: ClassVar[Mapping[str, str]] = {
        "delegation.token.master.key": "delegation.token.secret.key",
        "security.inter.broker.protocol": "inter.broker.listener.name",  # of the listener with the protocol's name
    }

    listeners: Annotated[str, parsed_by(parse_listeners), PER_BROKER] = Field(
        listeners_at(Listener("127.0.0.1", 9092)),
        description="Addresses at which the broker listens, as NAME://host:port,NAME://host:port. Port 0 takes a free "
        "port. Kafka's default is all interfaces, millrace's is loopback.",
    )
    advertised_listeners: Annotated[str, parsed_by(parse_advertised_listeners, or_empty=True), PER_BROKER] = Field(
        "",
        description="Addresses that the broker gives to clients, as in listeners. A client gets that of the listener "
        "by which it came. The default is listeners.",
    )
    listener_protocol_map: Annotated[str, parsed_by(parse_protocols), PER_BROKER] = Field(
        f"{GRPC_LISTENER}:{ListenerProtocol.GRPC}",
        description="Protocol of the calls at each listener, as NAME:kafka,NAME:grpc. A listener without an entry "
        "takes kafka: Kafka's framing, for the clients of Kafka and of millrace. Kafka has no such option.",
    )
    listener_security_protocol_map: Annotated[str, parsed_by(parse_security_protocols), PER_BROKER] = Field(
        "",
        description="Security protocol of each listener, as NAME:SSL,NAME:SASL_SSL. A listener without an entry whose "
        "name is a security protocol has that one, and any other listener PLAINTEXT.",
    )
    allow_plaintext_listeners: bool = Field(
        False,
        description="Whether listeners without TLS may have addresses beyond loopback, where others may read and "
        "change what they carry. Kafka always allows it.",
    )
    broker_principals: str = Field(
        "",
        description="Principals of the brokers of this cluster, as User:a;User:b. With security at the listener "
        "between brokers, only they may make calls of brokers. The default is this broker's own principal. "
        "User:ANONYMOUS accepts brokers without an identity too, while a cluster changes from plaintext. Kafka has "
        "ACLs.",
    )
    sasl_mechanism_inter_broker_protocol: SaslMechanism = Field(
        SaslMechanism.SCRAM_SHA_512,
        description="SASL mechanism by which brokers authenticate to each other. Kafka's default is GSSAPI.",
    )
    sasl_scram_credentials: Annotated[str, parsed_by(parse_scram_credentials)] = Field(
        "",
        repr=False,
        description="SCRAM credentials that the broker adds at its start to users who have none, each of them once, "
        "separated by semicolons: SCRAM-SHA-512=[name=admin,salt=...,stored_key=...,server_key=...,iterations=4096]. "
        "`millrace security init` writes them. Kafka adds them by kafka-storage format --add-scram.",
    )
    delegation_token_secret_key: str = Field(
        "",
        repr=False,
        description="Secret by which brokers make delegation tokens (KIP-48), the same at all brokers. Without it "
        "there are no tokens.",
    )
    delegation_token_max_lifetime_ms: int = Field(
        7 * 86_400_000, ge=1, le=2**53, description="Longest lifetime of a delegation token, with its renewals."
    )
    delegation_token_expiry_time_ms: int = Field(
        86_400_000, ge=1, le=2**53, description="Time until a delegation token has to be renewed."
    )
    delegation_token_expiry_check_interval_ms: int = Field(
        3_600_000,
        ge=1,
        le=2**53,
        description="Time between two removals of expired delegation tokens from the metadata. An expired token is "
        "never accepted, also before its removal.",
    )
    listener_overrides: dict[str, str] = Field({}, exclude=True, repr=False)
    """Options of single listeners, by their dotted names ``listener.name.<name>.<option>``."""
    inter_broker_listener_name: str = Field(
        "",
        description="Listener by which brokers call each other, with the same name at all brokers of a cluster. The "
        "default is the first one that takes kafka.",
    )

    control_plane_listener_name: str = Field(
        "",
        description="Listener by which the controller calls brokers, with the same name at all brokers of a cluster. "
        "Its calls (LeaderAndIsr, StopReplica, UpdateMetadata) are refused at all other listeners. The default is the "
        "listener between brokers.",
    )

    @property
    def listener_addresses(self) -> dict[str, Listener]:
        """Addresses of the listeners by their names."""
        return parse_listeners(self.listeners)

    @property
    def advertised_addresses(self) -> dict[str, Listener]:
        """Addresses for clients by the names of the listeners. A port of 0 stands for the listener's actual port."""
        if not self.advertised_listeners:
            return self.listener_addresses
        return parse_advertised_listeners(self.advertised_listeners)

    def protocol_of(self, listener: str) -> ListenerProtocol:
        """Return the protocol of a listener."""
        return parse_protocols(self.listener_protocol_map).get(listener, ListenerProtocol.KAFKA)

    def security_protocol_of(self, listener: str) -> SecurityProtocol:
        """Return the security protocol of a listener."""
        found = parse_security_protocols(self.listener_security_protocol_map).get(listener)
        if found is not None:
            return found
        return SecurityProtocol(listener) if listener in (*SecurityProtocol,) else SecurityProtocol.PLAINTEXT

    def security_of(self, listener: str) -> ListenerSecurity:
        """Return the options of a listener's security: its own, and for the others those of all listeners.

        A listener with SASL_SSL takes only an ``ssl.client.auth`` of its own (KIP-684), because its clients have SASL.
        """
        prefix = f"listener.name.{listener.lower()}."
        shared = {option_name(name): getattr(self, name) for name in ListenerSecurity.model_fields}
        if self.security_protocol_of(listener) is SecurityProtocol.SASL_SSL:
            del shared["ssl.client.auth"]
        own = {
            option: value
            for name, value in self.listener_overrides.items()
            if name.startswith(prefix) and (option := name.removeprefix(prefix)) == shared_name(name)
        }
        return ListenerSecurity.load(shared | own)

    def max_reauth_ms_by_mechanism(self, listener: str) -> dict[str, int]:
        """Return ``connections.max.reauth.ms`` of the mechanisms of a listener that have a value of their own."""
        found = {}
        for mechanism in SaslMechanism:
            name = f"listener.name.{listener}.{mechanism}.{_REAUTHENTICATION}".lower()
            if name in self.listener_overrides:
                own = ListenerSecurity.load({_REAUTHENTICATION: self.listener_overrides[name]})
                found[mechanism.value] = own.connections_max_reauth_ms
        return found

    @property
    def connection_creation_rates(self) -> dict[str, int]:
        """Largest number of new connections a second of the listeners that have such a limit of their own."""
        option = option_name("max_connection_creation_rate")
        return {
            name: self.security_of(name).max_connection_creation_rate
            for name in self.listener_addresses
            if f"listener.name.{name.lower()}.{option}" in self.listener_overrides
        }

    @cached_property
    def authenticates_brokers(self) -> bool:
        """True if brokers authenticate to each other. Other clients may then make no inter-broker calls."""
        return self.security_protocol_of(self.inter_broker_listener) is not SecurityProtocol.PLAINTEXT

    @cached_property
    def broker_principal_names(self) -> frozenset[str]:
        """The principals of ``broker.principals``."""
        return frozenset(part.strip() for part in self.broker_principals.split(";") if part.strip())

    @cached_property
    def control_plane_listener(self) -> str:
        """Name of the listener by which the controller calls brokers."""
        return self.control_plane_listener_name.upper() or self.inter_broker_listener

    @cached_property
    def inter_broker_listener(self) -> str:
        """Name of the listener by which brokers call each other."""
        return check_listeners(
            self.listener_addresses,
            self.advertised_addresses,
            parse_protocols(self.listener_protocol_map),
            self.inter_broker_listener_name,
        )

    @model_validator(mode="after")
    def _check_all_listeners(self) -> Self:
        inter_broker = self.inter_broker_listener
        if control_plane := self.control_plane_listener_name.upper():
            check_control_plane(
                control_plane, inter_broker, self.advertised_addresses, parse_protocols(self.listener_protocol_map)
            )
        names = {name.lower(): name for name in (*self.listener_addresses, METRICS)}
        for option in self.listener_overrides:
            found = _OVERRIDE.fullmatch(option)
            if found is not None and found["listener"] not in names:
                raise ValueError(
                    f"{option} is an option of listener {found['listener'].upper()}, which listeners does not name"
                )
        for name in names.values():
            try:
                self.security_of(name)
                self.max_reauth_ms_by_mechanism(name)
            except InvalidConfigError as error:
                raise ValueError(f"listener {name}: {error.message}") from None
        return self
