"""Tests of the lines of ``perf consume``, in the format of ConsumerPerformance."""

from millrace.cli.group_views import age_text, size_text
from millrace.cli.perf.consume_statistics import DETAILED_HEADER, HEADER, ConsumeStatistics


def test_the_line_of_a_run_has_totals_and_rates() -> None:
    statistics = ConsumeStatistics(started_s=0.0)
    statistics.consumed(1000, 2 * 1024 * 1024)
    statistics.rebalance_s = 0.5
    line = statistics.total_line(2.5)
    assert line == (
        "1970-01-01 00:00:00:000, 1970-01-01 00:00:02:500, 2.0000, 0.8000, 1000, 400.0000, 500, 2000, 1.0000, 500.0000"
    )
    assert len(line.split(", ")) == len(HEADER.split(", "))


def test_the_lines_of_intervals_have_sums_of_data_and_rates_of_the_interval() -> None:
    statistics = ConsumeStatistics(started_s=0.0)
    statistics.consumed(100, 1024 * 1024)
    first = statistics.interval_line(1.0).split(", ")
    assert first[2:6] == ["1.0000", "1.0000", "100", "100.0000"]
    statistics.consumed(100, 1024 * 1024)
    second = statistics.interval_line(3.0).split(", ")
    assert second[2:6] == ["2.0000", "0.5000", "200", "50.0000"]
    assert len(second) == len(DETAILED_HEADER.split(", "))


def test_a_run_without_records_and_time_has_rates_of_0() -> None:
    assert ConsumeStatistics(started_s=1.0).total_line(1.0).endswith("0.0000, 0.0000, 0, 0.0000, 0, 0, 0.0000, 0.0000")


def test_sizes_and_ages_are_formatted_for_readers() -> None:
    assert [size_text(size) for size in (None, 0, 1023, 1536, 5 * 2**30)] == [
        "-",
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
    ]
    ages = [None, 0.0, 3.21, 65, 3700, 90_000]
    assert [age_text(age) for age in ages] == ["-", "0 s", "3.2 s", "1m 05s", "1h 01m", "1d 01h"]
