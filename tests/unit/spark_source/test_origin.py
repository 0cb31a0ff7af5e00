"""Tests of driver listeners that read offsets from progress reports.

The reports also name the group of the commit.
"""

import json

import pytest

from pyspark_millrace.options.source import parse_options
from pyspark_millrace.origin import QueryOrigin, origin_of, with_origin
from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.offsets import StreamOffsets

SOURCE = {"kafka.bootstrap.servers": "a:1", "subscribe": "t"}


@pytest.mark.parametrize(
    ("origin", "group"),
    [
        (QueryOrigin("a:1"), None),
        (QueryOrigin("a:1", "billing"), "billing"),
        (QueryOrigin("a:1", None, "spark"), "spark-17"),
        (QueryOrigin("a:1", "billing", "spark"), "billing"),
    ],
)
def test_the_group_of_a_query_is_its_option_or_made_of_its_id(origin, group):
    assert origin.group_of("17") == group


def test_offsets_with_the_origin_of_a_query_are_read_as_offsets():
    offsets = StreamOffsets({PartitionKey("t", 0): 3}, {})
    report = json.loads(json.dumps(with_origin(offsets.to_json(), QueryOrigin("a:1", "billing"))))
    assert StreamOffsets.from_json(report) == offsets
    assert origin_of(report) == QueryOrigin("a:1", "billing")
    assert origin_of(offsets.to_json()) is None


def test_the_group_s_name_is_an_option():
    assert parse_options(SOURCE | {"groupIdPrefix": " nightly "}).group_id_prefix == "nightly"
    assert parse_options(SOURCE).group_id_prefix is None
