"""Broker options of quotas of clients. Names are Kafka's."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Self

from pydantic import Field, model_validator

from millrace.config.base import Config
from millrace.config.integers import INT_MAX
from millrace.config.update_modes import CLUSTER_WIDE
from millrace.config.validators import parsed_by


def parse_address_maxima(text: str) -> dict[str, int]:
    """Parse ``max.connections.per.ip.overrides``, as ``192.0.2.7:100,2001:db8::7:200``. Raises ``ValueError``."""
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, _, number = part.rpartition(":")
        try:
            found[str(ipaddress.ip_address(host.strip("[]")))] = maximum = int(number)
        except ValueError:
            maximum = -1
        if not 0 <= maximum <= INT_MAX:
            raise ValueError(f"{part!r} is no limit of an address: expected 192.0.2.7:100, with an IP address")
    return found


class QuotaOptions(Config):
    """Broker options of the windows of quotas, and of addresses' connections."""

    max_connections_per_ip: Annotated[int, Field(ge=0, le=INT_MAX), CLUSTER_WIDE] = Field(
        INT_MAX,
        description="Largest number of open connections of one IP address. Further ones are closed at once. 0 is "
        "allowed with max.connections.per.ip.overrides. Listeners of the protocol grpc have no such limit.",
    )
    max_connections_per_ip_overrides: Annotated[str, parsed_by(parse_address_maxima), CLUSTER_WIDE] = Field(
        "",
        description="Values of max.connections.per.ip for single IP addresses, as 192.0.2.7:100,192.0.2.8:200. Kafka "
        "takes host names too.",
    )

    quota_window_size_seconds: int = Field(
        1,
        ge=1,
        le=60,
        description="Seconds of its quota that a client may use at once after a pause. Kafka has quota.window.num "
        "windows of this size.",
    )
    controller_quota_window_num: int = Field(
        11,
        ge=1,
        le=INT_MAX,
        description="Windows of controller.quota.window.size.seconds whose mutations a client may make at once.",
    )
    controller_quota_window_size_seconds: int = Field(
        1, ge=1, le=INT_MAX, description="Seconds of each window of the quotas of controller mutations."
    )

    @property
    def connections_max_by_address(self) -> dict[str, int]:
        """Largest number of connections of the addresses in ``max.connections.per.ip.overrides``."""
        return parse_address_maxima(self.max_connections_per_ip_overrides)

    @model_validator(mode="after")
    def _check_connections_per_ip(self) -> Self:
        if self.max_connections_per_ip == 0 and not self.connections_max_by_address:
            raise ValueError("max.connections.per.ip=0 refuses all clients: set max.connections.per.ip.overrides")
        return self
