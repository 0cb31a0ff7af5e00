"""Tests of the topics of a query, which have one schema."""

import uuid

import pyarrow as pa
import pytest

from millrace.errors import UsageError
from pyspark_millrace.planning.topics import TopicSet, check_same_schemas

NUMBERS, WORDS = pa.schema([("n", pa.int64())]), pa.schema([("w", pa.string())])


def topics_of(**schemas):
    return TopicSet({name: uuid.UUID(int=1) for name in schemas}, (), frozenset(), schemas)


@pytest.mark.parametrize("schema", [NUMBERS, None])
def test_topics_with_equal_schemas_are_read_together(schema):
    topics = topics_of(a=schema, b=schema and pa.schema(list(schema)), c=schema)
    check_same_schemas(topics)
    check_same_schemas(topics_of(a=schema))
    assert topics.schema == schema
    assert topics_of().schema is None


@pytest.mark.parametrize("first", [NUMBERS, None])
@pytest.mark.parametrize("names", [("a", "other", "c"), ("a", "b", "other")])
def test_a_topic_with_another_schema_is_refused_with_its_name(first, names):
    topics = topics_of(**{name: WORDS if name == "other" else first for name in names})
    with pytest.raises(UsageError, match="topics a and other have different schemas"):
        check_same_schemas(topics)


@pytest.mark.parametrize(("names", "expected"), [("a", "topic a"), ("ba", "topics a, b")])
def test_topics_are_described_by_their_names(names, expected):
    found = TopicSet({name: uuid.UUID(int=1) for name in names}, (), frozenset(), {})
    assert found.description == expected
