#!/usr/bin/env python3
"""Run a topology once over everything that its topic retains, into Delta tables of their own.

The same topology as in a stream, the same steps, and so the same rows; in one bounded job, and the table is replaced in
one commit. For a changed topology, a lost table, or to check a stream's result.

  python jobs/backfill.py --topology jobs/hourly_departures.py --table /data/hourly_departures_again
  python jobs/backfill.py --topology my.module:my_topology --table totals=/data/totals --table hours=/data/hours

SIGTERM and Ctrl-C break it off within seconds: a table that is not replaced by then stays as it was.

Exit codes: 0 done, 1 failed (the reason is on standard error), 2 wrong arguments, 3 stopped before it was done.
"""

from __future__ import annotations

import sys

from millrace_streams.application import batch_main

if __name__ == "__main__":
    sys.exit(batch_main(sys.argv[1:], script=__file__, description=__doc__))
