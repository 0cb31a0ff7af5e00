"""A process that appends to a partition until it is killed.

It writes ``<first> <last>`` to standard output after each acknowledgement.

Usage: appending_process.py DIRECTORY SEED
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from uuid import UUID

from millrace.config.topic import TopicConfig
from millrace.records import Record, build_rows_batch
from millrace_broker.log import LogManager

PRODUCER_ID = 11


def value_at(offset: int) -> bytes:
    """Return the value of the record at an offset, which repeats the offset."""
    return (b"%d," % offset) * (offset % 40 + 1)


def main(directory: Path, seed: int) -> None:
    choose = random.Random(seed)
    options = {"segment.bytes": 40_000, "index.interval.bytes": 500, "retention.ms": -1}
    manager = LogManager.open([directory], broker_id=0, cluster_id="crash", defaults=TopicConfig.load(options))
    log = manager.create_log("orders", UUID(int=1), 0)
    assert not manager.offline(), manager.offline()
    sequence = log.log_end_offset
    os.write(1, b"open\n")
    while True:
        count = choose.randint(1, 30)
        start = log.log_end_offset
        batch = build_rows_batch(
            [Record(key=None, value=value_at(start + n), timestamp_ms=1000 + start + n) for n in range(count)],
            producer_id=PRODUCER_ID,
            producer_epoch=0,
            base_sequence=sequence,
        )
        result = log.append(batch)
        sequence += count
        os.write(1, b"%d %d\n" % (result.base_offset, result.last_offset))
        match choose.randint(0, 40):
            case 0:
                log.roll()
            case 1:
                log.flush()
            case 2:
                manager.checkpoint()
            case 3:
                manager.tick()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
