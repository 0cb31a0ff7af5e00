#!/usr/bin/env python3
"""Flights with their plane and the weather of their hour.

The results are appended to a Delta table. The job reads the topics flights and weather, keyed by origin (the demo fills
them), and planes, keyed by tail number (make_examples.py fills it). A flight is joined with the data known when it
arrives: its plane by tail number, and the weather by origin and scheduled hour. Unknown values are null.

  python jobs/flights_enriched.py --table /data/flights_enriched

By default the job reads the records that the topic holds and ends. With --continuous it runs until it is stopped
(SIGTERM or Ctrl-C stop it cleanly). Exit codes: 0 done or stopped, 1 failed (the reason is on standard error), 2 wrong
arguments.
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
    """Add the plane's columns to a flight."""
    return flight | {name: plane and plane[name] for name in PLANE}


def with_weather(flight: dict[str, Any], weather: dict[str, Any] | None) -> dict[str, Any]:
    """Add the weather's columns to a flight."""
    return flight | {name: weather and weather[name] for name in WEATHER}


def topology() -> Topology:
    """Build the topology, which batch jobs and tests can import too."""
    builder = StreamsBuilder()
    planes = builder.global_table("planes", store="planes")
    weather = builder.stream("weather", timestamp="time_hour").select_key("origin", "time_hour")
    flights = builder.stream("flights", timestamp="time_hour")
    (
        flights.select("carrier", "flight", "tailnum", "dest", "dep_delay", "time_hour")
        # A flight without a tail number is kept. It finds no plane, because no plane has an empty tail number.
        .left_join(planes, with_plane, selector=lambda flight: flight["tailnum"] or "", value=row(WITH_PLANE))
        .select_key("origin", "time_hour")
        .left_join(weather.to_table(store="weather"), with_weather, value=row(WITH_WEATHER))
        .to_delta("flights_enriched")
    )
    return builder.build()


if __name__ == "__main__":
    sys.exit(stream_main(topology, sys.argv[1:], script=__file__, description=__doc__))
