#!/usr/bin/env python3
"""Departures and mean delay per hour and airport.

The job keeps them up to date in a Delta table. The job reads the topic flights (the demo fills it), leaves out
cancelled flights, and counts the others by origin and scheduled hour. A delayed flight arrives late in the log, so its
hour stays open for a day. A job that is killed at any moment resumes when it is run again, and the table gets the same
rows.

  python jobs/hourly_departures.py --table /data/hourly_departures
  spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/hourly_departures.py --table /data/hourly_departures

By default the job reads the records that the topic holds and ends. With --continuous it runs until it is stopped
(SIGTERM or Ctrl-C stop it cleanly). Exit codes: 0 done or stopped, 1 failed (the reason is on standard error), 2 wrong
arguments.
"""

from __future__ import annotations

import sys
from datetime import timedelta

from millrace_streams import StreamsBuilder, Topology, col, count, mean, tumbling
from millrace_streams.application import stream_main


def topology() -> Topology:
    """Build the topology, which batch jobs and tests can import too."""
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
