"""Durations and times in ISO 8601, in the forms of Kafka's tools."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_DURATION: Final = re.compile(
    r"P(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)


def iso_duration(text: str) -> timedelta | None:
    """Return a duration such as ``P7DT12H`` or ``PT30M``; None for a text that is no duration."""
    found = _DURATION.fullmatch(text)
    parts = {name: float(value) for name, value in found.groupdict().items() if value} if found else {}
    if not parts or text.upper().endswith("T"):
        return None
    try:
        return timedelta(**parts)
    except OverflowError:
        return None


def iso_time(text: str) -> datetime | None:
    """Return a time such as ``2026-05-01T12:00``, in UTC unless it has a zone; None if the text is none."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
