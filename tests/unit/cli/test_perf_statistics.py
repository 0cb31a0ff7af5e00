"""Tests of the lines and figures of performance runs, in Kafka's format."""

import pytest

from millrace.cli.perf.statistics import ProduceStatistics, Throttle, percentiles


def test_the_lines_are_those_of_kafkas_tool() -> None:
    statistics = ProduceStatistics(1000, 0)
    for number in range(100):
        statistics.acknowledged(10, 1000)
        statistics.measured(float(number))
    assert statistics.interval_line(500) == (
        "1000 records sent, 2000.0 records/sec (0.19 MB/sec), 49.5 ms avg latency, 99.0 ms max latency."
    )
    assert statistics.interval_line(1000).startswith("0 records sent, 0.0 records/sec (0.00 MB/sec), 0.0 ms avg")
    assert statistics.total_line(2000) == (
        "1000 records sent, 500.000000 records/sec (0.05 MB/sec), 49.50 ms avg latency, 99.00 ms max latency, "
        "50 ms 50th, 95 ms 95th, 99 ms 99th, 99 ms 99.9th."
    )


def test_of_many_records_some_are_measured() -> None:
    assert ProduceStatistics(400_000, 0).sampling == 1
    assert ProduceStatistics(5_000_000, 0).sampling == 10


def test_percentiles_are_0_without_values_and_the_value_of_a_single_one() -> None:
    assert percentiles([], (0.5, 0.99)) == [0.0, 0.0]
    assert percentiles([7.0], (0.5, 1.0)) == [7.0, 7.0]


def test_a_throttle_waits_until_a_record_is_due() -> None:
    throttle = Throttle(100, 10.0)
    assert throttle.wait_s(50, 10.0) == pytest.approx(0.5)
    assert throttle.wait_s(50, 11.0) == 0
    assert Throttle(-1, 0).wait_s(10**9, 0) == 0
