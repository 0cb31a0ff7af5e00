#!/usr/bin/env python3
"""The hottest search words: each minute the most frequent ones of the last ten, appended to a Delta table.

Reads the topic searches (make_examples.py fills one). Words are counted per minute of event time where they lie; what a
minute came to is ranked in one place, together with the minutes before it, when the next one begins. The table
hot_words gets the rows of each minute: its end, rank, word, and how often it was searched for in the window.

  python jobs/hot_words.py --table /data/hot_words --words 10 --window-minutes 10

By default it takes what the topic holds and ends; with --continuous it goes on until it is stopped (SIGTERM or Ctrl-C
end it cleanly). Exit codes: 0 done or stopped, 1 failed (the reason is on standard error), 2 wrong arguments.
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
    """The words of a search, each once, as rows."""
    for word in sorted(set(_WORD.findall(value["query"].lower()))):
        yield {"word": word}


def in_one_place(key: Windowed, searches: int) -> tuple[str, dict[str, Any]]:
    """A word's count of a minute, under a key that all have in common."""
    return "all", {"word": key.key, "minute_ms": key.start, "searches": searches}


class Ranking:
    """Ranks words by how often they were searched for in the last minutes, whenever a minute is over."""

    def __init__(self, ranks: int, minutes: int) -> None:
        """Give the first ``ranks`` words of the last ``minutes``."""
        self._ranks, self._window_ms = ranks, minutes * _MINUTE_MS

    def init(self, context: ProcessorContext) -> None:
        """Begin with the minutes counted already."""
        self._context, self._counts = context, context.store("minutes")
        context.schedule(_MINUTE_MS, "stream_time", self._rank)

    def process(self, record: Record) -> None:
        """Keep a word's count of a minute."""
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
    """The topology, importable by batch jobs and tests as well."""
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
    """The options of this job."""

    words: Annotated[int, Option(metavar="N", help="how many words are given")] = 10
    window_minutes: Annotated[int, Option(metavar="M", help="over how many minutes")] = 10


def _made(arguments: Arguments) -> Topology:
    return topology(arguments.words, arguments.window_minutes)


if __name__ == "__main__":
    sys.exit(stream_main_of(Arguments, _made, sys.argv[1:], script=__file__, description=__doc__))
