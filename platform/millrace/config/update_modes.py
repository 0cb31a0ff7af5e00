"""Update modes of broker options (KIP-226).

The type of a field contains its mode, for example ``max_connections: Annotated[int, CLUSTER_WIDE]``. A field without a
mode is read-only.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pydantic import BaseModel


class UpdateMode(StrEnum):
    """Update mode of an option, with the name in Kafka's documentation.

    The mode says for which brokers the option can be changed while they run.
    """

    READ_ONLY = "read-only"
    """The option changes only with a restart."""
    PER_BROKER = "per-broker"
    """The option changes for one broker alone, because the value depends on its addresses, files or secret."""
    CLUSTER_WIDE = "cluster-wide"
    """The option changes for one broker, or for all brokers together."""


PER_BROKER: Final = UpdateMode.PER_BROKER
CLUSTER_WIDE: Final = UpdateMode.CLUSTER_WIDE


def update_mode(model: type[BaseModel], field: str) -> UpdateMode:
    """Return the update mode of a field."""
    modes = (each for each in model.model_fields[field].metadata if isinstance(each, UpdateMode))
    return next(modes, UpdateMode.READ_ONLY)
