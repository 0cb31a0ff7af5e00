"""Tests of the topics of a query, which have one schema."""

import uuid

import pyarrow as pa
import pytest

from millrace.clients import TopicDescription
from millrace.errors import UsageError
from pyspark_millrace.planning.topics import TopicSet, common_schema

NUMBERS, WORDS = pa.schema([("n", pa.int64())]), pa.schema([("w", pa.string())])


def topic(name, schema):
    return TopicDescription(name=name, topic_id=uuid.UUID(int=1), partitions=(), read_schema=schema)


@pytest.mark.parametrize("schema", [NUMBERS, None])
def test_topics_with_equal_schemas_are_read_together(schema):
    topics = [topic("a", schema), topic("b", schema and pa.schema(list(schema))), topic("c", schema)]
    assert common_schema(topics) == schema
    assert common_schema(topics[:1]) == schema
    assert common_schema([]) is None


@pytest.mark.parametrize("first", [NUMBERS, None])
@pytest.mark.parametrize("place", [1, 2])
def test_a_topic_with_another_schema_is_refused_with_its_name(first, place):
    topics = [topic("a", first), topic("b", first), topic("c", first)]
    topics[place] = topic("other", WORDS)
    with pytest.raises(UsageError, match="topics a and other have different schemas"):
        common_schema(topics)


@pytest.mark.parametrize(("names", "expected"), [("a", "topic a"), ("ba", "topics a, b")])
def test_topics_are_described_by_their_names(names, expected):
    found = TopicSet({name: uuid.UUID(int=1) for name in names}, (), frozenset(), None)
    assert found.description == expected
