"""How much goes into a micro-batch, and when it is worth starting one: the ``...PerTrigger`` options.

Most and least of records are the Kafka connector's options; those of bytes are ours and count what records take in the
log (of a compressed batch its compressed size).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from millrace.errors import UsageError
from pyspark_millrace.options.given import GivenOptions

DEFAULT_MAX_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000
"""Kafka's connector: 15 minutes."""

DURATION_FORM: Final = "a duration as Spark writes it, such as 500ms, 30s, 15m, 2h or 1d"

_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerLimits:
    """Limits of a micro-batch; None where there is none.

    A batch that has less than ``min_records`` or ``min_bytes`` to read waits until ``max_delay_ms`` after the one
    before.
    """

    max_records: int | None = None
    max_bytes: int | None = None
    min_records: int | None = None
    min_bytes: int | None = None
    max_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS

    @property
    def has_minimum(self) -> bool:
        """Whether a batch may have to wait."""
        return self.min_records is not None or self.min_bytes is not None

    def is_due(self, waiting_records: int, waiting_bytes: int, waited_ms: float | None) -> bool:
        """Whether what waits is worth a batch, ``waited_ms`` after the one before (None: there was none yet).

        As in the Kafka connector the first batch of a query that starts, or starts again, does not wait. Where both
        minimums are given both are waited for.
        """
        if waited_ms is None or waited_ms >= self.max_delay_ms:
            return True
        return waiting_records >= (self.min_records or 0) and waiting_bytes >= (self.min_bytes or 0)


def parse_trigger_limits(given: GivenOptions) -> TriggerLimits:
    """Read the options; raises ``UsageError`` for wrong values and for a least above the most."""
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
                f"min{unit}PerTrigger={least} is above max{unit}PerTrigger={most}: no batch could have both"
            )
    return limits


def parse_duration_ms(option: str, text: str) -> int:
    """A duration in ms, in Spark's form: a whole number with a unit; without one it is ms."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _UNITS_MS:
        raise UsageError(f"{option}={text!r}: expected {DURATION_FORM}")
    return int(found[1]) * _UNITS_MS[found[2]]
