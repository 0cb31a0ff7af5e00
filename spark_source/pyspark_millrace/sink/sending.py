"""Sending of a task's Arrow batches, in larger tables, by topic.

Rows of one topic and partition keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import SchemaMismatchError
from pyspark_millrace.sink.columns import Route, route_to, topic_column

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from millrace.clients import Producer
    from pyspark_millrace.sink.options import SinkOptions

TABLE_ROWS: Final = 100_000
TABLE_BYTES: Final = 8 * 2**20
"""The rows or bytes at which a table is sent. Each partition then gets a batch that is large compared with its header.
The producer sends one table while the next is collected. Spark passes 10,000 rows at a time.
"""


class TaskSender:
    """Sender of one task's rows; ``rows`` counts them."""

    def __init__(self, producer: Producer, options: SinkOptions, schema: StructType) -> None:
        self._producer = producer
        self._topic = options.topic
        self._include_headers = options.include_headers
        self._schema = schema
        self._topic_from = topic_column(schema, has_option=options.topic is not None)
        self._routes: dict[str, Route] = {}
        self._sent: list[Any] = []
        self.rows = 0

    def send(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Send all rows. Raises ``SchemaMismatchError`` with the column, and errors of the producer."""
        for table in gathered(batches):
            for topic, rows in self._by_topic(table):
                self._sent.append(self._producer.send_table(topic, self._route(topic).apply(rows)))
            self.rows += table.num_rows

    def wait(self) -> None:
        """Wait for the acknowledgement of all records; raises the first error."""
        self._producer.flush()
        for future in self._sent:
            future.result()

    def _by_topic(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        if self._topic_from is None:
            assert self._topic is not None
            yield self._topic, table
        else:
            yield from divided_by_topic(table, self._topic_from)

    def _route(self, topic: str) -> Route:
        route = self._routes.get(topic)
        if route is None:
            route = self._routes[topic] = route_to(
                topic,
                self._producer.describe_topic(topic).schema,
                self._schema,
                topic_from=self._topic_from,
                include_headers=self._include_headers,
            )
        return route


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combine batches into tables worth sending, without copying."""
    waiting: list[pa.RecordBatch] = []
    rows, size_bytes = 0, 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= TABLE_ROWS or size_bytes >= TABLE_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size_bytes = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def divided_by_topic(table: pa.Table, column: str) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each topic, in order. Raises ``SchemaMismatchError`` for a row without a topic."""
    topics = table.column(column).combine_chunks().dictionary_encode()
    if isinstance(topics, pa.ChunkedArray):
        topics = topics.combine_chunks()
    if topics.null_count:
        raise SchemaMismatchError(
            f"null topic present in the data (column {column}): use the option topic for setting a default topic"
        )
    names = topics.dictionary.to_pylist()
    for number, name in enumerate(names):
        yield name, table if len(names) == 1 else table.filter(pc.equal(topics.indices, number))
