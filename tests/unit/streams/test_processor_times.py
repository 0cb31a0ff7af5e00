"""Tests of times in processors: timestamps of records, and the order of punctuations."""

from __future__ import annotations

from typing import Any

import pytest

from millrace_streams import Record, StreamsBuilder, TestRecord, TopologyTestDriver, UserFunctionError

TYPES = {"key": "string", "value": "long"}


@pytest.mark.parametrize(
    "forward",
    [
        lambda context, record: context.forward(record.key, record.value, record.timestamp - 5),
        lambda context, record: context.forward_value(record.value, -1),
        lambda context, record: context.forward(record.with_timestamp(-5)),
        lambda context, record: context.forward(Record("a", 1, -5)),
    ],
)
def test_a_negative_timestamp_of_a_forwarded_record_is_an_error_of_the_processor(forward: Any) -> None:
    class Back:
        def init(self, context: Any) -> None:
            self.context = context

        def process(self, record: Record) -> None:
            if record.value:
                forward(self.context, record)

    builder = StreamsBuilder()
    builder.stream("in", **TYPES).process(Back, name="back").to("out")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(UserFunctionError, match="back: Back raised ValueError: .* may not be negative, but is") as error:
        driver.pipe_records([TestRecord("in", "a", 0, 1), TestRecord("in", "a", 1, 2)])
    assert (error.value.topic, error.value.offset) == ("in", 1)
