"""Options of the SASL mechanism GSSAPI (Kerberos).

They name the service of the brokers, and control the renewal of a client's ticket. Names, meanings and defaults are
Kafka's (``SaslConfigs``), except where a description says otherwise.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from millrace.config.base import Config
from millrace.config.integers import Int64
from millrace.config.update_modes import PER_BROKER


class KerberosClient(Config):
    """Options of a client with Kerberos."""

    sasl_kerberos_service_name: str = Field(
        "kafka", description="Service in the Kerberos principal of the brokers, for GSSAPI. Kafka has no default."
    )
    sasl_kerberos_kinit_cmd: Annotated[str, PER_BROKER] = Field(
        "/usr/bin/kinit",
        description="Path of kinit. Its option -R renews the ticket of a client without a keytab.",
    )
    sasl_kerberos_ticket_renew_window_factor: Annotated[float, Field(ge=0, le=1), PER_BROKER] = Field(
        0.8, description="Part of a ticket's lifetime after which new connections get another ticket."
    )
    sasl_kerberos_ticket_renew_jitter: Annotated[float, Field(ge=0, le=1), PER_BROKER] = Field(
        0.05, description="Largest random part of a ticket's lifetime that is added to the window."
    )
    sasl_kerberos_min_time_before_relogin: Annotated[Int64, PER_BROKER] = Field(
        60_000, description="Shortest time between two logins at the KDC, in milliseconds."
    )
