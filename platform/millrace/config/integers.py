"""Ranges of integer options, by Kafka's types ``short``, ``int`` and ``long``."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

SHORT_MAX: Final = 2**15 - 1
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
LONG_MIN: Final = -(2**63)

PositiveInt16 = Annotated[int, Field(ge=1, le=SHORT_MAX)]
"""A ``short`` of at least 1."""
Int32 = Annotated[int, Field(ge=0, le=INT_MAX)]
"""An ``int`` that is not negative."""
PositiveInt32 = Annotated[int, Field(ge=1, le=INT_MAX)]
"""An ``int`` of at least 1."""
Int64 = Annotated[int, Field(ge=0, le=LONG_MAX)]
"""A ``long`` that is not negative."""
