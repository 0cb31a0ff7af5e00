"""The entry that Spark finds: ``format("millrace")``.

Spark creates a ``DefaultSource`` from the options in a short-lived Python process, asks it for the schema, and sends
the pickled instance to the processes that plan and run the query. So what ``schema()`` found out (the topics and their
ids) travels with it: the query reads the topics that its schema was taken from, or fails.

This module is imported by every Spark session that looks for Python sources: everything else is imported on use.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_millrace.batch import BatchReader
    from pyspark_millrace.columns import Layout
    from pyspark_millrace.stream import StreamReader
    from pyspark_millrace.topics import TopicSet


class DefaultSource(DataSource):  # type: ignore[misc]  # pyspark is not typed here
    """Topics of a millrace cluster as a table, for ``spark.read`` and ``spark.readStream``.

    The options are those of ``pyspark_millrace.options``; wrong ones raise ``UsageError`` here, before anything starts.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        from pyspark_millrace.options import parse_options

        self._options = parse_options(options)
        self._topics: TopicSet | None = None

    @classmethod
    def name(cls) -> str:
        """What ``format(...)`` takes."""
        return "millrace"

    def schema(self) -> StructType | str:
        """Ask the broker what the topics hold, unless a transformation says what comes out."""
        if self._options.transform_schema is not None:
            return self._options.transform_schema
        return self._layout().spark_schema()

    def reader(self, schema: StructType) -> BatchReader:
        """The batch reader. It offers no filter pushdown: in a session where that is off, offering it is an error."""
        from pyspark_millrace.batch import BatchReader

        return BatchReader(self._options, self._resolved(), self._layout(schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802  Spark's name
        """The micro-batch reader."""
        from pyspark_millrace.stream import StreamReader

        return StreamReader(self._options, self._resolved(), self._layout(schema))

    def _resolved(self) -> TopicSet:
        if self._topics is None:
            from pyspark_millrace.topics import Cluster

            with Cluster.connect(self._options) as cluster:
                self._topics = cluster.resolve(self._options.subscription)
        return self._topics

    def _layout(self, asked: StructType | None = None) -> Layout:
        """The columns to read: named by the option, by the schema that the user or Spark gives, or all of them."""
        from millrace.errors import UsageError
        from pyspark_millrace.columns import default_layout, layout_of_user_schema, named_layout

        topics = self._resolved()
        options = self._options
        if asked is not None and options.transform_schema is None and not options.columns:
            return layout_of_user_schema(topics.schema, asked, topics=topics.description)
        if not options.columns:
            return default_layout(
                topics.schema, include_headers=options.include_headers, include_metadata=options.include_metadata
            )
        layout = named_layout(topics.schema, options.columns, topics=topics.description)
        if asked is not None and options.transform_schema is None and asked != layout.spark_schema():
            raise UsageError(
                f"schema {asked.simpleString()} and columns={','.join(options.columns)} contradict each other: give one"
            )
        return layout
