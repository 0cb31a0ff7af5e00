"""Tests of the applications in jobs/ against polars or DuckDB."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

from millrace_streams import TopicShape, Topology, TopologyTestDriver
from millrace_streams.demo.datasets import read_datasets, read_planes
from millrace_streams.demo.examples import EXAMPLES

ROOT = Path(__file__).resolve().parents[3]
MINUTE_MS = 60_000


def job(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"jobs_{name}", ROOT / "jobs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def example(topic: str, rows: int) -> pa.Table:
    return EXAMPLES[topic].table(rows, seed=7)


def run(topology: Topology, topic: str, table: pa.Table, *, batches: int = 5) -> TopologyTestDriver:
    """Pipe a table in a few batches, each record at its own time."""
    driver = TopologyTestDriver(topology)
    column = EXAMPLES[topic].time_column
    times = pl.DataFrame(table)[column].dt.timestamp("ms").to_list() if column is not None else [0] * table.num_rows
    edges = [table.num_rows * batch // batches for batch in range(batches + 1)]
    for start, end in pairwise(edges):
        driver.pipe(topic, table.slice(start, end - start), timestamps_ms=times[start:end])
    return driver


def assert_rows(found: pl.DataFrame, expected: pl.DataFrame) -> None:
    assert expected.height > 0
    assert_frame_equal(found.select(expected.columns), expected, check_row_order=False, check_dtypes=False)


def test_words_are_counted() -> None:
    lines = example("lines", 2000)
    found = run(job("word_count").topology(), "lines", lines).table("word_counts")
    counted = """
        select word, count(*) as occurrences
        from (select unnest(regexp_extract_all(lower(line), '[a-z0-9]+')) as word from lines) group by word
    """
    assert_rows(found, duckdb.sql(counted).pl())


def test_addresses_with_too_many_requests_are_listed_until_they_expire() -> None:
    requests, most, expiry = example("requests", 30_000), 100, timedelta(minutes=4)
    found = run(job("malicious_access").topology(most, expiry), "requests", requests).table("blacklist")
    frame = pl.DataFrame(requests)
    nth = pl.int_range(1, pl.len() + 1).over("address", pl.col("time").dt.truncate("1m"))
    over = frame.with_columns(requests=nth).filter(pl.col("requests") > most)
    ever = over.group_by("address").agg(pl.col("time").last() + expiry, pl.col("requests").last())
    # The first request of a minute shows which blocks have expired.
    last_check = frame.filter(pl.col("time") >= frame["time"].max().replace(second=0, microsecond=0))["time"].min()
    listed = ever.filter(pl.col("time") > last_check).rename({"time": "until"})
    assert 0 < listed.height < ever.height
    in_ms = found.with_columns(pl.col("until").dt.truncate("1ms"))
    assert_rows(in_ms, listed.with_columns(pl.col("until").dt.truncate("1ms")))


def test_the_hottest_words_of_each_window_are_ranked() -> None:
    searches = example("searches", 6000)
    found = run(job("hot_words").topology(10, 5), "searches", searches).table("hot_words")
    words = pl.col("query").str.to_lowercase().str.extract_all("[a-z]+").list.unique().alias("word")
    minute = pl.col("time").dt.truncate("1m").alias("counted")
    frame = pl.DataFrame(searches).select(minute, words).explode("word")
    closed = frame.filter(pl.col("counted") < frame["counted"].max())
    minutes = closed.select(minute=pl.col("counted").unique().sort())
    ranked = (
        minutes.join(closed, how="cross")
        .filter(pl.col("counted") < pl.col("minute"), pl.col("counted") >= pl.col("minute") - timedelta(minutes=5))
        .group_by("minute", "word")
        .agg(searches=pl.len())
        .sort("minute", "searches", "word", descending=[False, True, False])
        .with_columns(rank=pl.int_range(1, pl.len() + 1).over("minute"))
        .filter(pl.col("rank") <= 10)
    )
    assert_rows(found, ranked.select("minute", "rank", "word", "searches"))


def test_highs_and_lows_of_days_are_kept() -> None:
    prices = example("prices", 5000)
    found = run(job("stock_highs_lows").topology(3), "prices", prices).table("highs_lows")
    by_day = """
        select symbol, day - to_days(back) as window_start, max(price) as high, min(price) as low, count(*) as trades
        from (select *, date_trunc('day', time at time zone 'UTC') as day, unnest(range(3)::int[]) as back from prices)
        group by symbol, window_start
    """
    expected = duckdb.sql(by_day).pl()
    assert_rows(found.with_columns(pl.col("window_start").dt.replace_time_zone(None)), expected)


def test_logs_are_analysed_by_status_and_minute_and_broken_lines_set_aside() -> None:
    lines = example("log_lines", 4000)
    driver = run(job("log_analysis").topology(), "log_lines", lines)
    parts = r'\[([^\]]+)\] "[^"]*" (\d+) (\d+|-) "-" "[^"]*"$'
    frame = pl.DataFrame(lines).with_columns(parts=pl.col("line").str.extract_groups(parts)).unnest("parts")
    broken = frame.filter(pl.col("2").is_null())
    assert_rows(driver.table("unreadable_lines"), broken.select("line"))
    time = pl.col("1").str.to_datetime("%d/%b/%Y:%H:%M:%S %z", time_unit="us").dt.truncate("1m")
    by_status = (
        frame.filter(pl.col("2").is_not_null())
        .group_by(pl.col("2").cast(pl.Int32).alias("status"), time.alias("window_start"))
        .agg(requests=pl.len(), bytes=pl.col("3").replace("-", "0").cast(pl.Int64).sum())
    )
    assert_rows(driver.table("requests_by_status"), by_status)


def flight_parts() -> Iterator[tuple[str, pa.Table]]:
    """Return planes, then weather and flights in turns. Some flights come before the weather of their hour."""
    flights, weather = (dataset.table for dataset in read_datasets(ROOT / "conf", 1200))
    yield "planes", read_planes()
    yield "weather", weather.slice(0, 40)
    yield "flights", flights.slice(0, 800)
    yield "weather", weather.slice(40, 100)
    yield "flights", flights.slice(800)


def test_flights_are_enriched_with_planes_and_the_weather_known_by_then() -> None:
    application = job("flights_enriched")
    keys: dict[str, Any] = {"planes": ("tailnum",), "weather": ("origin",), "flights": ("origin",)}
    parts = list(flight_parts())
    shapes = {topic: TopicShape(schema=table.schema, key_columns=keys[topic]) for topic, table in parts}
    driver = TopologyTestDriver(application.topology(), topics=shapes)
    expected, known = [], pl.DataFrame(parts[1][1]).clear()
    planes = pl.DataFrame(parts[0][1]).select("tailnum", *application.PLANE)
    for topic, table in parts:
        driver.pipe(topic, table)
        if topic == "weather":
            known = pl.concat([known, pl.DataFrame(table)])
        elif topic == "flights":
            hours = known.select("origin", "time_hour", *application.WEATHER)
            joined = pl.DataFrame(table).join(planes, on="tailnum", how="left")
            expected.append(joined.join(hours, on=["origin", "time_hour"], how="left"))
    columns = ["origin", "time_hour", "carrier", "flight", "tailnum", "dest", "dep_delay"]
    rows = pl.concat(expected).select(*columns, *application.PLANE, *application.WEATHER)
    assert 0 < rows["temp"].null_count() < rows.height
    assert 0 < rows["model"].null_count() < rows.height
    assert_rows(driver.table("flights_enriched"), rows)


@pytest.mark.parametrize("topic", EXAMPLES)
def test_made_data_are_the_same_for_a_seed_and_of_their_topics_schema(topic: str) -> None:
    made = EXAMPLES[topic].table(500, seed=3)
    assert made.num_rows == 500
    assert made.equals(EXAMPLES[topic].table(500, seed=3))
    assert not made.equals(EXAMPLES[topic].table(500, seed=4))
    assert set(EXAMPLES[topic].key_columns) <= set(made.schema.names)
