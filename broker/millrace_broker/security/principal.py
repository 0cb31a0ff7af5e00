"""Identity of a client, as in Kafka's ``KafkaPrincipal``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

USER: Final = "User"
"""Principal type of clients and brokers."""


@dataclass(frozen=True, slots=True)
class KafkaPrincipal:
    """Kafka's ``KafkaPrincipal``.

    The name is unique among the principals of the type.
    """

    type: str
    name: str

    def __str__(self) -> str:
        """Return Kafka's form, ``User:name``."""
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = KafkaPrincipal(USER, "ANONYMOUS")
"""Principal of a connection that a listener does not authenticate."""
