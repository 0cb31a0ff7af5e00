"""Tests of direct merges of small tables by the driver.

Other merges are left to Spark.
"""

import json
import threading
from datetime import date

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T  # noqa: N812

from millrace.errors import EnvironmentProblemError
from pyspark_millrace.delta import direct_merge
from pyspark_millrace.delta.direct_merge import DirectMerge, grouped, is_simple, within
from pyspark_millrace.delta.rewriting import Changes
from pyspark_millrace.delta.transactions import MERGED, Transaction

NO_SPARK = None
WRITTEN = T.StructType([T.StructField("id", T.LongType()), T.StructField("word", T.StringType())])


def opened(directory):
    return DirectMerge(DeltaTable(str(directory)), directory)


def table_of(rows):
    return pa.table({"id": pa.array([row[0] for row in rows], pa.int64()), "word": [row[1] for row in rows]})


def changes(*rows, guard=None):
    """Create rows of id and word. A row without a word deletes."""
    deleted = pa.array([row[1] is None for row in rows], pa.bool_())
    words = pa.array([row[1] for row in rows], pa.string())
    table = pa.table({"id": pa.array([row[0] for row in rows], pa.int64()), "word": words, "deleted": deleted})
    return Changes.of(table, "deleted", ["id"], guard)


def merge(directory, number, *rows, application="query"):
    transaction = Transaction(application=application, version=number)
    return opened(directory).merge(NO_SPARK, WRITTEN, changes(*rows), transaction)


def rows_in(directory):
    found = DeltaTable(str(directory)).to_pyarrow_table().select(["id", "word"]).to_pydict()
    return sorted(zip(found["id"], found["word"], strict=True), key=str)


@pytest.fixture
def table(tmp_path):
    """Create a table of two files, with ids 0..9 and 10..19."""
    for first in (0, 10):
        write_deltalake(str(tmp_path), table_of([(first + each, "old") for each in range(10)]), mode="append")
    return tmp_path


def actions(directory, version):
    return [json.loads(line) for line in (directory / "_delta_log" / f"{version:020}.json").read_text().splitlines()]


def test_only_the_files_that_hold_a_key_are_exchanged_in_one_commit(table):
    before = set(DeltaTable(str(table)).file_uris())
    added = merge(table, 7, (3, "new"), (4, None), (99, "more"), (98, None))
    expected = [(each, "old") for each in range(20) if each not in (3, 4)] + [(3, "new"), (99, "more")]
    assert rows_in(table) == sorted(expected, key=str)
    assert DeltaTable(str(table)).version() == 2
    assert len(before & set(DeltaTable(str(table)).file_uris())) == 1
    found = actions(table, 2)
    (info,) = (each["commitInfo"] for each in found if "commitInfo" in each)
    assert (info["isBlindAppend"], info["userMetadata"]) == (False, MERGED)
    assert [each["txn"]["version"] for each in found if "txn" in each] == [7]
    assert added == sum(each["add"]["size"] for each in found if "add" in each)


def test_a_batch_that_is_there_already_changes_nothing(table):
    merge(table, 7, (3, "new"))
    assert merge(table, 7, (3, "newer")) == merge(table, 6, (3, "older")) == 0
    assert dict(rows_in(table))[3] == "new"
    assert merge(table, 0, (3, "of another query"), application="other")
    assert dict(rows_in(table))[3] == "of another query"


def test_a_batch_without_changes_is_committed_too(table):
    assert merge(table, 1, (99, None)) == 0
    assert merge(table, 2) == 0
    assert DeltaTable(str(table)).transaction_version("query") == 2
    assert len(rows_in(table)) == 20


def test_a_row_that_another_writer_adds_meanwhile_is_updated_and_not_inserted_twice(table, monkeypatch):
    original, others = (
        DirectMerge._commit,
        [lambda: write_deltalake(str(table), table_of([(50, "theirs")]), mode="append")],
    )

    def commit(self, *arguments):
        if others:
            others.pop()()
        return original(self, *arguments)

    monkeypatch.setattr(DirectMerge, "_commit", commit)
    merge(table, 0, (50, "ours"), (3, "ours"))
    assert [row for row in rows_in(table) if row[1] != "old"] == [(3, "ours"), (50, "ours")]
    files = {path.name for path in table.glob("*.parquet")}
    known = {
        each[kind]["path"]
        for at in range(4)
        for each in actions(table, at)
        for kind in ("add", "remove")
        if kind in each
    }
    assert files == known, "the failed attempt left files"


@pytest.mark.parametrize("failure", [OSError("no space for the checkpoint"), CommitFailedError("interrupted")])
def test_files_of_a_commit_that_succeeded_before_an_error_are_kept(table, monkeypatch, failure):
    original = DirectMerge._commit

    def commit(self, *arguments):
        original(self, *arguments)
        raise failure

    monkeypatch.setattr(DirectMerge, "_commit", commit)
    if isinstance(failure, OSError):
        with pytest.raises(OSError, match="no space"):
            merge(table, 0, (3, "new"), (50, "new"))
    else:
        assert merge(table, 0, (3, "new"), (50, "new")) == 0
    monkeypatch.undo()
    assert merge(table, 0, (3, "again")) == 0
    assert [row for row in rows_in(table) if row[1] != "old"] == [(3, "new"), (50, "new")]


def test_a_merge_fails_if_other_writers_always_commit_first(table, monkeypatch):
    original = DirectMerge._commit

    def commit(self, *arguments):
        write_deltalake(str(table), table_of([(50, "theirs")]), mode="append")
        return original(self, *arguments)

    monkeypatch.setattr(DirectMerge, "_commit", commit)
    with pytest.raises(EnvironmentProblemError, match="other writers committed first 10 times"):
        merge(table, 0, (3, "ours"))


def test_a_table_that_is_changed_meanwhile_goes_to_spark(table, monkeypatch):
    original = DirectMerge._commit

    def commit(self, *arguments):
        DeltaTable(str(table)).alter.add_constraint({"positive": "id >= 0"})
        return original(self, *arguments)

    monkeypatch.setattr(DirectMerge, "_commit", commit)
    assert merge(table, 0, (3, "ours")) is None
    assert dict(rows_in(table))[3] == "old"


def test_concurrent_writers_of_a_key_leave_it_once(tmp_path):
    # Two queries update and delete the same keys. Each key is there once, with the last write of one of them.
    write_deltalake(str(tmp_path), table_of([(0, "old")]))
    start, failures = threading.Barrier(2), []

    def run(name):
        try:
            start.wait()
            for number in range(6):
                merge(tmp_path, number, *((key, f"{name}{number}") for key in range(4)), application=name)
        except Exception as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=run, args=name) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [row[0] for row in rows_in(tmp_path)] == [0, 1, 2, 3]
    assert {row[1] for row in rows_in(tmp_path)} <= {"a5", "b5"}


@given(st.lists(st.dictionaries(st.integers(0, 9), st.none() | st.sampled_from("xyz"), max_size=5), max_size=6))
def test_any_batches_leave_the_latest_of_each_key(tmp_path_factory, batches):
    directory, expected = tmp_path_factory.mktemp("table"), {}
    DeltaTable.create(str(directory), Schema.from_arrow(table_of([]).schema.set(1, pa.field("word", pa.string()))))
    for number, batch in enumerate(batches):
        merge(directory, number, *batch.items())
        expected |= batch
    assert dict(rows_in(directory)) == {key: word for key, word in expected.items() if word is not None}
    assert DeltaTable(str(directory)).version() == len(batches)


# --- merges left to Spark ---------------------------------------------------------------------------------------


def made(directory, *fields, configuration=None, partition_by=None):
    given = fields or (Field("id", PrimitiveType("long")), Field("word", PrimitiveType("string")))
    DeltaTable.create(str(directory), Schema(list(given)), partition_by=partition_by, configuration=configuration)


REFUSED = {
    "partitioned": {"partition_by": ["id"]},
    "a change data feed": {"configuration": {"delta.enableChangeDataFeed": "true"}},
    "deletion vectors": {"configuration": {"delta.enableDeletionVectors": "true"}},
    "append-only": {"configuration": {"delta.appendOnly": "true"}},
    "an unknown property": {"configuration": {"delta.autoOptimize.autoCompact": "true"}},
}


@pytest.mark.parametrize("kind", REFUSED)
def test_tables_with_unsupported_features_are_left_to_spark(tmp_path, kind):
    made(tmp_path, **REFUSED[kind])
    assert merge(tmp_path, 0, (1, "a")) is None
    assert DeltaTable(str(tmp_path)).version() == 0


FIELDS = {
    "another type": (Field("id", PrimitiveType("integer")), Field("word", PrimitiveType("string"))),
    "a missing column": (Field("id", PrimitiveType("long")),),
    "a name of other case": (Field("ID", PrimitiveType("long")), Field("word", PrimitiveType("string"))),
    "a required column that is not written": (
        Field("id", PrimitiveType("long")),
        Field("word", PrimitiveType("string")),
        Field("more", PrimitiveType("long"), nullable=False),
    ),
    "a field with properties": (
        Field("id", PrimitiveType("long")),
        Field("word", PrimitiveType("string"), metadata={"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}),
    ),
}


@pytest.mark.parametrize("kind", FIELDS)
def test_tables_with_unsupported_columns_are_left_to_spark(tmp_path, kind):
    made(tmp_path, *FIELDS[kind])
    assert merge(tmp_path, 0, (1, "a")) is None
    assert DeltaTable(str(tmp_path)).version() == 0


def test_tables_with_supported_columns_and_properties_are_merged_directly(tmp_path):
    made(
        tmp_path,
        Field("id", PrimitiveType("long"), nullable=False),
        Field("word", PrimitiveType("string"), metadata={"comment": "a word"}),
        Field("more", PrimitiveType("double")),
        configuration={"delta.checkpointInterval": "2", "delta.logRetentionDuration": "interval 1 days"},
    )
    for number in range(5):
        assert merge(tmp_path, number, (number, "a"))
    assert [row[0] for row in rows_in(tmp_path)] == list(range(5))
    assert list((tmp_path / "_delta_log").glob("*.checkpoint.parquet"))


def test_merges_by_floating_point_keys_are_left_to_spark(tmp_path):
    made(tmp_path, Field("id", PrimitiveType("double")))
    keys = Changes.of(pa.table({"id": [0.0, float("nan")]}), None, ["id"], None)
    written = T.StructType([T.StructField("id", T.DoubleType())])
    assert opened(tmp_path).merge(NO_SPARK, written, keys, Transaction(application="q", version=0)) is None


@pytest.mark.parametrize(
    ("keys", "least", "greatest", "may"),
    [
        (pa.array([1, 5]), 2, 4, False),
        (pa.array([1, 5]), 5, 9, True),
        (pa.array([1, 5]), -3, 1, True),
        (pa.array([1, 5]), 6, 9, False),
        (pa.array([1, 5]), None, None, True),
        (pa.array([1, None]), 6, 9, True),
        (pa.array(["a", "é"]), "b", "z", False),
        (pa.array([date(2026, 1, 1)]), date(2026, 1, 1), date(2026, 1, 2), True),
        (pa.array([b"a"]), "x", "y", True),
    ],
)
def test_files_are_passed_over_by_their_bounds_where_these_are_sure(keys, least, greatest, may):
    assert within(pa.chunked_array([keys]))(least, greatest) == may


def test_files_are_shared_out_by_their_sizes(monkeypatch):
    assert grouped({}, 4) == []
    assert grouped({"a": 3, "b": 2, "c": 1}, 2) == [["a"], ["b", "c"]]
    assert sorted(map(sorted, grouped({"a": 1, "b": 1}, 8))) == [["a"], ["b"]]
    monkeypatch.setattr(direct_merge, "FILE_BYTES", 10)
    assert len(grouped(dict.fromkeys("abcdef", 10), 2)) == 6


def test_only_types_that_arrow_and_spark_compare_alike_are_simple():
    assert all(map(is_simple, (T.StringType(), T.DecimalType(20, 3), T.TimestampNTZType(), T.ByteType())))
    others = (T.ArrayType(T.LongType()), T.StructType(), T.VarcharType(3), T.StringType("UTF8_LCASE"), T.NullType())
    assert not any(map(is_simple, others))
