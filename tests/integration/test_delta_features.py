"""Tests of direct ingest and Delta's writer features.

Each feature is handled as Spark handles it, or the table is refused. Spark creates the tables and reads the results. A
refused table is unchanged.
"""

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from millrace.errors import UsageError
from pyspark_millrace.delta.data_files import FILE_SCHEMA, DataFiles
from pyspark_millrace.delta.table import MicroBatch, NewFile, TargetTable
from pyspark_millrace.delta.transactions import create_if_missing

pytestmark = pytest.mark.spark

FIELDS = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ("n", "m")]
SCHEMA = {"type": "struct", "fields": FIELDS}
ARROW = pa.schema([("n", pa.int64()), ("m", pa.int64())])


def create(spark, directory, columns="n BIGINT, m BIGINT", properties=None, more=""):
    given = ", ".join(f"'{name}' = '{value}'" for name, value in (properties or {}).items())
    spark.sql(
        f"CREATE TABLE delta.`{directory}` ({columns}) USING delta {more} "
        + (f"TBLPROPERTIES ({given})" if given else "")
    )
    return directory


def built(spark, directory, **column):
    from delta.tables import DeltaTable as Table

    builder = Table.create(spark).location(str(directory)).addColumn("n", "BIGINT")
    builder.addColumn("m", "BIGINT", **column).execute()
    return directory


def add(directory, number, rows, schema=SCHEMA, arrow=ARROW):
    """Write the rows of a batch as direct ingest does, without a stream."""
    table = TargetTable(str(directory), schema, (), merge=False)
    files = DataFiles(str(directory), arrow, table.partition_by, table.indexed_columns)
    (described,) = files(iter([pa.RecordBatch.from_pylist(rows, arrow)]))
    assert described.schema == FILE_SCHEMA
    (row,) = described.to_pylist()
    file = NewFile(**row | {"partition_values": dict(row["partition_values"])})
    return table.commit(MicroBatch("query", number), [file])


TAKEN = {
    "deletionVectors": {"delta.enableDeletionVectors": "true"},
    "changeDataFeed": {"delta.enableChangeDataFeed": "true"},
    "appendOnly": {"delta.appendOnly": "true"},
    "v2Checkpoint": {"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "2"},
    "invariants": {"delta.feature.invariants": "supported"},
    "timestampNtz": {"delta.feature.timestampNtz": "supported"},
    "checkConstraints without one": {"delta.feature.checkConstraints": "supported"},
    "generatedColumns without one": {"delta.feature.generatedColumns": "supported"},
    "columnMapping by none": {"delta.feature.columnMapping": "supported"},
}


@pytest.mark.parametrize("feature", TAKEN)
def test_tables_with_supported_features_are_written_as_by_spark(spark, tmp_path, feature):
    directory = create(spark, tmp_path / "t", properties=TAKEN[feature])
    spark.sql(f"INSERT INTO delta.`{directory}` VALUES (0, 0), (-1, 0), (-2, 0)")
    if feature != "appendOnly":
        spark.sql(f"DELETE FROM delta.`{directory}` WHERE n = -1")
    expected = {0, -2} | ({-1} if feature == "appendOnly" else set())
    for number in range(3):
        assert add(directory, number, [{"n": number + 1, "m": None}]) is not None
    expected |= {1, 2, 3}
    found = spark.read.format("delta").load(str(directory))
    assert {row["n"] for row in found.collect()} == expected
    if feature == "deletionVectors":
        # Added rows can be deleted, as earlier rows can.
        spark.sql(f"DELETE FROM delta.`{directory}` WHERE n = 2")
        assert {row["n"] for row in spark.read.format("delta").load(str(directory)).collect()} == expected - {2}
        assert add(directory, 3, [{"n": 4, "m": None}]) is not None
    if feature == "changeDataFeed":
        feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
        changes = {(row["n"], row["_change_type"]) for row in feed.load(str(directory)).collect()}
        assert changes == {(n, "insert") for n in (0, -1, -2, 1, 2, 3)} | {(-1, "delete")}
    if feature == "v2Checkpoint":
        assert add(directory, 2, [{"n": 9, "m": None}]) is None, "the checkpoint names the batch"


PARTED = [
    ("TIMESTAMP", "timestamp", pa.timestamp("us", "UTC"), "TIMESTAMP'2026-01-31 23:00:00.000007Z'"),
    ("TIMESTAMP_NTZ", "timestamp_ntz", pa.timestamp("us"), "TIMESTAMP_NTZ'2026-01-31 23:00:00.5'"),
    ("DECIMAL(10,2)", "decimal(10,2)", pa.decimal128(10, 2), "CAST(1000.5 AS DECIMAL(10,2))"),
    ("DOUBLE", "double", pa.float64(), "1e20D"),
    ("DOUBLE", "double", pa.float64(), "CAST('NaN' AS DOUBLE)"),
    ("DOUBLE", "double", pa.float64(), "CAST('-Infinity' AS DOUBLE)"),
    ("FLOAT", "float", pa.float32(), "CAST(0.1 AS FLOAT)"),
]


@pytest.mark.parametrize(("sql", "name", "arrow", "literal"), PARTED)
def test_partition_values_of_times_decimals_and_floats_equal_those_of_spark(spark, tmp_path, sql, name, arrow, literal):
    directory = create(spark, tmp_path / "t", f"n BIGINT, p {sql}", more="PARTITIONED BY (p)")
    spark.sql(f"INSERT INTO delta.`{directory}` VALUES (1, {literal})")
    value = DeltaTable(str(directory)).to_pyarrow_table().column("p")[0].as_py()
    schema = {"type": "struct", "fields": [FIELDS[0], FIELDS[1] | {"name": "p", "type": name}]}
    written = pa.schema([("n", pa.int64()), ("p", arrow)])
    assert add(directory, 0, [{"n": 2, "p": value}], schema, written) is not None
    found = spark.sql(f"SELECT n FROM delta.`{directory}` WHERE p = {literal} ORDER BY n").collect()
    assert [row["n"] for row in found] == [1, 2], "both are the same partition value to Spark"
    values = DeltaTable(str(directory)).to_pyarrow_table().column("p").to_pylist()
    assert len({str(each) for each in values}) == 1, "to delta-rs as well"


REFUSED = {
    "checkConstraints": (
        lambda spark, to: spark.sql(f"ALTER TABLE delta.`{create(spark, to)}` ADD CONSTRAINT positive CHECK (n > 0)"),
        r"has the constraint positive \(n > 0\)",
    ),
    "generatedColumns": (lambda spark, to: built(spark, to, generatedAlwaysAs="n + 1"), "column m is generated"),
    "identityColumns": (lambda spark, to: built(spark, to, generatedByDefaultAs=identity()), "column m is an identity"),
    "columnMapping": (
        lambda spark, to: create(spark, to, properties={"delta.columnMapping.mode": "name"}),
        "maps its columns by name",
    ),
    "rowTracking": (lambda spark, to: create(spark, to, properties={"delta.enableRowTracking": "true"}), "rowTracking"),
    "inCommitTimestamp": (
        lambda spark, to: create(spark, to, properties={"delta.enableInCommitTimestamps": "true"}),
        "inCommitTimestamp",
    ),
    "clustering": (lambda spark, to: create(spark, to, more="CLUSTER BY (n)"), "clustering"),
    "identityColumns without one": (
        lambda spark, to: create(spark, to, properties={"delta.feature.identityColumns": "supported"}),
        "identityColumns",
    ),
    "vacuumProtocolCheck": (
        lambda spark, to: create(spark, to, properties={"delta.feature.vacuumProtocolCheck": "supported"}),
        "vacuumProtocolCheck",
    ),
    "domainMetadata": (
        lambda spark, to: create(spark, to, properties={"delta.feature.domainMetadata": "supported"}),
        "domainMetadata",
    ),
    "allowColumnDefaults": (
        lambda spark, to: create(
            spark, to, "n BIGINT, m BIGINT DEFAULT 3", {"delta.feature.allowColumnDefaults": "supported"}
        ),
        "allowColumnDefaults",
    ),
    "typeWidening": (
        lambda spark, to: create(spark, to, properties={"delta.enableTypeWidening": "true"}),
        "typeWidening",
    ),
    "icebergCompatV2": (
        lambda spark, to: create(
            spark, to, properties={"delta.enableIcebergCompatV2": "true", "delta.columnMapping.mode": "name"}
        ),
        "maps its columns by name",
    ),
    "variantType": (lambda spark, to: create(spark, to, "n BIGINT, m BIGINT, v VARIANT"), "variantType"),
}


def identity():
    from delta.tables import IdentityGenerator

    return IdentityGenerator()


@pytest.mark.parametrize("feature", REFUSED)
def test_tables_with_unsupported_features_are_refused(spark, tmp_path, feature):
    make, problem = REFUSED[feature]
    make(spark, tmp_path / "t")
    log = sorted((tmp_path / "t" / "_delta_log").glob("*.json"))
    with pytest.raises(UsageError, match=rf"{problem}.*: let Spark write this table"):
        add(tmp_path / "t", 0, [{"n": 1, "m": 2}])
    assert sorted((tmp_path / "t" / "_delta_log").glob("*.json")) == log


def test_not_null_columns_are_kept_by_the_types_of_what_is_ingested(spark, tmp_path):
    directory = create(spark, tmp_path / "t", "n BIGINT NOT NULL, m BIGINT")
    required = {"type": "struct", "fields": [FIELDS[0] | {"nullable": False}, FIELDS[1]]}
    assert TargetTable(str(directory), required, (), merge=False).partition_by == ()
    assert DeltaTable(str(directory)).version() == 0


@pytest.mark.parametrize("columns", ["`a b` BIGINT", "s STRUCT<`a b`: BIGINT>", "s ARRAY<STRUCT<`a,b`: BIGINT>>"])
def test_a_table_with_names_that_parquet_files_do_not_have_is_not_created(spark, tmp_path, columns):
    from pyspark.errors import AnalysisException
    from pyspark.sql.types import StructType

    with pytest.raises(AnalysisException, match="DELTA_INVALID_CHARACTERS_IN_COLUMN_NAMES"):
        create_if_missing(spark, str(tmp_path / "t"), StructType.fromDDL(columns))
    assert not DeltaTable.is_deltatable(str(tmp_path / "t"))
