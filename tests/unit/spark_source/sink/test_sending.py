"""Tests of batches as tables, and of tables sent to topics."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import SchemaMismatchError
from pyspark_millrace.sink import sending
from pyspark_millrace.sink.sending import divided_by_topic, gathered


@given(st.lists(st.integers(0, 60_000), max_size=12))
def test_batches_are_gathered_in_their_order_and_nothing_is_lost(sizes):
    start, batches = 0, []
    for size in sizes:
        batches.append(pa.RecordBatch.from_pydict({"n": pa.array(range(start, start + size), pa.int64())}))
        start += size
    tables = list(gathered(iter(batches)))
    assert pa.concat_tables(tables)["n"].to_pylist() == list(range(start)) if tables else not start
    assert all(table.num_rows >= sending.TABLE_ROWS for table in tables[:-1])
    assert all(table.num_rows < 2 * sending.TABLE_ROWS for table in tables)


def test_large_rows_are_not_gathered_without_end():
    batch = pa.RecordBatch.from_pydict({"value": [bytes(2**20)] * 3})
    assert [table.num_rows for table in gathered(iter([batch] * 6))] == [9, 9]


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1), st.integers(1, 4))
def test_rows_go_to_their_topics_in_their_order(topics, pieces):
    table = pa.table({"topic": topics, "n": range(len(topics))})
    cut = [table.slice(at, -(-len(topics) // pieces)) for at in range(0, len(topics), -(-len(topics) // pieces))]
    found = {name: rows["n"].to_pylist() for name, rows in divided_by_topic(pa.concat_tables(cut), "topic")}
    assert found == {name: [n for n, at in enumerate(topics) if at == name] for name in set(topics)}


def test_a_row_without_a_topic_is_refused():
    with pytest.raises(SchemaMismatchError, match=r"null topic present in the data \(column topic\)"):
        list(divided_by_topic(pa.table({"topic": ["a", None]}), "topic"))
