#!/usr/bin/env python3
"""A blacklist of addresses that ask too often, kept in a Delta table; a listed address leaves it after a while.

Reads the topic requests (make_examples.py fills one), keyed by address, and counts each address' requests per minute of
event time. An address with more than --requests-max in a minute is put into the table blacklist, until --expiry-minutes
after its last request over the limit; then its row is deleted.

  python jobs/malicious_access.py --table /data/blacklist --requests-max 100 --expiry-minutes 10

By default it takes what the topic holds and ends; with --continuous it goes on until it is stopped (SIGTERM or Ctrl-C
end it cleanly). Exit codes: 0 done or stopped, 1 failed (the reason is on standard error), 2 wrong arguments.
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
    """Lists the addresses that it is shown, and takes them off when their time is over: checked every minute."""

    def __init__(self, expiry: timedelta) -> None:
        """Keep an address for ``expiry`` after it was last shown."""
        self._expiry_ms = expiry // timedelta(milliseconds=1)

    def init(self, context: ProcessorContext) -> None:
        """Begin with what is listed already."""
        self._context, self._until = context, context.store("blacklisted")
        context.schedule(_MINUTE_MS, "stream_time", self._expire)

    def process(self, record: Record) -> None:
        """List an address, or leave it listed for longer."""
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
    """The topology, importable by batch jobs and tests as well."""
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
    """The options of this job."""

    requests_max: Annotated[int, Option(metavar="N", help="requests in a minute that are allowed")] = 100
    expiry_minutes: Annotated[float, Option(metavar="M", help="how long an address stays listed")] = 10


def _made(arguments: Arguments) -> Topology:
    return topology(arguments.requests_max, timedelta(minutes=arguments.expiry_minutes))


if __name__ == "__main__":
    sys.exit(stream_main_of(Arguments, _made, sys.argv[1:], script=__file__, description=__doc__))
