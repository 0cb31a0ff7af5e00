"""Broker options that name its listeners.

Names and rules are Kafka's. ``listeners`` parses and checks the values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Self

from pydantic import Field, field_validator, model_validator

from millrace.config.base import Config, option_name
from millrace.config.listeners import (
    GRPC_LISTENER,
    KAFKA_LISTENER,
    Listener,
    ListenerProtocol,
    check_listeners,
    listeners_at,
    parse_advertised_listeners,
    parse_listeners,
    parse_protocols,
)
from millrace.errors import InvalidConfigError

_GONE: Final = ("frame.listener.port", "advertised.frame.port")
"""Options of earlier releases, where gRPC was at ``listeners`` and Kafka's framing at a port of its own."""


def refuse_frame_ports(names: Iterable[str]) -> None:
    """Raise ``InvalidConfigError`` with the remedy for options that listeners with names have replaced."""
    for name in names:
        if option_name(name) in _GONE:
            raise InvalidConfigError(
                f"{option_name(name)} is gone: listeners and advertised.listeners have the addresses of all listeners, "
                f"such as listeners={KAFKA_LISTENER}://host:9092,{GRPC_LISTENER}://host:9093 for Kafka's framing and "
                "for gRPC"
            )


class ListenerOptions(Config):
    """Options of the broker's listeners."""

    listeners: str = Field(
        listeners_at(Listener("127.0.0.1", 9092)),
        description="Addresses at which the broker listens, as NAME://host:port,NAME://host:port. Port 0 takes a free "
        "port. Kafka's default is all interfaces, millrace's is loopback.",
    )
    advertised_listeners: str = Field(
        "",
        description="Addresses that the broker gives to clients, as in listeners. A client gets that of the listener "
        "by which it came. The default is listeners.",
    )
    listener_protocol_map: str = Field(
        f"{GRPC_LISTENER}:{ListenerProtocol.GRPC}",
        description="Protocol of the calls at each listener, as NAME:kafka,NAME:grpc. A listener without an entry "
        "takes kafka: Kafka's framing, for the clients of Kafka and of millrace. Kafka has "
        "listener.security.protocol.map.",
    )
    inter_broker_listener_name: str = Field(
        "",
        description="Listener by which brokers call each other, with the same name at all brokers of a cluster. The "
        "default is the first one that takes kafka.",
    )

    @property
    def listener_addresses(self) -> dict[str, Listener]:
        """Addresses of the listeners by their names."""
        return parse_listeners(self.listeners)

    @property
    def advertised_addresses(self) -> dict[str, Listener]:
        """Addresses for clients by the names of the listeners. A port may be 0: the actual port of the listener."""
        if not self.advertised_listeners:
            return self.listener_addresses
        return parse_advertised_listeners(self.advertised_listeners)

    def protocol_of(self, listener: str) -> ListenerProtocol:
        """Return the protocol of a listener."""
        return parse_protocols(self.listener_protocol_map).get(listener, ListenerProtocol.KAFKA)

    @property
    def inter_broker_listener(self) -> str:
        """Name of the listener by which brokers call each other."""
        return check_listeners(
            self.listener_addresses,
            self.advertised_addresses,
            parse_protocols(self.listener_protocol_map),
            self.inter_broker_listener_name,
        )

    @field_validator("listeners")
    @classmethod
    def _check_listeners(cls, value: str) -> str:
        parse_listeners(value)
        return value

    @field_validator("advertised_listeners")
    @classmethod
    def _check_advertised(cls, value: str) -> str:
        if value:
            parse_advertised_listeners(value)
        return value

    @field_validator("listener_protocol_map")
    @classmethod
    def _check_protocols(cls, value: str) -> str:
        parse_protocols(value)
        return value

    @model_validator(mode="after")
    def _check_all_listeners(self) -> Self:
        assert self.inter_broker_listener
        return self
