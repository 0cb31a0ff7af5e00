"""Limits of a micro-batch: the options ``...PerTrigger`` and ``maxTriggerDelay``.

The limits in records are options of Spark's Kafka connector. The limits in bytes are millrace's: they count bytes in
the log, which for a compressed batch is the compressed size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from millrace.errors import UsageError
from pyspark_millrace.options.given import GivenOptions

DEFAULT_MAX_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000
"""15 minutes, as in Spark's Kafka connector."""

DURATION_FORM: Final = "a duration as Spark writes it, such as 500ms, 30s, 15m, 2h or 1d"

_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerLimits:
    """Limits of a micro-batch; None means no limit.

    A micro-batch with less than ``min_records`` or ``min_bytes`` waits until ``max_delay_ms`` after the previous one.
    """

    max_records: int | None = None
    max_bytes: int | None = None
    min_records: int | None = None
    min_bytes: int | None = None
    max_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS

    @property
    def has_minimum(self) -> bool:
        """True if a micro-batch may have to wait for more records."""
        return self.min_records is not None or self.min_bytes is not None

    def is_due(self, waiting_records: int, waiting_bytes: int, waited_ms: float | None) -> bool:
        """Return whether to start a micro-batch with this backlog, ``waited_ms`` after the previous one (None: no
        previous one).

        As in Spark's Kafka connector, the first micro-batch after a start or restart of the query does not wait. If
        both minimums are set, the backlog must reach both.
        """
        if waited_ms is None or waited_ms >= self.max_delay_ms:
            return True
        return waiting_records >= (self.min_records or 0) and waiting_bytes >= (self.min_bytes or 0)


def parse_trigger_limits(given: GivenOptions) -> TriggerLimits:
    """Parse the limits; raises ``UsageError`` for wrong values and for a minimum above its maximum."""
    delay = given.text("maxTriggerDelay")
    limits = TriggerLimits(
        max_records=given.whole_number("maxOffsetsPerTrigger"),
        max_bytes=given.whole_number("maxBytesPerTrigger"),
        min_records=given.whole_number("minOffsetsPerTrigger"),
        min_bytes=given.whole_number("minBytesPerTrigger"),
        max_delay_ms=DEFAULT_MAX_TRIGGER_DELAY_MS if delay is None else parse_duration_ms("maxTriggerDelay", delay),
    )
    for unit, least, most in (
        ("Offsets", limits.min_records, limits.max_records),
        ("Bytes", limits.min_bytes, limits.max_bytes),
    ):
        if least is not None and most is not None and least > most:
            raise UsageError(
                f"min{unit}PerTrigger={least} is above max{unit}PerTrigger={most}, so no batch could satisfy "
                "both: lower the minimum"
            )
    return limits


def parse_duration_ms(option: str, text: str) -> int:
    """Parse a duration in Spark's form, a whole number with a unit, and return milliseconds. The default unit is ms."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _UNITS_MS:
        raise UsageError(f"{option}={text!r}: expected {DURATION_FORM}")
    return int(found[1]) * _UNITS_MS[found[2]]
