"""Rows of a dead-letter topic, with each bad record's origin and error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REASON_HEADER: Final = "__millrace.errors.reason"
TOPIC_HEADER: Final = "__millrace.errors.topic"
PARTITION_HEADER: Final = "__millrace.errors.partition"
OFFSET_HEADER: Final = "__millrace.errors.offset"
_HEADERS: Final = (REASON_HEADER, TOPIC_HEADER, PARTITION_HEADER, OFFSET_HEADER)


def dead_letters(records: DataFrame) -> DataFrame:
    """Select the dead letters of a topic that was read with ``includeHeaders``.

    Columns: ``topic string, partition int, offset bigint`` identify the bad record; ``reason string`` is the error;
    ``key binary, value binary, headers array<struct<key: string, value: binary>>`` are the original ones; ``timestamp``
    is the time of the dead letter. Records that are no dead letters are left out.
    """
    from pyspark.sql import functions as F  # noqa: N812

    def said(name: str) -> Column:
        # The last header counts, because the record may have been a dead letter before.
        return F.element_at(F.filter("headers", lambda header: header["key"] == name), -1)["value"].cast("string")

    return records.where(F.exists("headers", lambda header: header["key"] == OFFSET_HEADER)).select(
        said(TOPIC_HEADER).alias("topic"),
        said(PARTITION_HEADER).cast("int").alias("partition"),
        said(OFFSET_HEADER).cast("bigint").alias("offset"),
        said(REASON_HEADER).alias("reason"),
        "key",
        "value",
        F.filter("headers", lambda header: ~header["key"].isin(*_HEADERS)).alias("headers"),
        "timestamp",
    )
