#!/usr/bin/env python3
"""Flights with the plane that flew them and the weather of their hour, appended to a Delta table.

Reads the topics flights and weather, keyed by origin (the demo fills them), and planes, keyed by tail number
(make_examples.py fills it). A flight is joined with what is known when it comes: the plane by its tail number, the
weather by origin and scheduled hour; what is not known is null.

  python jobs/flights_enriched.py --table /data/flights_enriched

By default it takes what the topic holds and ends; with --continuous it goes on until it is stopped (SIGTERM or Ctrl-C
end it cleanly). Exit codes: 0 done or stopped, 1 failed (the reason is on standard error), 2 wrong arguments.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from millrace_streams import StreamsBuilder, Topology, row
from millrace_streams.application import stream_main

FLIGHT: Final = "carrier STRING, flight BIGINT, tailnum STRING, dest STRING, dep_delay DOUBLE, time_hour TIMESTAMP"
PLANE: Final = ("manufacturer", "model", "seats")
WEATHER: Final = ("temp", "wind_speed", "visib", "precip")
WITH_PLANE: Final = f"{FLIGHT}, manufacturer STRING, model STRING, seats BIGINT"
WITH_WEATHER: Final = f"{WITH_PLANE}, temp DOUBLE, wind_speed DOUBLE, visib DOUBLE, precip DOUBLE"


def with_plane(flight: dict[str, Any], plane: dict[str, Any] | None) -> dict[str, Any]:
    """A flight with its plane's columns."""
    return flight | {name: plane and plane[name] for name in PLANE}


def with_weather(flight: dict[str, Any], weather: dict[str, Any] | None) -> dict[str, Any]:
    """A flight with the weather's columns."""
    return flight | {name: weather and weather[name] for name in WEATHER}


def topology() -> Topology:
    """The topology, importable by batch jobs and tests as well."""
    builder = StreamsBuilder()
    planes = builder.global_table("planes", store="planes")
    weather = builder.stream("weather", timestamp="time_hour").select_key("origin", "time_hour")
    flights = builder.stream("flights", timestamp="time_hour")
    (
        flights.select("carrier", "flight", "tailnum", "dest", "dep_delay", "time_hour")
        # A flight without a tail number has no plane, but is a flight: no plane has the empty one.
        .left_join(planes, with_plane, selector=lambda flight: flight["tailnum"] or "", value=row(WITH_PLANE))
        .select_key("origin", "time_hour")
        .left_join(weather.to_table(store="weather"), with_weather, value=row(WITH_WEATHER))
        .to_delta("flights_enriched")
    )
    return builder.build()


if __name__ == "__main__":
    sys.exit(stream_main(topology, sys.argv[1:], script=__file__, description=__doc__))
