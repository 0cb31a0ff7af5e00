"""Entry point of ``format("millrace")``, which Spark finds.

Spark creates a ``DefaultSource`` from the options in a short-lived Python process, and asks it for the schema. Then
Spark sends the pickled instance to the processes that plan and run the query. So the topics and ids that ``schema()``
found travel with it: the query reads the topics of its schema, or fails.

Every Spark session that searches for Python sources imports this module, so it imports everything else on use.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_millrace.batch import BatchReader
    from pyspark_millrace.decoding.plan import DecodePlan
    from pyspark_millrace.options.decoding import DecodeOptions
    from pyspark_millrace.options.source import SourceOptions
    from pyspark_millrace.planning.broker_client import BrokerClient
    from pyspark_millrace.planning.topics import TopicSet
    from pyspark_millrace.reading.layout import ReadLayout
    from pyspark_millrace.sink.writer import TopicBatchWriter, TopicStreamWriter
    from pyspark_millrace.stream import StreamReader

_SAYS_WHAT_TO_READ = frozenset(("subscribe", "subscribepattern", "assign"))


class DefaultSource(DataSource):  # type: ignore[misc]  # pyspark is not typed here
    """Data source ``millrace`` (Spark's ``DataSource``).

    The source shows topics of a millrace cluster as a table, for batch and streaming reads and writes.
    ``pyspark_millrace.options.source`` and ``pyspark_millrace.sink.options`` describe the options. Wrong options raise
    ``UsageError`` before a query starts.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._values = dict(options)
        self._parsed: SourceOptions | None = None
        self._topics: TopicSet | None = None
        self._decoding: DecodePlan | None = None
        if any(name.lower() in _SAYS_WHAT_TO_READ for name in options):
            self._parsed = self._options  # report wrong options now, not at the first read

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "millrace"

    @property
    def _options(self) -> SourceOptions:
        """Options of a read, parsed on use. Only Spark's next call shows whether this is a read or a write."""
        if self._parsed is None:
            from pyspark_millrace.options.source import parse_options

            self._parsed = parse_options(self._values)
        return self._parsed

    @property
    def _rows_schema(self) -> str | None:
        """DDL of the output if it is not the records themselves."""
        from pyspark_millrace.options.source import REFERENCE_DDL

        return REFERENCE_DDL if self._options.by_reference else self._options.transform_schema

    def schema(self) -> StructType | str:
        """Return the schema of the topics, or that of the transformation."""
        if self._rows_schema is not None:
            return self._rows_schema
        return self._layout().spark_schema()

    def reader(self, schema: StructType) -> BatchReader:
        """Create the batch reader.

        It takes filters only if Spark offers them, because Spark reports an error otherwise. It also requires the
        option ``pushFilters``, because Spark keeps pushed filters for all later uses of the DataFrame.
        """
        from millrace.errors import UsageError
        from pyspark_millrace.batch import BatchReader, FilteringBatchReader, spark_offers_filters

        if self._options.by_reference:
            raise UsageError("byReference=true: a batch is read by its own tasks; leave it out, or use readStream")
        layout = self._filtered(self._layout(schema))
        pushes = self._options.push_filters and spark_offers_filters()
        kind = FilteringBatchReader if pushes else BatchReader
        return kind(self._options, self._resolved(), layout)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802  Spark's name
        """Create the micro-batch reader."""
        from pyspark_millrace.stream import StreamReader

        def look_up() -> tuple[TopicSet, ReadLayout]:
            import pyspark_millrace.planning.broker_client  # noqa: F401 - planning needs it soon, and it loads slowly

            return self._resolved(), self._filtered(self._layout(schema))

        return StreamReader(self._options, look_up)

    def writer(self, schema: StructType, overwrite: bool) -> TopicBatchWriter:
        """Create the batch writer. Topics support only append."""
        from millrace.errors import UsageError
        from pyspark_millrace.sink.options import parse_sink_options
        from pyspark_millrace.sink.writer import TopicBatchWriter, check_write

        if overwrite:
            raise UsageError("save mode Overwrite not allowed for millrace: allowed is Append, .mode('append')")
        options = parse_sink_options(self._values, is_stream=False)
        check_write(options, schema)
        return TopicBatchWriter(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:  # noqa: N802  Spark's name
        """Create the micro-batch writer. In output mode Complete each micro-batch appends all rows, as in Kafka's
        sink.
        """
        from pyspark_millrace.sink.options import parse_sink_options
        from pyspark_millrace.sink.writer import TopicStreamWriter, check_write

        options = parse_sink_options(self._values, is_stream=True)
        check_write(options, schema)
        return TopicStreamWriter(options, schema)

    def _resolved(self) -> TopicSet:
        if self._topics is None:
            from pyspark_millrace.planning.broker_client import BrokerClient

            with BrokerClient.connect(self._options) as client:
                topics = client.resolve(self._options.subscription)
                if self._options.decode is not None:
                    self._decoding = self._planned_decoding(self._options.decode, topics, client)
                self._topics = topics
        return self._topics

    @staticmethod
    def _planned_decoding(options: DecodeOptions, topics: TopicSet, client: BrokerClient) -> DecodePlan:
        from millrace.errors import UsageError
        from pyspark_millrace.decoding.plan import plan_decoding

        if topics.schema is not None:
            raise UsageError(
                f"decode: {topics.description} is typed, so its records are already decoded: leave decode out"
            )
        return plan_decoding(options, client, frozenset(topics.topic_ids))

    def _filtered(self, layout: ReadLayout) -> ReadLayout:
        """Return the layout with the row filter of the option ``filter``."""
        if self._options.filter is None:
            return layout
        from dataclasses import replace

        from pyspark_millrace.reading.layout import option_filter

        topics = self._resolved()
        found = option_filter(self._options.filter, topics.schema, layout, topics=topics.description)
        return replace(layout, row_filter=found)

    def _layout(self, asked: StructType | None = None) -> ReadLayout:
        """Return the columns to read: those of the option, of the user's or Spark's schema, or all."""
        from millrace.errors import UsageError
        from pyspark_millrace.reading.layout import default_layout, layout_of_user_schema, named_layout

        topics = self._resolved()
        options = self._options
        if asked is not None and self._rows_schema is None and not options.columns:
            return layout_of_user_schema(topics.schema, asked, topics=topics.description, decoding=self._decoding)
        if not options.columns:
            return default_layout(
                topics.schema,
                include_headers=options.include_headers,
                include_metadata=options.include_metadata,
                decoding=self._decoding,
            )
        layout = named_layout(topics.schema, options.columns, topics=topics.description, decoding=self._decoding)
        if asked is not None and self._rows_schema is None and asked != layout.spark_schema():
            raise UsageError(
                f"schema {asked.simpleString()} and columns={','.join(options.columns)} contradict each other: give one"
            )
        return layout
