#!/usr/bin/env python3
"""Analysis of a web server's log.

The job counts requests and bytes per status and minute, and collects unreadable lines. The job reads the topic
log_lines (column line, in Apache's combined format; make_examples.py fills it). The table requests_by_status has a row
per status and minute of the server's own time. A line may be up to a minute late. Lines in another format are appended
to unreadable_lines.

  python jobs/log_analysis.py --table requests_by_status=/data/by_status --table unreadable_lines=/data/unreadable

By default the job reads the records that the topic holds and ends. With --continuous it runs until it is stopped
(SIGTERM or Ctrl-C stop it cleanly). Exit codes: 0 done or stopped, 1 failed (the reason is on standard error), 2 wrong
arguments.
"""

from __future__ import annotations

import re
import sys
from datetime import datetime, timedelta
from typing import Any, Final

from millrace_streams import StreamsBuilder, Topology, col, count, row, tumbling
from millrace_streams import sum as total
from millrace_streams.application import stream_main

LOG_LINES: Final = "line STRING NOT NULL"
REQUESTS: Final = "line STRING, address STRING, method STRING, path STRING, status INT, bytes BIGINT"
_COMBINED: Final = re.compile(
    r'(?P<address>\S+) \S+ \S+ \[(?P<time>[^\]]+)\] "(?P<method>[A-Z]+) (?P<path>\S+) [^"]*" '
    r'(?P<status>\d{3}) (?P<bytes>\d+|-)(?: "[^"]*" "[^"]*")?'
)
_TIME: Final = "%d/%b/%Y:%H:%M:%S %z"
_UNREADABLE: Final = dict.fromkeys(("address", "method", "path", "status", "bytes"))


def event_time(value: dict[str, Any], timestamp: int) -> int:
    """Return the time of the request, in ms; for an unreadable line, the time when it was logged."""
    found = _COMBINED.fullmatch(value["line"])
    if found is None:
        return timestamp
    return round(datetime.strptime(found["time"], _TIME).timestamp() * 1000)


def parse(value: dict[str, Any]) -> dict[str, Any]:
    """Return a line's fields; all None if the line is unreadable."""
    found = _COMBINED.fullmatch(value["line"])
    if found is None:
        return value | _UNREADABLE
    size = 0 if found["bytes"] == "-" else int(found["bytes"])
    return value | found.groupdict() | {"status": int(found["status"]), "bytes": size}


def topology() -> Topology:
    """Build the topology, which batch jobs and tests can import too."""
    builder = StreamsBuilder()
    lines = builder.stream("log_lines", schema=LOG_LINES, timestamp=event_time)
    branches = lines.map_values(parse, value=row(REQUESTS)).split(name="lines-")
    branches.branch(col("status").is_null(), name="unreadable").select("line").to_delta("unreadable_lines")
    (
        branches.default_branch(name="readable")
        .group_by("status")
        .windowed_by(tumbling(timedelta(minutes=1), grace=timedelta(minutes=1)))
        .aggregate(requests=count(), bytes=total("bytes"), store="requests-by-status")
        .to_delta("requests_by_status")
    )
    return builder.build()


if __name__ == "__main__":
    sys.exit(stream_main(topology, sys.argv[1:], script=__file__, description=__doc__))
