"""Tests of a task's data files.

The files have all rows of the task, and no other file has any of them.
"""

import json
import os
import pickle
import stat

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.errors import SchemaMismatchError
from millrace.schemas import parse_ddl
from pyspark_millrace.delta import data_files
from pyspark_millrace.delta.data_files import FILE_DDL, FILE_SCHEMA, DataFiles
from pyspark_millrace.transform import decode_transform, encode_transform

SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string())])


def batches(count, rows=100):
    for first in range(0, count * rows, rows):
        numbers = range(first, first + rows)
        yield pa.record_batch([pa.array(numbers), pa.array([f"w{n % 3}" for n in numbers])], schema=SCHEMA)


def written(files, source):
    # The form in which it is sent to a task.
    described = list(decode_transform(encode_transform(files))(source))
    assert all(batch.schema == FILE_SCHEMA for batch in described)
    return [row for batch in described for row in batch.to_pylist()]


def parquet_files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_task_writes_one_file_and_tells_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "ROW_GROUP_ROWS", 250)
    (row,) = written(DataFiles(str(tmp_path), SCHEMA), batches(10))
    path = tmp_path / row["path"]
    assert pq.read_table(path)["n"].to_pylist() == list(range(1000))
    assert pq.read_metadata(path).num_row_groups == 5
    assert (row["rows"], row["size_bytes"], row["partition_values"]) == (1000, path.stat().st_size, [])
    assert json.loads(row["statistics"])["maxValues"] == {"n": 999, "word": "w2"}
    assert parquet_files(tmp_path) == [row["path"]]


def test_row_groups_are_bounded_by_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", 2000)
    (row,) = written(DataFiles(str(tmp_path), SCHEMA), batches(10))
    assert pq.read_metadata(tmp_path / row["path"]).num_row_groups == 10


def test_rows_go_to_files_of_their_partition_values(tmp_path):
    rows = written(DataFiles(str(tmp_path), SCHEMA, ("word",)), batches(4))
    found = {row["partition_values"][0]: pq.ParquetFile(tmp_path / row["path"]).read().to_pydict() for row in rows}
    assert found == {("word", f"w{word}"): {"n": [n for n in range(400) if n % 3 == word]} for word in range(3)}


def test_more_partition_values_than_open_files_lose_no_row(tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "_OPEN_FILES_MAX", 2)
    monkeypatch.setattr(data_files, "ROW_GROUP_ROWS", 100)
    rows = written(DataFiles(str(tmp_path), SCHEMA, ("word",)), batches(4))
    assert len(rows) > 3
    numbers = [n for row in rows for n in pq.ParquetFile(tmp_path / row["path"]).read()["n"].to_pylist()]
    assert sorted(numbers) == list(range(400))
    assert sum(row["rows"] for row in rows) == 400


def test_without_rows_no_file_is_written(tmp_path):
    empty = pa.record_batch([pa.array([], pa.int64()), pa.array([], pa.string())], schema=SCHEMA)
    assert written(DataFiles(str(tmp_path), SCHEMA), iter([empty])) == []
    assert written(DataFiles(str(tmp_path), SCHEMA), iter([])) == []
    assert parquet_files(tmp_path) == []


def test_a_transformation_comes_before(tmp_path):
    def only_even(source):
        for batch in source:
            yield batch.filter(pa.compute.equal(pa.compute.bit_wise_and(batch.column("n"), 1), 0))

    (row,) = written(DataFiles(str(tmp_path), SCHEMA, before=only_even), batches(2))
    assert pq.read_table(tmp_path / row["path"])["n"].to_pylist() == list(range(0, 200, 2))


def test_a_task_that_fails_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "ROW_GROUP_ROWS", 100)

    def failing():
        yield from batches(3)
        raise OSError("the log is gone")

    with pytest.raises(OSError, match="the log is gone"):
        list(DataFiles(str(tmp_path), SCHEMA, ("word",))(failing()))
    assert parquet_files(tmp_path) == []


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"n": [1], "other": ["a"]}, "other columns"),
        ({"n": [0.5], "word": ["a"]}, "truncated"),
        (
            {"n": ["x"], "word": ["a"]},
            r"batches of \(n string, word string\) came for a table of \(n int64, word string\)",
        ),
    ],
)
def test_batches_that_do_not_fit_are_refused(tmp_path, columns, problem):
    with pytest.raises(SchemaMismatchError, match=problem):
        list(DataFiles(str(tmp_path), SCHEMA)(iter([*batches(1), pa.RecordBatch.from_pydict(columns)])))
    assert parquet_files(tmp_path) == []


def test_nulls_in_a_not_null_column_are_refused(tmp_path):
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    with pytest.raises(SchemaMismatchError):
        list(DataFiles(str(tmp_path), schema)(iter([pa.record_batch({"n": pa.array([1, None])})])))


def test_types_that_hold_the_same_values_are_cast(tmp_path):
    schema = pa.schema([pa.field("n", pa.int32(), nullable=False), pa.field("word", pa.large_string())])
    batch = pa.record_batch([pa.array([1], pa.int32()), pa.array(["a"], pa.large_string())], schema=schema)
    (row,) = written(DataFiles(str(tmp_path), SCHEMA), iter([batch]))
    assert pq.read_table(tmp_path / row["path"]).schema == SCHEMA


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_folder_without_write_permission_is_an_error(tmp_path):
    tmp_path.chmod(stat.S_IREAD | stat.S_IEXEC)
    with pytest.raises(PermissionError):
        list(DataFiles(str(tmp_path), SCHEMA)(batches(1)))


def test_the_declared_ddl_is_that_of_the_files_schema():
    assert parse_ddl(FILE_DDL) == FILE_SCHEMA


def test_the_function_survives_pickling():
    files = DataFiles("/data/t", SCHEMA, ("word",))
    assert pickle.loads(pickle.dumps(files)) == files
