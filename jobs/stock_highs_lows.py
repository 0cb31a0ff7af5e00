#!/usr/bin/env python3
"""Highest and lowest price of each stock over the last days.

The job keeps them up to date in a Delta table, for every day. The job reads the topic prices (make_examples.py fills
it), keyed by symbol. The table highs_lows has a row for each symbol and window of --days, with its bounds, high, low,
and number of trades. A window begins every day (UTC).

  python jobs/stock_highs_lows.py --table /data/highs_lows --days 5

By default the job reads the records that the topic holds and ends. With --continuous it runs until it is stopped
(SIGTERM or Ctrl-C stop it cleanly). Exit codes: 0 done or stopped, 1 failed (the reason is on standard error), 2 wrong
arguments.
"""

import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final

from typer import Option

from millrace_streams import StreamsBuilder, Topology, count, hopping
from millrace_streams import max as highest
from millrace_streams import min as lowest
from millrace_streams.application import TopologyStreamArguments, stream_main_of

PRICES: Final = "time TIMESTAMP NOT NULL, symbol STRING NOT NULL, price DOUBLE NOT NULL, volume BIGINT"


def topology(days: int = 5) -> Topology:
    """Build the topology, which batch jobs and tests can import too."""
    builder = StreamsBuilder()
    (
        builder.stream("prices", schema=PRICES, key_columns=["symbol"], timestamp="time")
        .group_by_key()
        .windowed_by(hopping(timedelta(days=days), advance=timedelta(days=1)))
        .aggregate(high=highest("price"), low=lowest("price"), trades=count(), store="highs-lows")
        .to_delta("highs_lows")
    )
    return builder.build()


@dataclass(frozen=True, kw_only=True)
class Arguments(TopologyStreamArguments):
    """Options of this job."""

    days: Annotated[int, Option(metavar="N", help="length of the windows")] = 5


def _made(arguments: Arguments) -> Topology:
    return topology(arguments.days)


if __name__ == "__main__":
    sys.exit(stream_main_of(Arguments, _made, sys.argv[1:], script=__file__, description=__doc__))
