"""Tests of typed rows in tables, joins and groups.

Functions see rows as dicts, and expressions see columns.
"""

from __future__ import annotations

import pyarrow as pa

from millrace_streams import StreamsBuilder, TestRecord, TopologyTestDriver, col, count, row, tumbling
from millrace_streams import sum as sum_

FLIGHTS = pa.schema([("tail", pa.string()), ("origin", pa.string()), ("delay", pa.float64())])
PLANES = pa.schema([("tail", pa.string()), ("seats", pa.int32())])
ENRICHED = row(pa.schema([*FLIGHTS, ("seats", pa.int32())]))


def builder_of() -> tuple[StreamsBuilder, object, object]:
    builder = StreamsBuilder()
    flights = builder.stream("flights", schema=FLIGHTS, key_columns=["tail"])
    planes = builder.table("planes", schema=PLANES, key_columns=["tail"], store="planes")
    return builder, flights, planes


def flight(tail: str, origin: str, delay: float, time_ms: int) -> TestRecord:
    return TestRecord("flights", tail, {"tail": tail, "origin": origin, "delay": delay}, time_ms)


def plane(tail: str, seats: int | None, time_ms: int) -> TestRecord:
    return TestRecord("planes", tail, None if seats is None else {"tail": tail, "seats": seats}, time_ms)


def test_flights_are_enriched_with_planes_and_counted() -> None:
    builder, flights, planes = builder_of()
    enriched = flights.left_join(
        planes, lambda left, right: {**left, "seats": right and right["seats"]}, value=ENRICHED
    )
    large = enriched.filter(col("seats") > 100)
    large.group_by("origin").windowed_by(tumbling(10)).aggregate(n=count(), seats=sum_("seats")).to_delta("large")
    enriched.to("enriched")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records(
        [
            flight("N1", "JFK", 1.0, 0),
            plane("N1", 150, 1),
            flight("N1", "JFK", 2.0, 2),
            plane("N1", 50, 3),
            flight("N1", "JFK", 3.0, 4),
            plane("N1", None, 5),
            flight("N1", "LGA", 4.0, 6),
            plane("N1", 180, 7),
            flight("N1", "JFK", 5.0, 8),
        ]
    )
    assert [record.value["seats"] for record in driver.read_records("enriched")] == [None, 150, 50, None, 180]
    [counted] = driver.table("large").to_dicts()
    assert (counted["origin"], counted["n"], counted["seats"]) == ("JFK", 2, 330)
    assert driver.entries("planes")[0].value == {"tail": "N1", "seats": 180}


def test_tables_of_rows_are_filtered_selected_and_grouped_by_expressions() -> None:
    builder, _, planes = builder_of()
    sizes = planes.map_values(seats=col("seats"), large=col("seats") >= 100)
    sizes.filter(col("large")).to_delta("large")
    sizes.group_by("large").aggregate(
        lambda: 0,
        lambda key, value, total: total + value["seats"],
        lambda key, value, total: total - value["seats"],
        value="long",
    ).to_stream().to("seats")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records([plane("N1", 150, 0), plane("N2", 120, 1), plane("N1", 40, 2), plane("N2", None, 3)])
    assert driver.table("large").height == 0
    assert [(record.key, record.value) for record in driver.read_records("seats")] == [
        (True, 150),
        (True, 270),
        (True, 120),
        (False, 40),
        (True, 0),
    ]


def test_rows_without_a_value_are_tombstones_in_columns_too() -> None:
    builder, _, planes = builder_of()
    planes.to_stream().filter_not(col("seats") > 100).with_columns(half=col("seats") / 2).to("small")
    planes.to_delta("planes")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records([plane("N1", 90, 0), plane("N2", 120, 1), plane("N1", None, 2)])
    assert [(record.key, record.value and record.value["half"]) for record in driver.read_records("small")] == [
        ("N1", 45.0),
        ("N1", None),
    ]
    assert driver.table("planes").to_dicts() == [{"tail": "N2", "seats": 120}]
