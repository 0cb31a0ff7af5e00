#!/usr/bin/env python3
"""Departures and mean delay per hour and airport, kept up to date in a Delta table.

Reads the topic flights (made by the demo), leaves out cancelled flights, and counts the others by origin and scheduled
hour. A flight that leaves late arrives late in the log: its hour stays open for a day. Killed at any moment and run
again, the job goes on where it was, and the table comes out the same.

  python jobs/hourly_departures.py --table /data/hourly_departures
  spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/hourly_departures.py --table /data/hourly_departures

By default it takes what the topic holds and ends; with --continuous it goes on until it is stopped (SIGTERM or Ctrl-C
end it cleanly). Exit codes: 0 done or stopped, 1 failed (the reason is on standard error), 2 wrong arguments.
"""

from __future__ import annotations

import sys
from datetime import timedelta

from millrace_streams import StreamsBuilder, Topology, col, count, mean, tumbling
from millrace_streams.application import stream_main


def topology() -> Topology:
    """The topology, importable by batch jobs and tests as well."""
    builder = StreamsBuilder()
    hourly = tumbling(timedelta(hours=1), grace=timedelta(days=1))
    (
        builder.stream("flights", timestamp="time_hour")
        .filter(col("dep_delay").is_not_null())
        .group_by("origin")
        .windowed_by(hourly)
        .aggregate(departures=count(), mean_delay=mean("dep_delay"), store="hourly-departures")
        .to_delta("hourly_departures")
    )
    return builder.build()


if __name__ == "__main__":
    sys.exit(stream_main(topology, sys.argv[1:], script=__file__, description=__doc__))
