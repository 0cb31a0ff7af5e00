"""Tests of rewritten table files, compared with a plain model.

The new file has the changes of a batch.
"""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import SchemaMismatchError
from pyspark_millrace.delta.rewriting import (
    OUTCOME_SCHEMA,
    Changes,
    KeyIndex,
    Outcome,
    Rewriting,
    in_tasks,
    last_of_each_key,
)
from pyspark_millrace.delta.statistics import IndexedColumns

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("version", pa.int32()), ("word", pa.string())])
KEYS = st.tuples(st.none() | st.integers(0, 3), st.none() | st.sampled_from(["", "x", "y"]))


def rewriting(directory, rows, *, guard=None, key=("a", "b"), names=("a", "b", "version", "deleted")):
    types = {field.name: field.type for field in SCHEMA} | {"deleted": pa.bool_()}
    table = pa.table({name: pa.array([row[name] for row in rows], types[name]) for name in names})
    deleted = "deleted" if "deleted" in names else None
    return Rewriting(str(directory), SCHEMA, IndexedColumns(), Changes.of(table, deleted, key, guard))


def write(directory, name, rows, *, schema=SCHEMA, **options):
    pq.write_table(pa.Table.from_pylist(rows, schema), Path(directory, name), **options)


def read(directory, files):
    return [row for file in files for row in pq.read_table(Path(directory, file["path"])).to_pylist()]


def row(key, version, word):
    return {"a": key[0], "b": key[1], "version": version, "word": word}


def applies(each, change, guard):
    if change is None or guard is None or each["version"] is None:
        return change is not None
    return change["version"] is not None and change["version"] > each["version"]


def merged(old, changes, guard):
    """Return the existing rows of a file after the changes by key, without the new ones."""
    found = []
    for each in old:
        change = changes.get((each["a"], each["b"]))
        if not applies(each, change, guard):
            found.append(each)
        elif not change["deleted"]:
            found.append(each | {"version": change["version"]})
    return found


VERSIONS = st.none() | st.integers(0, 3)


@given(
    st.lists(st.lists(st.tuples(KEYS, VERSIONS), max_size=6), min_size=1, max_size=3),
    st.dictionaries(KEYS, st.tuples(VERSIONS, st.booleans()), max_size=6),
    st.sampled_from([None, "version"]),
)
def test_files_are_written_again_as_the_model_says(tmp_path_factory, files, changed, guard):
    directory = tmp_path_factory.mktemp("table")
    old = [
        [row(key, version, f"{number}-{at}") for at, (key, version) in enumerate(each)]
        for number, each in enumerate(files)
    ]
    for number, rows in enumerate(old):
        write(directory, f"{number}.parquet", rows)
    changes = {key: row(key, version, None) | {"deleted": deleted} for key, (version, deleted) in changed.items()}
    outcome = rewriting(directory, list(changes.values()), guard=guard).rewritten(
        [f"{number}.parquet" for number in range(len(old))]
    )
    new = [merged(rows, changes, guard) for rows in old]
    touched = [
        number
        for number, rows in enumerate(old)
        if any(applies(each, changes.get((each["a"], each["b"])), guard) for each in rows)
    ]
    assert outcome.removed == tuple(f"{number}.parquet" for number in touched)
    assert read(directory, outcome.files) == [each for number in touched for each in new[number]]
    there = {(each["a"], each["b"]) for rows in old for each in rows}
    assert outcome.matched.tolist() == [key in there for key in changes]
    unpacked = Outcome.of(outcome.packed().to_pylist()[0], len(changes))
    assert (unpacked.removed, unpacked.files) == (outcome.removed, outcome.files)
    assert unpacked.matched.tolist() == outcome.matched.tolist()


@given(st.sets(KEYS), st.lists(KEYS))
def test_keys_of_several_columns_are_found_by_their_values(keys, rows):
    keys = list(keys)
    columns = [pa.chunked_array([pa.array([key[at] for key in rows], SCHEMA.types[at])]) for at in (0, 1)]
    table = pa.table([pa.array([key[at] for key in keys], SCHEMA.types[at]) for at in (0, 1)], ["a", "b"])
    expected = [keys.index(key) if key in keys else -1 for key in rows]
    assert KeyIndex(table).places(columns).tolist() == expected


def test_columns_that_a_file_or_the_changes_lack_are_null_or_stay(tmp_path):
    write(tmp_path, "old.parquet", [{"a": 1}, {"a": 2}], schema=pa.schema([("a", pa.int64())]))
    whole = [{"a": 1, "b": "x", "version": 1, "word": "kept"}]
    write(tmp_path, "new.parquet", whole)
    changes = [{"a": 1, "version": 7}, {"a": 3, "version": 8}]
    work = rewriting(tmp_path, changes, key=("a",), names=("a", "version"))
    outcome = work.rewritten(["old.parquet", "new.parquet"])
    assert read(tmp_path, outcome.files) == [
        {"a": 1, "b": None, "version": 7, "word": None},
        {"a": 2, "b": None, "version": None, "word": None},
        {"a": 1, "b": "x", "version": 7, "word": "kept"},
    ]
    new = work.inserted(outcome.matched)
    assert read(tmp_path, new) == [{"a": 3, "b": None, "version": 8, "word": None}]
    assert json.loads(new[0]["statistics"])["minValues"] == {"a": 3, "version": 8}
    # A key column that a file lacks is null in all of its rows.
    write(tmp_path, "other.parquet", [{"word": "w"}] * 2, schema=pa.schema([("word", pa.string())]))
    by_null = rewriting(tmp_path, [{"a": None, "version": 9}], key=("a",), names=("a", "version"))
    assert [each["version"] for each in read(tmp_path, by_null.rewritten(["other.parquet"]).files)] == [9, 9]


def test_files_without_a_key_of_the_changes_are_left_and_nothing_is_written(tmp_path):
    write(tmp_path, "f.parquet", [row((1, "x"), 1, "w")])
    work = rewriting(tmp_path, [row((2, "x"), 1, None) | {"deleted": True}])
    (outcome,) = in_tasks(work, [["f.parquet"]], iter([pa.RecordBatch.from_pydict({"id": [0]})]))
    assert outcome.schema == OUTCOME_SCHEMA
    assert Outcome.of(outcome.to_pylist()[0], 1).removed == ()
    assert work.inserted(Outcome.of(outcome.to_pylist()[0], 1).matched) == []
    assert [path.name for path in tmp_path.iterdir()] == ["f.parquet"]


def test_several_batches_and_row_groups_of_a_file_stay_in_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr("pyspark_millrace.delta.rewriting._BATCH_ROWS", 7)
    rows = [row((number, "x"), number, str(number)) for number in range(50)]
    write(tmp_path, "f.parquet", rows, row_group_size=20)
    changes = [row((number, "x"), -1, None) | {"deleted": number % 2 == 0} for number in range(0, 50, 5)]
    found = read(tmp_path, rewriting(tmp_path, changes).rewritten(["f.parquet"]).files)
    expected = [each | ({"version": -1} if each["a"] % 5 == 0 else {}) for each in rows if each["a"] % 10 != 0]
    assert found == expected


def test_a_file_of_other_types_is_named_and_nothing_is_left(tmp_path):
    schema = SCHEMA.set(3, pa.field("word", pa.list_(pa.int64())))
    write(tmp_path, "f.parquet", [row((1, "x"), 1, [1])], schema=schema)
    with pytest.raises(SchemaMismatchError, match=r"file f\.parquet does not hold the table's columns"):
        rewriting(tmp_path, [row((1, "x"), 2, None) | {"deleted": False}]).rewritten(["f.parquet"])
    assert [path.name for path in tmp_path.iterdir()] == ["f.parquet"]


def test_times_of_spark_files_are_read_in_full_range(tmp_path):
    # Spark writes timestamps as INT96. Arrow reads these as nanoseconds, which end in the year 2262.
    from datetime import UTC, datetime

    schema = pa.schema([("a", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    times = [datetime(9999, 12, 31, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)]
    rows = pa.table({"a": [1, 2], "at": pa.array(times, schema.field("at").type)})
    naive = rows.set_column(1, "at", rows["at"].cast(pa.timestamp("us")))
    pq.write_table(naive, tmp_path / "f.parquet", use_deprecated_int96_timestamps=True)
    change = Changes.of(
        pa.table({"a": pa.array([2]), "at": pa.array([times[0]], schema.field("at").type)}), None, ["a"], None
    )
    files = Rewriting(str(tmp_path), schema, IndexedColumns(), change).rewritten(["f.parquet"]).files
    assert [each["at"] for each in read(tmp_path, files)] == [times[0], times[0]]


@given(st.lists(st.tuples(KEYS, st.integers())))
def test_the_last_row_of_each_key_is_kept_in_its_place(rows):
    table = pa.Table.from_pylist([row(key, 0, str(number)) for key, number in rows], SCHEMA)
    last = {key: at for at, (key, _) in enumerate(rows)}
    kept = [each for at, each in enumerate(table.to_pylist()) if at in last.values()]
    assert last_of_each_key(table, ["a", "b"]).to_pylist() == kept
