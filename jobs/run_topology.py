#!/usr/bin/env python3
r"""Streaming job that runs any topology with exactly-once results.

The topology writes to Delta tables and topics.

  python jobs/run_topology.py --topology my.module:my_topology --table /data/totals
  python jobs/run_topology.py --topology path/to/file.py --table totals=/data/totals --table hours=/data/hours \
      --continuous

By default the job reads the records that the topic holds and ends. With --continuous it runs until it is stopped
(SIGTERM or Ctrl-C stop it cleanly). Exit codes: 0 done or stopped, 1 failed (the reason is on standard error), 2 wrong
arguments.
"""

from __future__ import annotations

import sys

from millrace_streams.application import stream_main

if __name__ == "__main__":
    sys.exit(stream_main(None, sys.argv[1:], script=__file__, description=__doc__))
