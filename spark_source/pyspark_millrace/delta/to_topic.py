"""Exactly-once stream of a Delta table's changes to a topic.

Inserted and updated rows become records, and deleted rows become tombstones, in the order in which the table was
changed. One task writes all changes of a key, ordered by the number of their commit. Each micro-batch is one commit to
the topic, under the query's id and the batch's number, as in every stream into topics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from millrace.errors import SchemaMismatchError, UsageError
from pyspark_millrace.columns import Metadata
from pyspark_millrace.delta.transactions import check_delta, query_id_of, quoted
from pyspark_millrace.interruption import interrupted_in_few_words
from pyspark_millrace.sink.clients import describe_topic
from pyspark_millrace.sink.options import parse_sink_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

CHANGE: Final = "_change_type"
VERSION: Final = "_commit_version"
TIME: Final = "_commit_timestamp"
_DELETE, _BEFORE = "delete", "update_preimage"
_HAS_ROW: Final = "_has_row_after_commit"


def changes_to_topic(
    spark: SparkSession,
    table: str,
    options: Mapping[str, object],
    *,
    checkpoint: str,
    key: Sequence[str],
    starting_version: int | str | None = None,
    appended_only: bool = False,
    select: Callable[[DataFrame], DataFrame] | None = None,
    table_options: Mapping[str, object] | None = None,
    trigger: Mapping[str, Any] | None = None,
    query_name: str | None = None,
) -> StreamingQuery:
    """Start a streaming query that writes the changes of a Delta table to a topic.

    ``options`` are the options of the sink, with ``topic`` among them. The first run writes the rows of the table, then
    all changes; ``starting_version`` (a number or ``latest``) begins with that commit instead. ``key`` names the
    columns that identify a row.

    A typed topic takes the table's columns by name, and a deleted row as a tombstone of its key. An opaque topic takes
    JSON of the row as value, or null for a deleted row. Its key is the key column if that is one column of text or
    bytes, and JSON of the key columns otherwise. ``select`` is applied to the changes first. It may use
    ``_change_type``, ``_commit_version`` and ``_commit_timestamp``, and must keep the first two (unless
    ``appended_only``).

    The table's property ``delta.enableChangeDataFeed`` must be true. ``appended_only`` reads a table without that
    property to which rows are only added. ``table_options`` are further options of Delta's source. ``trigger`` has the
    arguments of ``DataStreamWriter.trigger``, by default ``{"availableNow": True}``.

    Raises ``UsageError`` or ``SchemaMismatchError`` before any row is read.
    """
    check_delta(spark)
    given = {name: str(value) for name, value in options.items() if value is not None}
    parsed = parse_sink_options(given, is_stream=True)
    if parsed.topic is None:
        raise UsageError("topic: name the topic to write to")
    if not parsed.is_exactly_once:
        raise UsageError("deliveryGuarantee: a table's changes are written exactly once; leave it out")
    if not appended_only:
        _check_change_feed(spark, table)
    columns = _columns(spark, table, select, appended_only=appended_only)
    if missing := [name for name in key if name not in columns]:
        raise UsageError(f"key: {table} has no column {', '.join(missing)}")
    if not key:
        raise UsageError("key: name the columns that identify a row of the table")
    schema = describe_topic(parsed, parsed.topic).schema
    if schema is not None and (unknown := [name for name in columns if name not in schema.names]):
        raise SchemaMismatchError(
            f"topic {parsed.topic} has no column {', '.join(unknown)}: leave it out (select), or add it to the topic "
            "(millrace topics evolve)"
        )
    write = _Write(given, tuple(key), tuple(columns), schema is not None, select, appended_only)
    reader = _reader(spark.readStream, appended_only=appended_only).options(**dict(table_options or {}))
    if starting_version is not None:
        reader = reader.option("startingVersion", str(starting_version))
    writer = reader.load(table).writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    writer = writer.trigger(**(trigger or {"availableNow": True}))
    return (writer.queryName(query_name) if query_name else writer).start()


class _Write:
    """The function that Spark calls with the changes of each micro-batch."""

    def __init__(
        self,
        options: Mapping[str, str],
        key: tuple[str, ...],
        columns: tuple[str, ...],
        is_typed: bool,
        select: Callable[[DataFrame], DataFrame] | None,
        appended_only: bool,
    ) -> None:
        self._options = dict(options)
        self._key = key
        self._columns = columns
        self._is_typed = is_typed
        self._select = select
        self._appended_only = appended_only

    @interrupted_in_few_words()
    def __call__(self, changes: DataFrame, batch_id: int) -> None:
        options = dict(self._options)
        names = {name.lower() for name in options}
        if "txnappid" not in names:
            query_id = query_id_of(changes.sparkSession)
            if query_id is None:
                raise UsageError("the id of the query is unknown here, as in Spark Connect: give txnAppId=<a name>")
            options["txnAppId"] = f"spark-{query_id}"
        chosen = self._select(changes) if self._select is not None else changes
        if not self._appended_only:
            chosen = in_order(chosen, self._key)
        records = to_records(chosen, self._key, self._columns, is_typed=self._is_typed)
        writer = records.write.format("millrace").options(**options).option("txnVersion", str(batch_id))
        writer.mode("append").save()


def in_order(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """Partition changes by key and sort them by commit, without the old versions of updated rows.

    An update of key columns leaves no row with the old key, so that its old version becomes a deletion.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    by_key = [F.col(quoted(name)) for name in key]
    is_old = F.col(CHANGE) == _BEFORE
    has_row = F.max(~F.col(CHANGE).isin(_DELETE, _BEFORE)).over(Window.partitionBy(*by_key, VERSION))
    placed = changes.repartition(*by_key).withColumn(_HAS_ROW, has_row)
    after = placed.where(~is_old | ~F.col(_HAS_ROW)).drop(_HAS_ROW)
    after = after.withColumn(CHANGE, F.when(is_old, _DELETE).otherwise(F.col(CHANGE)))
    # A commit may delete a key and insert it again. The row after the commit counts.
    rank = F.when(F.col(CHANGE) == _DELETE, 0).otherwise(1)
    return after.sortWithinPartitions(VERSION, rank)


def to_records(changes: DataFrame, key: Sequence[str], columns: Sequence[str], *, is_typed: bool) -> DataFrame:
    """Return changes as the columns that the sink takes."""
    from pyspark.sql import functions as F  # noqa: N812

    deleted = F.col(CHANGE) == _DELETE if CHANGE in changes.columns else F.lit(False)
    if is_typed:
        # A tombstone has only its key; the sink ignores its other columns.
        row = [F.col(quoted(name)) for name in columns]
        return changes.select(*row, deleted.alias(Metadata.TOMBSTONE.value))
    plain = key[0] if len(key) == 1 and dict(changes.dtypes)[key[0]] in ("string", "binary") else None
    named = F.to_json(F.struct(*(F.col(quoted(name)) for name in key)))
    value = F.to_json(F.struct(*(F.col(quoted(name)) for name in columns)), {"ignoreNullFields": "false"})
    return changes.select(
        (F.col(quoted(plain)) if plain is not None else named).alias("key"),
        F.when(~deleted, value).alias("value"),
    )


def _reader(reader: Any, *, appended_only: bool) -> Any:
    reader = reader.format("delta")
    return reader if appended_only else reader.option("readChangeFeed", "true")


def _columns(
    spark: SparkSession, table: str, select: Callable[[DataFrame], DataFrame] | None, *, appended_only: bool
) -> list[str]:
    """Return the columns to write, without those that the change feed adds."""
    rows = _reader(spark.readStream, appended_only=appended_only).load(table)
    if select is not None:
        rows = select(rows)
    if not appended_only and (missing := {CHANGE, VERSION} - set(rows.columns)):
        raise UsageError(f"select must keep the column {', '.join(sorted(missing))}")
    return [name for name in rows.columns if name not in (CHANGE, VERSION, TIME)]


def _check_change_feed(spark: SparkSession, table: str) -> None:
    from delta.tables import DeltaTable

    if not DeltaTable.isDeltaTable(spark, table):
        raise UsageError(f"{table} is not a Delta table: correct the path")
    properties = DeltaTable.forPath(spark, table).detail().head()["properties"]
    if properties.get("delta.enableChangeDataFeed", "false").lower() != "true":
        raise UsageError(
            f"{table} has no change data feed: run ALTER TABLE delta.`{table}` SET TBLPROPERTIES "
            "(delta.enableChangeDataFeed = true) and start with the next version; if the table only gets new rows, "
            "set appended_only"
        )
