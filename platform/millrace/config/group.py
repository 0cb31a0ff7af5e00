"""Group options: the supported options of Kafka's ``GroupConfig``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from millrace.config.base import Config


class GroupConfig(Config):
    """Configuration of one group. An option without a value takes the broker's option of the same name."""

    share_auto_offset_reset: Literal["earliest", "latest"] = Field(
        "latest", description="Offset at which a share group starts to read a partition."
    )
