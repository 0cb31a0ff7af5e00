"""Options of client metrics subscriptions: Kafka's ``ClientMetricsConfigs`` (KIP-714)."""

from __future__ import annotations

import re
from typing import Final

from pydantic import Field

from millrace.config.base import Config
from millrace.errors import InvalidConfigError

MATCHED: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""Properties of clients to which ``match`` applies regular expressions."""


class ClientMetricsConfig(Config):
    """Configuration of one subscription to clients' metrics (KIP-714).

    It selects the clients that push metrics, the metrics, and the interval.
    """

    metrics: str = Field("", description="Prefixes of the metrics' names, with commas between them.")
    interval_ms: int = Field(300_000, ge=100, le=3_600_000, description="Time between two pushes of a client.")
    match: str = Field(
        "", description="Clients that push: <property>=<regular expression>, with commas between several."
    )


def check_match(match: str) -> None:
    """Raise ``InvalidConfigError`` unless ``match`` names properties of clients and valid regular expressions."""
    for pattern in (each.strip() for each in match.split(",")):
        if not pattern:
            continue
        name, _, expression = pattern.partition("=")
        if name.strip() not in MATCHED or not expression or "=" in expression:
            raise InvalidConfigError(
                f"match={match}: {pattern!r} is not <property>=<regular expression> with one of {', '.join(MATCHED)}"
            )
        try:
            re.compile(expression.strip())
        except re.error as error:
            raise InvalidConfigError(f"match={match}: {pattern!r} is no regular expression: {error}") from None
