"""Values of ``share.auto.offset.reset`` (Kafka's ``ShareGroupAutoOffsetResetStrategy``)."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final

from pydantic import AfterValidator

from millrace.config.iso8601 import iso_duration

_BY_DURATION: Final = "by_duration:"


def _checked(text: str) -> str:
    kind = text.lower()
    if kind in ("earliest", "latest"):
        return kind
    if duration_of(text) is None:
        raise ValueError("expected earliest, latest, or by_duration: and a duration in ISO 8601, like by_duration:PT1H")
    return text


def duration_of(text: str) -> timedelta | None:
    """Return the duration of ``by_duration:<duration>``; None for other values."""
    return iso_duration(text[len(_BY_DURATION) :]) if text.lower().startswith(_BY_DURATION) else None


ShareOffsetReset = Annotated[str, AfterValidator(_checked)]
"""Offset at which a share group begins: ``earliest``, ``latest``, or ``by_duration:<duration>`` before now."""
