#!/usr/bin/env python3
"""Batch run of a topology over all records that its topics retain.

The run writes Delta tables of its own. The topology and its steps are the same as in a stream, and so are the rows. One
bounded job replaces each table in one commit. Use it for a changed topology, for a lost table, or to check the result
of a stream.

  python jobs/backfill.py --topology jobs/hourly_departures.py --table /data/hourly_departures_again
  python jobs/backfill.py --topology my.module:my_topology --table totals=/data/totals --table hours=/data/hours

SIGTERM and Ctrl-C stop the job within seconds. A table that is not replaced before that stays unchanged.

Exit codes: 0 done, 1 failed (the reason is on standard error), 2 wrong arguments, 3 stopped before it was done.
"""

from __future__ import annotations

import sys

from millrace_streams.application import batch_main

if __name__ == "__main__":
    sys.exit(batch_main(sys.argv[1:], script=__file__, description=__doc__))
