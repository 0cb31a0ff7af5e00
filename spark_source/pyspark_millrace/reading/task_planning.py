"""Conversion of offset ranges to tasks, on the driver."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from millrace.processors import processor_count
from pyspark_millrace.planning.data_loss import LossReport
from pyspark_millrace.planning.narrowing import within_offsets, within_times
from pyspark_millrace.planning.offsets import OffsetRange
from pyspark_millrace.planning.splits import (
    LATE_SPLITS_LARGER,
    Extent,
    Sizing,
    even_bytes,
    located_bytes,
    plan_splits,
    split_bytes,
    total_bytes,
    whole_partitions,
)
from pyspark_millrace.reading.pacing import Pace
from pyspark_millrace.reading.tasks import SplitTask

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_millrace.filters.row_filter import RowFilter
    from pyspark_millrace.options.source import SourceOptions
    from pyspark_millrace.planning.broker_client import BrokerClient

_log = logging.getLogger(__name__)


def plan_tasks(
    client: BrokerClient,
    ranges: Sequence[OffsetRange],
    schemas: Mapping[int, pa.Schema],
    options: SourceOptions,
    sizing: Sizing,
    row_filter: RowFilter | None = None,
) -> list[SplitTask]:
    """Locate ranges and cut them into tasks, without the parts that the filter excludes.

    Raises ``OffsetsLostError`` for lost records, unless losses are accepted; then they are logged.
    """
    report = LossReport(fail=options.fail_on_data_loss)
    ranges = within_offsets(ranges, row_filter)
    located = client.locate([(wanted, 0) for wanted in ranges], report)
    before = _bytes_of_topics(located)
    # Narrow by time only after locating: a loss of the excluded records must not go unnoticed.
    timely, late = within_times([wanted for wanted, _ in located], row_filter, client.first_offsets_from)
    if timely != [wanted for wanted, _ in located]:
        located = client.locate([(wanted, 0) for wanted in (*timely, *late)], report)
    everything = located_bytes(located)
    # The number of this machine's cores matters for local Spark, and does no harm on a cluster.
    size = split_bytes(
        everything, cores=processor_count(), sizing=sizing, min_splits=options.min_partitions, asked=options.split_bytes
    )
    sizes = [size] * len(timely) + [size * LATE_SPLITS_LARGER] * len(late)
    if any(extent.bytes > most for (_, extents), most in zip(located, sizes, strict=True) for extent in extents):
        pieces = [
            (wanted, even_bytes(total_bytes(extents), most))
            for (wanted, extents), most in zip(located, sizes, strict=True)
        ]
        located = client.locate(pieces, report)
    report.warn(_log)
    splits = plan_splits(
        located, sizes, min_splits=options.min_partitions, max_records=options.max_records_per_partition
    )
    if not options.split_partitions:
        splits = whole_partitions(splits)
    _log.info(
        "%d splits of up to %d bytes for %d bytes in %d ranges; %d bytes left out by the filter",
        len(splits), size, everything, len(located), before.total() - everything,
    )  # fmt: skip
    pace = Pace(uuid.uuid4(), options.max_bytes_per_second) if options.max_bytes_per_second else None
    pruned = before - _bytes_of_topics(located)
    return [SplitTask(split, schemas, pace, pruned.pop(split.range.key.topic, 0)) for split in splits]


def _bytes_of_topics(located: Sequence[tuple[OffsetRange, Sequence[Extent]]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for wanted, extents in located:
        found[wanted.key.topic] += total_bytes(extents)
    return found
