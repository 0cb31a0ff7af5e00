"""Tests of the output of single records and of table cells."""

from __future__ import annotations

import json
from datetime import date

import pyarrow as pa
import pytest

from millrace.cli.consume_range import choose_partitions
from millrace.cli.output import cells
from millrace.cli.record_formats import OutputFormat, writer
from millrace.clients import ConsumerRecord, TopicPartition
from millrace.errors import UsageError
from millrace.records import NO_TIMESTAMP


def test_a_record_without_a_timestamp_has_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    writer(OutputFormat.JSON, None, [])(ConsumerRecord("t", 0, 7, NO_TIMESTAMP, None, b"v", ()))
    assert json.loads(capsys.readouterr().out)["timestamp"] is None


@pytest.mark.parametrize(("type_", "width"), [(pa.timestamp("ms", "UTC"), pa.int64()), (pa.date32(), pa.int32())])
def test_times_that_python_does_not_have_are_shown_as_numbers(type_: pa.DataType, width: pa.DataType) -> None:
    most = 2 ** (width.bit_width - 1) - 1
    assert cells(pa.chunked_array([pa.array([5, None, most], width).view(type_)])) == [5, None, most]
    assert cells(pa.chunked_array([pa.array([0], pa.int32()).view(pa.date32())])) == [date(1970, 1, 1)]


def test_an_empty_range_of_partitions_is_refused() -> None:
    available = [TopicPartition("t", number) for number in range(6)]
    assert [each.partition for each in choose_partitions(available, "5,2-3")] == [5, 2, 3]
    with pytest.raises(UsageError, match="the range 5-2 is empty"):
        choose_partitions(available, "5-2")
