"""Options that a runner gives to its sources and sinks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from unittest import mock

from millrace_streams import StreamsBuilder
from millrace_streams.layout import OPAQUE_SHAPE
from millrace_streams.runners.source import Job, JobInputs


def source_options(options: Mapping[str, Any], defaults: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the options of two sources by topic."""
    builder = StreamsBuilder()
    for topic in ("orders", "customers"):
        builder.stream(topic, key="string", value="string").to("out")
    inputs = JobInputs(bootstrap_servers="nowhere:1", options=options)
    with mock.patch.object(JobInputs, "shape_of", return_value=(OPAQUE_SHAPE, 1)):
        job = Job.prepare(builder.build(), inputs)
    spark = mock.MagicMock()
    job.packed(spark, streaming=True, defaults=defaults)
    found = [call.kwargs for call in spark.readStream.format.return_value.options.call_args_list]
    return {each["subscribe"]: each for each in found}


def test_a_position_of_one_topic_leaves_the_default_to_the_others() -> None:
    found = source_options({"startingOffsets": {"orders": {"0": 5}}}, {"startingOffsets": "earliest"})
    assert json.loads(found["orders"]["startingOffsets"]) == {"orders": {"0": 5}}
    assert found["customers"]["startingOffsets"] == "earliest"
