#!/usr/bin/env python3
"""Blacklist of addresses with too many requests, with expiry.

The job keeps the blacklist in a Delta table. The job reads the topic requests (make_examples.py fills it), keyed by
address, and counts each address' requests per minute of event time. An address with more than --requests-max in a
minute is added to the table blacklist. Its row is deleted --expiry-minutes after its last request over the limit.

  python jobs/malicious_access.py --table /data/blacklist --requests-max 100 --expiry-minutes 10

By default the job reads the records that the topic holds and ends. With --continuous it runs until it is stopped
(SIGTERM or Ctrl-C stop it cleanly). Exit codes: 0 done or stopped, 1 failed (the reason is on standard error), 2 wrong
arguments.
"""

import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from typer import Option

from millrace_streams import ProcessorContext, Record, StreamsBuilder, Topology, col, key_value_store, row, tumbling
from millrace_streams.application import TopologyStreamArguments, stream_main_of

REQUESTS: Final = """
    time TIMESTAMP NOT NULL, address STRING NOT NULL, method STRING, path STRING, status INT, bytes BIGINT
"""
_MINUTE_MS: Final = 60_000


class Blacklist:
    """Blacklist of the addresses that the processor receives.

    Every minute the processor removes expired addresses.
    """

    def __init__(self, expiry: timedelta) -> None:
        """Keep an address for ``expiry`` after it was last received."""
        self._expiry_ms = expiry // timedelta(milliseconds=1)

    def init(self, context: ProcessorContext) -> None:
        """Open the store of addresses, and schedule the expiry."""
        self._context, self._until = context, context.store("blacklisted")
        context.schedule(_MINUTE_MS, "stream_time", self._expire)

    def process(self, record: Record) -> None:
        """Add an address, or extend its expiry."""
        until_ms = record.timestamp + self._expiry_ms
        self._until.put(record.key, until_ms)
        until = datetime.fromtimestamp(until_ms / 1000, UTC)
        self._context.forward(record.key, {"until": until, "requests": record.value})

    def _expire(self, now_ms: int) -> None:
        for address, until_ms in self._until.all():
            if until_ms <= now_ms:
                self._until.delete(address)
                self._context.forward(address, None, until_ms)


def topology(requests_max: int = 100, expiry: timedelta = timedelta(minutes=10)) -> Topology:
    """Build the topology, which batch jobs and tests can import too."""
    builder = StreamsBuilder()
    (
        builder.stream("requests", schema=REQUESTS, key_columns=["address"], timestamp="time")
        .group_by_key()
        .windowed_by(tumbling(timedelta(minutes=1)))
        .count(column="requests", store="requests-per-minute")
        .to_stream(lambda key, requests: key.key, key="string")
        .filter(lambda requests: requests > requests_max, name="over-the-limit")
        .process(
            lambda: Blacklist(expiry),
            stores=[key_value_store("blacklisted", key="string", value="long")],
            value=row("until TIMESTAMP, requests BIGINT"),
            name="blacklist",
        )
        .select_key(address=col("key"))
        .to_table()
        .select("until", "requests")
        .to_delta("blacklist")
    )
    return builder.build()


@dataclass(frozen=True, kw_only=True)
class Arguments(TopologyStreamArguments):
    """Options of this job."""

    requests_max: Annotated[int, Option(metavar="N", help="largest allowed number of requests in a minute")] = 100
    expiry_minutes: Annotated[float, Option(metavar="M", help="time for which an address stays listed")] = 10


def _made(arguments: Arguments) -> Topology:
    return topology(arguments.requests_max, timedelta(minutes=arguments.expiry_minutes))


if __name__ == "__main__":
    sys.exit(stream_main_of(Arguments, _made, sys.argv[1:], script=__file__, description=__doc__))
