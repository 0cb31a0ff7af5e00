"""Tests of the test driver as users call it."""

import datetime as dt
import time

import pyarrow as pa
import pytest

from millrace_streams import StreamsBuilder, TopologyError, TopologyTestDriver, col, count, mean, tumbling

SCHEMA = pa.schema([("origin", pa.string()), ("delay", pa.float64())])


def departures(emit: str = "last"):
    builder = StreamsBuilder()
    flights = builder.stream("flights", schema=SCHEMA, key_columns=["origin"]).filter(col("delay").is_not_null())
    windows = flights.group_by("origin").windowed_by(tumbling(1000, grace=500))
    windows.aggregate(n=count(), mean_delay=mean("delay"), store="windows", emit=emit).to_delta("departures")
    return builder.build()


def at(milliseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)


def test_records_piped_one_by_one_show_every_intermediate_result():
    driver = TopologyTestDriver(departures())
    driver.pipe_record("flights", {"origin": "JFK", "delay": 10.0}, timestamp_ms=100)
    driver.pipe_record("flights", {"origin": "JFK", "delay": 20.0}, timestamp_ms=50)
    driver.pipe_record("flights", {"origin": "JFK", "delay": None}, timestamp_ms=5000)
    window = {"origin": "JFK", "window_start": at(0), "window_end": at(1000), "__timestamp": 100}
    assert driver.read("departures") == [window | {"n": 1, "mean_delay": 10.0}, window | {"n": 2, "mean_delay": 15.0}]
    assert driver.read("departures") == []


def test_a_batch_gives_the_last_result_of_each_key_or_every_one():
    rows = [{"origin": "JFK", "delay": 1.0}, {"origin": "LGA", "delay": 2.0}, {"origin": "JFK", "delay": 3.0}]
    for emit, expected in (("last", [1, 2]), ("every", [1, 1, 2])):
        driver = TopologyTestDriver(departures(emit))
        driver.pipe("flights", rows, timestamps_ms=[0, 1, 2])
        assert [row["n"] for row in driver.read("departures")] == expected
        assert sorted(driver.table("departures")["n"].to_list()) == [1, 2]


def test_late_records_are_dropped_and_counted():
    driver = TopologyTestDriver(departures())
    rows = [{"origin": origin, "delay": 1.0} for origin in ("JFK", "LGA", "JFK", "JFK")]
    driver.pipe("flights", rows, timestamps_ms=[0, 1499, 999, 1500])
    driver.pipe("flights", rows[:1], timestamps_ms=[999])
    assert driver.dropped_records == 1
    assert {(row["origin"], row["window_start"]): row["n"] for row in driver.table("departures").to_dicts()} == {
        ("JFK", at(0)): 2,
        ("LGA", at(1000)): 1,
        ("JFK", at(1000)): 1,
    }


def test_partitions_have_stream_times_of_their_own():
    driver = TopologyTestDriver(departures(), partitions=2)
    driver.pipe_record("flights", {"origin": "JFK", "delay": 1.0}, timestamp_ms=9000, partition=0)
    driver.pipe_record("flights", {"origin": "LGA", "delay": 1.0}, timestamp_ms=0, partition=1)
    assert driver.dropped_records == 0
    assert driver.store("windows", partition=1)["n.count"].to_list() == [1]


def test_tables_and_frames_are_piped_as_well():
    driver = TopologyTestDriver(departures())
    table = pa.table({"delay": [1.0, 3.0], "origin": ["JFK", "JFK"], "__timestamp": [0, 1]})
    driver.pipe("flights", table)
    assert driver.table("departures")["mean_delay"].to_list() == [2.0]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda driver: driver.pipe("other", []), "the topology reads flights, not other"),
        (lambda driver: driver.read("other"), "no sink writes to other"),
        (lambda driver: driver.store("other"), "no store is named other; the stores are windows"),
    ],
)
def test_wrong_names_are_refused(use, message):
    with pytest.raises(TopologyError, match=message):
        use(TopologyTestDriver(departures()))


def test_records_that_move_are_tested_in_one_partition():
    builder = StreamsBuilder()
    builder.stream("flights", schema=SCHEMA, key_columns=["origin"]).group_by("delay").count().to_delta("t")
    topology = builder.build()
    with pytest.raises(TopologyError, match="its records change partition: test it with partitions=1"):
        TopologyTestDriver(topology, partitions=2)
    driver = TopologyTestDriver(topology)
    driver.pipe("flights", [{"origin": "a", "delay": 1.0}, {"origin": "b", "delay": 1.0}])
    assert driver.table("t")["count"].to_list() == [2]


def test_a_test_takes_milliseconds():
    """A test takes less CPU time than a loop over five million numbers, which takes tens of milliseconds."""

    def least_s(work):
        took_s = []
        for _ in range(10):
            started = time.process_time()
            work()
            took_s.append(time.process_time() - started)
        return min(took_s)

    def count():
        for _ in range(1_000_000):
            pass

    def run():
        driver = TopologyTestDriver(departures())
        driver.pipe_record("flights", {"origin": "JFK", "delay": 10.0}, timestamp_ms=100)
        assert driver.read("departures")

    assert least_s(run) < 5 * least_s(count)
