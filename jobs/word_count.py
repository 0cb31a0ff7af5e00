#!/usr/bin/env python3
"""Word counts of the lines in a topic.

The job keeps the counts up to date in a Delta table. The job reads the topic lines (column line; make_examples.py fills
it) and splits each line into words of letters and digits, without regard to case. The table word_counts has one row per
word.

  python jobs/word_count.py --table /data/word_counts

By default the job reads the records that the topic holds and ends. With --continuous it runs until it is stopped
(SIGTERM or Ctrl-C stop it cleanly). Exit codes: 0 done or stopped, 1 failed (the reason is on standard error), 2 wrong
arguments.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any, Final

from millrace_streams import StreamsBuilder, Topology, row
from millrace_streams.application import stream_main

LINES: Final = "line STRING"
_WORD: Final = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def words(value: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Yield the words of a line, as rows."""
    for word in _WORD.findall((value["line"] or "").lower()):
        yield {"word": word}


def topology() -> Topology:
    """Build the topology, which batch jobs and tests can import too."""
    builder = StreamsBuilder()
    (
        builder.stream("lines", schema=LINES)
        .flat_map_values(words, value=row("word STRING"))
        .group_by("word")
        .count(column="occurrences", store="word-counts")
        .to_delta("word_counts")
    )
    return builder.build()


if __name__ == "__main__":
    sys.exit(stream_main(topology, sys.argv[1:], script=__file__, description=__doc__))
