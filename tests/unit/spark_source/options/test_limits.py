"""Tests of the limits and the start time of a micro-batch."""

import pytest

from millrace.errors import UsageError
from pyspark_millrace.options.given import GivenOptions
from pyspark_millrace.options.limits import TriggerLimits, parse_duration_ms, parse_trigger_limits


def test_defaults_are_no_limits_and_a_quarter_of_an_hour():
    assert parse_trigger_limits(GivenOptions({})) == TriggerLimits(max_delay_ms=900_000)


def test_all_limits_are_read_whatever_the_case_of_their_names():
    given = {
        "maxOffsetsPerTrigger": "9",
        "MINOFFSETSPERTRIGGER": "9",
        "maxBytesPerTrigger": "80",
        "minBytesPerTrigger": "70",
        "maxTriggerDelay": "5m",
    }
    assert parse_trigger_limits(GivenOptions(given)) == TriggerLimits(
        max_records=9, min_records=9, max_bytes=80, min_bytes=70, max_delay_ms=300_000
    )


@pytest.mark.parametrize("unit", ["Offsets", "Bytes"])
def test_a_least_above_the_most_is_refused(unit):
    given = GivenOptions({f"min{unit}PerTrigger": "11", f"max{unit}PerTrigger": "10"})
    with pytest.raises(UsageError, match=f"min{unit}PerTrigger=11 is above max{unit}PerTrigger=10"):
        parse_trigger_limits(given)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("250", 250), ("250ms", 250), ("30 s", 30_000), ("15m", 900_000), ("2min", 120_000), ("1H", 3_600_000)],
)
def test_durations_are_read_in_sparks_forms(text, milliseconds):
    assert parse_duration_ms("maxTriggerDelay", text) == milliseconds


@pytest.mark.parametrize("text", ["", "m", "-5m", "1.5h", "5 fortnights"])
def test_other_durations_are_refused(text):
    with pytest.raises(UsageError, match=r"maxTriggerDelay=.*: expected a duration"):
        parse_duration_ms("maxTriggerDelay", text)


def test_the_first_batch_does_not_wait():
    assert TriggerLimits(min_records=1000).is_due(0, 0, None)


def test_a_batch_waits_for_its_minimum_or_until_the_delay_is_over():
    limits = TriggerLimits(min_records=10, max_delay_ms=500)
    assert not limits.is_due(9, 0, 499)
    assert limits.is_due(10, 0, 0)
    assert limits.is_due(9, 0, 500)


def test_of_two_minimums_both_are_waited_for():
    limits = TriggerLimits(min_records=10, min_bytes=100)
    assert not limits.is_due(10, 99, 0)
    assert not limits.is_due(9, 100, 0)
    assert limits.is_due(10, 100, 0)
