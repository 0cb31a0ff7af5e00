#!/usr/bin/env python3
"""Most frequent search words of the last ten minutes.

The words are appended to a Delta table every minute. The job reads the topic searches (make_examples.py fills it).
Words are counted per minute of event time, in parallel. At the end of a minute, one task ranks the counts of the
window. The table hot_words gets the rows of each minute: the minute's end, the rank, the word, and the number of its
searches in the window.

  python jobs/hot_words.py --table /data/hot_words --words 10 --window-minutes 10

By default the job reads the records that the topic holds and ends. With --continuous it runs until it is stopped
(SIGTERM or Ctrl-C stop it cleanly). Exit codes: 0 done or stopped, 1 failed (the reason is on standard error), 2 wrong
arguments.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from typer import Option

from millrace_streams import (
    ProcessorContext,
    Record,
    StreamsBuilder,
    Topology,
    Windowed,
    row,
    tumbling,
    window_store,
)
from millrace_streams.application import TopologyStreamArguments, stream_main_of

SEARCHES: Final = "time TIMESTAMP NOT NULL, user STRING, query STRING NOT NULL"
HOT_WORDS: Final = "minute TIMESTAMP, rank INT, word STRING, searches BIGINT"
_MINUTE_MS: Final = 60_000
_WORD: Final = re.compile(r"[^\W_]+")


def words(value: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Yield the distinct words of a search, as rows."""
    for word in sorted(set(_WORD.findall(value["query"].lower()))):
        yield {"word": word}


def in_one_place(key: Windowed, searches: int) -> tuple[str, dict[str, Any]]:
    """Return a word's count of a minute under one common key."""
    return "all", {"word": key.key, "minute_ms": key.start, "searches": searches}


class Ranking:
    """Ranking of words by their searches in the last minutes.

    The words are ranked at the end of each minute.
    """

    def __init__(self, ranks: int, minutes: int) -> None:
        """Rank the first ``ranks`` words of the last ``minutes``."""
        self._ranks, self._window_ms = ranks, minutes * _MINUTE_MS

    def init(self, context: ProcessorContext) -> None:
        """Open the store of counts, and schedule the ranking."""
        self._context, self._counts = context, context.store("minutes")
        context.schedule(_MINUTE_MS, "stream_time", self._rank)

    def process(self, record: Record) -> None:
        """Store a word's count of a minute."""
        value = record.value
        self._counts.put(value["word"], value["searches"], value["minute_ms"])

    def _rank(self, now_ms: int) -> None:
        end_ms = now_ms // _MINUTE_MS * _MINUTE_MS
        found: Counter[str] = Counter()
        for word, minute_ms, searches in self._counts.all():
            if end_ms - self._window_ms <= minute_ms < end_ms:
                found[word] += searches
        first = sorted(found.items(), key=lambda item: (-item[1], item[0]))[: self._ranks]
        minute = datetime.fromtimestamp(end_ms / 1000, UTC)
        for rank, (word, searches) in enumerate(first, 1):
            self._context.forward("all", {"minute": minute, "rank": rank, "word": word, "searches": searches}, end_ms)


def topology(ranks: int = 10, minutes: int = 10) -> Topology:
    """Build the topology, which batch jobs and tests can import too."""
    builder = StreamsBuilder()
    counts = (
        builder.stream("searches", schema=SEARCHES, timestamp="time")
        .flat_map_values(words, value=row("word STRING"))
        .group_by("word")
        .windowed_by(tumbling(timedelta(minutes=1)))
        .emit_strategy("on_window_close")
        .count(store="searches-per-minute")
    )
    (
        counts.to_stream()
        .map(in_one_place, key="string", value=row("word STRING, minute_ms BIGINT, searches BIGINT"))
        .repartition("words-of-a-minute")
        .process(
            lambda: Ranking(ranks, minutes),
            stores=[
                window_store("minutes", key="string", value="long", retention=timedelta(minutes=minutes + 1)),
            ],
            value=row(HOT_WORDS),
            name="ranking",
        )
        .to_delta("hot_words")
    )
    return builder.build()


@dataclass(frozen=True, kw_only=True)
class Arguments(TopologyStreamArguments):
    """Options of this job."""

    words: Annotated[int, Option(metavar="N", help="number of ranked words")] = 10
    window_minutes: Annotated[int, Option(metavar="M", help="number of minutes of the ranking")] = 10


def _made(arguments: Arguments) -> Topology:
    return topology(arguments.words, arguments.window_minutes)


if __name__ == "__main__":
    sys.exit(stream_main_of(Arguments, _made, sys.argv[1:], script=__file__, description=__doc__))
