"""Update modes of broker options, each part of the definition of its option (KIP-226).

A field says its mode in its type: ``max_connections: Annotated[int, CLUSTER_WIDE]``. A field without one is read-only.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pydantic import BaseModel


class UpdateMode(StrEnum):
    """Where an option can be changed while brokers run, by the names of Kafka's documentation."""

    READ_ONLY = "read-only"
    """Nowhere: the option needs a restart."""
    PER_BROKER = "per-broker"
    """For one broker alone, because the value depends on its addresses, its files or its secret."""
    CLUSTER_WIDE = "cluster-wide"
    """For all brokers together too."""


PER_BROKER: Final = UpdateMode.PER_BROKER
CLUSTER_WIDE: Final = UpdateMode.CLUSTER_WIDE


def update_mode(model: type[BaseModel], field: str) -> UpdateMode:
    """Return the update mode of a field."""
    modes = (each for each in model.model_fields[field].metadata if isinstance(each, UpdateMode))
    return next(modes, UpdateMode.READ_ONLY)
