"""Exactly-once load of a data set into its topic.

The partition of a row depends only on its key, and the loader is the topic's only writer. So each partition must hold
the first rows of its share, in order. The partition's end offset is the number of these rows. An interrupted load
resumes from there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.clients import Admin, Producer, TopicPartition
from millrace.clients.producing.partitioner import partitions_of
from millrace.errors import TopicExistsError, UsageError
from millrace.schemas import parse_schema
from millrace_streams.demo.datasets import Dataset

_CHUNK_ROWS = 16_384
_ANSWER_MS_MAX = 10_000


def ensure_topic(admin: Admin, dataset: Dataset, partitions: int) -> None:
    """Create the data set's typed topic if it does not exist."""
    try:
        admin.create_topic(
            dataset.topic,
            partitions=partitions,
            schema=parse_schema(dataset.schema_file),
            key_columns=[dataset.key_column],
            configs={"retention.ms": "-1"},
        )
    except TopicExistsError:
        return


def load(bootstrap_servers: str, dataset: Dataset, on_rows: Callable[[int], None]) -> int:
    """Append the rows that the topic does not hold yet; returns their number.

    ``on_rows`` is called with the number of durable rows as they are added, first with those already in the topic.
    Raises ``UsageError`` if the topic holds more rows than the data set, for example after a demo with more ``--rows``.
    Raises the error of a batch that a broker refuses.
    """
    with Admin({"bootstrap.servers": bootstrap_servers}) as admin:
        partitions = len(admin.describe_topic(dataset.topic).partitions)
        ends = admin.list_offsets({TopicPartition(dataset.topic, p): "latest" for p in range(partitions)})
    held = np.array([ends[TopicPartition(dataset.topic, p)].offset for p in range(partitions)])
    share = partitions_of(dataset.table.select([dataset.key_column]), partitions)
    missing = pa.array(_rank_within(share, partitions) >= held[share])
    table, share = dataset.table.filter(missing), pc.filter(pa.array(share), missing)
    found = dataset.table.num_rows - table.num_rows
    if found != held.sum():
        raise UsageError(
            f"topic {dataset.topic} holds {held.sum()} rows, more than the {dataset.table.num_rows} to be loaded: "
            "choose another --work-dir, or delete this one"
        )
    on_rows(found)
    # The broker is on this machine: if it does not answer for this time, it has died.
    waiting = {"request.timeout.ms": _ANSWER_MS_MAX, "delivery.timeout.ms": 2 * _ANSWER_MS_MAX}
    with Producer({"bootstrap.servers": bootstrap_servers, **waiting}) as producer:
        for start in range(0, table.num_rows, _CHUNK_ROWS):
            chunk, target = table.slice(start, _CHUNK_ROWS), share.slice(start, _CHUNK_ROWS)
            sent = producer.send_table(dataset.topic, chunk, partition=target, timestamps=dataset.time_column)
            producer.flush()
            sent.result()  # raises the error of a refused batch, which flush does not
            on_rows(chunk.num_rows)
    return int(table.num_rows)


def _rank_within(share: np.ndarray, partitions: int) -> np.ndarray:
    """Return for each row the number of earlier rows of the same partition."""
    rank = np.empty(len(share), np.int64)
    for partition in range(partitions):
        rows = np.flatnonzero(share == partition)
        rank[rows] = np.arange(len(rows))
    return rank
