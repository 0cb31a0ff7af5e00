"""Tests of commits to a Delta table.

The table contains each batch once, whoever commits it and how often. A batch that the table cannot take is refused.
"""

import json
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import SchemaMismatchError, UsageError
from pyspark_millrace.delta.table import MicroBatch, NewFile, TargetTable, local_directory


def field(name, data_type="long", nullable=True):
    return {"name": name, "type": data_type, "nullable": nullable, "metadata": {}}


def schema(*fields):
    return {"type": "struct", "fields": list(fields)}


ONE = schema(field("n"))


def target(directory, fields=ONE, partition_by=(), *, merge=False):
    return TargetTable(str(directory), fields, partition_by, merge=merge)


def new_file(directory, name, numbers, values=None):
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), directory / name)
    statistics = json.dumps({"numRecords": len(numbers)})
    return NewFile(name, values or {}, (directory / name).stat().st_size, 0, len(numbers), statistics)


def numbers_in(directory):
    return sorted(DeltaTable(str(directory)).to_pyarrow_table()["n"].to_pylist())


def test_a_batch_is_committed_once(tmp_path):
    table = target(tmp_path)
    assert table.commit(MicroBatch("query", 0), [new_file(tmp_path, "a", [1, 2])]) == 1
    assert table.has(MicroBatch("query", 0))
    assert table.commit(MicroBatch("query", 0), [new_file(tmp_path, "b", [1, 2])]) is None
    # Another process, without the first one's state.
    again = target(tmp_path)
    assert again.has(MicroBatch("query", 0))
    assert again.commit(MicroBatch("query", 0), [new_file(tmp_path, "c", [1, 2])]) is None
    assert not again.has(MicroBatch("query", 1))
    assert not again.has(MicroBatch("other query", 0))
    assert again.commit(MicroBatch("query", 1), [new_file(tmp_path, "d", [3])]) == 2
    # The first process sees the commit of the second.
    assert table.commit(MicroBatch("query", 1), [new_file(tmp_path, "e", [3])]) is None
    assert numbers_in(tmp_path) == [1, 2, 3]


def test_concurrent_drivers_commit_each_batch_once(tmp_path):
    # One driver was given up and continues all the same. A third query writes to the table as well.
    start, failures = threading.Barrier(3), []

    def run(query, first):
        try:
            table = target(tmp_path)
            start.wait()
            for number in range(8):
                name = f"{query}-{first}-{number}-{threading.get_ident()}"
                table.commit(MicroBatch(query, number), [new_file(tmp_path, name, [first + number])])
        except Exception as error:
            failures.append(error)
            raise

    target(tmp_path)
    threads = [threading.Thread(target=run, args=each) for each in (("q", 0), ("q", 0), ("r", 100))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert numbers_in(tmp_path) == [*range(8), *range(100, 108)]


@given(st.lists(st.tuples(st.sampled_from(["p", "q"]), st.integers(0, 4), st.booleans()), max_size=12))
def test_any_order_of_retries_by_any_process_commits_each_batch_once(tmp_path_factory, attempts):
    directory = tmp_path_factory.mktemp("table")
    table, last, expected = target(directory), {}, 0
    for query, number, is_restarted in attempts:
        if is_restarted:
            table = target(directory)
        is_new = number > last.get(query, -1)
        found = table.commit(MicroBatch(query, number), [NewFile(f"{query}{number}", {}, 1, 0, 1, '{"numRecords":1}')])
        assert (found is not None) == is_new
        last[query] = max(number, last.get(query, -1))
        expected += is_new
    assert len(DeltaTable(str(directory)).file_uris()) == expected


def test_many_commits_make_a_checkpoint_and_remember_the_batch(tmp_path):
    made(tmp_path, long_field("n"), configuration={"delta.checkpointInterval": "10"})
    table = target(tmp_path)
    for number in range(25):
        table.commit(MicroBatch("query", number), [new_file(tmp_path, f"f{number}", [number])])
    assert list((tmp_path / "_delta_log").glob("*.checkpoint.parquet"))
    assert target(tmp_path).has(MicroBatch("query", 24))
    assert numbers_in(tmp_path) == list(range(25))


def test_partition_values_of_any_text_are_read_back(tmp_path):
    table = target(tmp_path, schema(field("n"), field("word", "string")), ("word",))
    words = ["a b", "ü/..", "x%20=", '"\\', None]
    files = [new_file(tmp_path, f"f{number}", [number], {"word": word}) for number, word in enumerate(words)]
    table.commit(MicroBatch("q", 0), files)
    found = DeltaTable(str(tmp_path)).to_pyarrow_table().to_pydict()
    assert dict(zip(found["n"], found["word"], strict=True)) == dict(enumerate(words))


def test_the_log_names_the_writer(tmp_path):
    target(tmp_path).commit(MicroBatch("query", 7), [new_file(tmp_path, "a", [1])])
    actions = [json.loads(line) for line in (tmp_path / "_delta_log" / f"{1:020}.json").read_text().splitlines()]
    (info,) = (action["commitInfo"] for action in actions if "commitInfo" in action)
    (txn,) = (action["txn"] for action in actions if "txn" in action)
    assert (info["queryId"], info["epochId"], info["isBlindAppend"]) == ("query", "7", True)
    assert (txn["appId"], txn["version"]) == ("query", 7)


# --- accepted batches ---------------------------------------------------------------------------------------------


def made(directory, *fields, partition_by=None, configuration=None):
    DeltaTable.create(str(directory), Schema(list(fields)), partition_by=partition_by, configuration=configuration)


def long_field(name, *, nullable=True, metadata=None):
    return Field(name, PrimitiveType("long"), nullable=nullable, metadata=metadata)


def test_a_new_table_takes_nulls_as_sparks_do(tmp_path):
    target(tmp_path, schema(field("n", nullable=False), field("s", {"type": "struct", "fields": [field("x")]})))
    assert all(each.nullable for each in DeltaTable(str(tmp_path)).schema().fields)


def test_columns_that_the_table_lacks_are_added_only_on_request(tmp_path):
    made(tmp_path, long_field("n"))
    with pytest.raises(SchemaMismatchError, match="has no column m: allow columns to be added"):
        target(tmp_path, schema(field("n"), field("m")))
    table = target(tmp_path, schema(field("n"), field("m", "string")), merge=True)
    assert [each.name for each in DeltaTable(str(tmp_path)).schema().fields] == ["n", "m"]
    assert table.commit(MicroBatch("q", 0), [new_file(tmp_path, "a", [1])]) is not None


def test_columns_that_are_not_ingested_stay_null(tmp_path):
    made(tmp_path, long_field("n"), long_field("other"))
    target(tmp_path).commit(MicroBatch("q", 0), [new_file(tmp_path, "a", [1])])
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().to_pydict() == {"n": [1], "other": [None]}


@pytest.mark.parametrize(
    ("there", "ours", "problem"),
    [
        (
            [long_field("n")],
            schema(field("n", "string")),
            "column n is long in the table and string in the ingested rows",
        ),
        ([long_field("n", nullable=False)], ONE, "column n is NOT NULL in the table but nullable"),
        ([long_field("n"), long_field("m", nullable=False)], ONE, "column m is NOT NULL but not ingested"),
    ],
)
def test_columns_that_do_not_fit_the_table_are_refused(tmp_path, there, ours, problem):
    made(tmp_path, *there)
    with pytest.raises(SchemaMismatchError, match=problem):
        target(tmp_path, ours)


def test_a_commit_is_refused_if_the_table_got_a_constraint_meanwhile(tmp_path):
    table = target(tmp_path)
    DeltaTable(str(tmp_path)).alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(UsageError, match="has the constraint positive"):
        table.commit(MicroBatch("q", 0), [new_file(tmp_path, "a", [-1])])
    assert numbers_in(tmp_path) == []


def add_to_log(directory, *actions):
    version = len(list((directory / "_delta_log").glob("*.json")))
    path = directory / "_delta_log" / f"{version:020}.json"
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({"delta.generationExpression": "m + 1"}, "column n is generated: let Spark write this table"),
        ({"delta.invariants": '{"expression": {"expression": "n > 3"}}'}, "column n has an invariant"),
        ({"delta.identity.start": 1}, "column n is an identity"),
    ],
)
def test_tables_with_columns_that_only_spark_can_maintain_are_refused(tmp_path, metadata, problem):
    made(tmp_path, long_field("n", metadata=metadata))
    with pytest.raises(UsageError, match=problem):
        target(tmp_path)


def test_a_table_with_mapped_columns_is_refused(tmp_path):
    made(tmp_path, long_field("n"))
    first = (tmp_path / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    metadata = next(action for action in map(json.loads, first) if "metaData" in action)
    metadata["metaData"]["configuration"] = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"}
    mapped = field("n") | {"metadata": {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}}
    metadata["metaData"]["schemaString"] = json.dumps(schema(mapped))
    add_to_log(tmp_path, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, metadata)
    with pytest.raises(UsageError, match="maps its columns by name"):
        target(tmp_path)


def test_a_table_with_an_unknown_feature_is_refused_with_its_name(tmp_path):
    made(tmp_path, long_field("n"))
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly", "rowTracking"]}
    add_to_log(tmp_path, {"protocol": protocol})
    with pytest.raises(UsageError, match=r"does not know \(rowTracking\)"):
        target(tmp_path)


def test_partition_columns_are_the_tables(tmp_path):
    made(tmp_path, long_field("n"), long_field("day"), partition_by=["day"])
    fields = schema(field("n"), field("day"))
    assert target(tmp_path, fields).partition_by == ("day",)
    assert target(tmp_path, fields, ["day"]).partition_by == ("day",)
    with pytest.raises(UsageError, match=r"is partitioned by \(day\), not by \(n\)"):
        target(tmp_path, fields, ["n"])


def test_the_tables_properties_choose_the_columns_with_statistics(tmp_path):
    made(tmp_path, long_field("n"), configuration={"delta.dataSkippingNumIndexedCols": "5"})
    assert (0, ("n",)) in target(tmp_path).indexed_columns
    assert (5, ("m",)) not in target(tmp_path).indexed_columns


def test_a_type_that_delta_lacks_is_refused_and_no_table_created(tmp_path):
    duration = {"type": "array", "elementType": "interval day to second", "containsNull": True}
    with pytest.raises(UsageError, match="column n is interval day to second, a type that Delta does not support"):
        target(tmp_path / "t", schema(field("n", duration)))
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("location", "path"),
    [("/data/t", "/data/t"), ("file:/data/a%20b", "/data/a b"), ("file:///data/t", "/data/t")],
)
def test_local_locations_become_paths(location, path):
    assert str(local_directory(location)) == path


@pytest.mark.parametrize("location", ["s3a://bucket/t", "hdfs://host/t", "file://other/t"])
def test_locations_that_tasks_cannot_write_to_are_refused(location):
    with pytest.raises(UsageError, match="let Spark write this table"):
        local_directory(location)
