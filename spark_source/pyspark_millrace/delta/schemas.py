"""Check of written rows against a Delta table's columns.

If the rows do not fit, the error names the column and both types. Delta checks an append before it writes, and its
error is replaced by a clearer one. A MERGE casts any type that it can, even text to numbers, and fails at the first
value that it cannot cast. Therefore types of different kinds are refused before a MERGE begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millrace.errors import SchemaMismatchError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType


@contextmanager
def mismatch_explained(spark: SparkSession, path: str, schema: StructType, *, merge_schema: bool) -> Iterator[None]:
    """Raise ``SchemaMismatchError`` instead of Spark's error when rows of ``schema`` do not fit the table."""
    from pyspark.errors import AnalysisException

    try:
        yield
    except AnalysisException as error:
        problem = _mismatch(spark, path, schema, merge_schema=merge_schema, fits=_is_same)
        if problem is None:
            raise
        raise SchemaMismatchError(problem) from error


def check_merged(spark: SparkSession, path: str, schema: StructType, *, merge_schema: bool) -> None:
    """Raise ``SchemaMismatchError`` when the table lacks columns that a MERGE writes, or has types of other kinds."""
    problem = _mismatch(spark, path, schema, merge_schema=merge_schema, fits=_is_of_same_kind)
    if problem is not None:
        raise SchemaMismatchError(problem)


def _mismatch(
    spark: SparkSession,
    path: str,
    schema: StructType,
    *,
    merge_schema: bool,
    fits: Callable[[DataType, DataType], bool],
) -> str | None:
    from delta.tables import DeltaTable

    # Spark compares names without regard to case.
    there = {field.name.lower(): field.dataType for field in DeltaTable.forPath(spark, path).toDF().schema}
    for field in schema:
        kept = there.get(field.name.lower())
        if kept is not None and not fits(field.dataType, kept):
            return (
                f"{path}: column {field.name} is {kept.simpleString()} in the table and "
                f"{field.dataType.simpleString()} in the written rows: cast it (select), or choose another table"
            )
    missing = [field.name for field in schema if field.name.lower() not in there]
    if missing and not merge_schema:
        return f"{path} has no column {', '.join(missing)}: allow columns to be added (merge_schema), or drop them"
    return None


def _is_same(ours: DataType, theirs: DataType) -> bool:
    # Nullability is ignored, because it depends on the rows and not on the types.
    return bool(ours.simpleString() == theirs.simpleString())


def _is_of_same_kind(ours: DataType, theirs: DataType) -> bool:
    from pyspark.sql import types

    kinds = (
        types.NumericType,
        (types.DateType, types.TimestampType, types.TimestampNTZType),
        # Delta compares the fields of these.
        types.StructType,
        types.ArrayType,
        types.MapType,
    )
    if isinstance(theirs, types.StringType):
        return isinstance(ours, types.AtomicType)
    return _is_same(ours, theirs) or any(isinstance(ours, kind) and isinstance(theirs, kind) for kind in kinds)
