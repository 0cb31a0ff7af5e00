"""Builder of batches from fitted rows by the producer's options.

All sending paths use it. This module makes all partition decisions: explicit partitions, custom partitioners, keys
and the sticky partition.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from millrace.clients.model import TopicDescription
from millrace.clients.producing.batching import (
    PARTITION,
    BuiltBatch,
    Fitted,
    RefusedRow,
    build_batches,
    check_row_sizes,
    divide,
)
from millrace.clients.producing.partitioning import Partitioner, StickyPartition, check_choice
from millrace.config.client import ProducerConfig
from millrace.records import Compression


class BatchMaker:
    """Builder of batches from rows that fit their topic. Thread safe, but the caller keeps the order of a topic."""

    def __init__(
        self,
        config: ProducerConfig,
        partitioner: Partitioner | None,
        choose: Callable[[TopicDescription], int | None] = lambda topic: None,
    ) -> None:
        self._choose = choose
        self._batch_bytes = config.batch_size
        self._max_bytes = config.max_request_size
        self._compression = Compression.parse(config.compression_type.value)
        self._ignore_keys = config.partitioner_ignore_keys
        self._partitioner = partitioner
        self._sticky: dict[str, StickyPartition] = {}
        self._lock = threading.Lock()

    def batches(self, fitted: Fitted, *, number_rows: bool) -> Iterator[BuiltBatch | RefusedRow]:
        """Yield the batches of the rows, in order per partition, with row numbers if ``number_rows``."""
        parts = divide(
            fitted,
            self._sticky_of(fitted.topic),
            self._batch_bytes,
            number_rows=number_rows,
            ignore_keys=self._ignore_keys,
        )
        for partition, part, numbers in parts:
            yield from build_batches(partition, part, numbers, compression=self._compression, max_bytes=self._max_bytes)

    def check_sizes(self, fitted: Fitted) -> None:
        """Raise ``MessageTooLargeError`` if a row makes a batch above ``max.request.size``."""
        check_row_sizes(fitted, compression=self._compression, max_bytes=self._max_bytes)

    def is_divided(self, fitted: Fitted) -> bool:
        """Return whether adjacent rows may go to different partitions."""
        if fitted.partition is not None:
            return False
        has_keys = bool(fitted.topic.key_columns) or "key" in fitted.columns.column_names
        return PARTITION in fitted.beside or (has_keys and not self._ignore_keys)

    def choose(self, fitted: Fitted) -> Fitted:
        """Let the custom partitioner choose for the rows of a table that name no partition."""
        if self._partitioner is None or fitted.partition is not None or not fitted.num_rows:
            return fitted
        chosen = np.asarray(self._partitioner.partition_table(fitted.columns, fitted.topic), np.int32)
        for partition in np.unique(chosen).tolist():
            check_choice(self._partitioner, fitted.topic, partition)
        if (named := fitted.beside.get(PARTITION)) is not None:
            numbers = named.to_numpy()
            chosen = np.where(numbers >= 0, numbers, chosen).astype(np.int32)
        return replace(fitted, beside={**fitted.beside, PARTITION: pa.chunked_array([pa.array(chosen)])})

    def _sticky_of(self, topic: TopicDescription) -> StickyPartition:
        sticky = self._sticky.get(topic.name)
        if sticky is None:
            with self._lock:
                sticky = self._sticky.setdefault(topic.name, StickyPartition(self._batch_bytes, choose=self._choose))
        return sticky
