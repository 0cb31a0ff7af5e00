"""Topic names from a user's function per record (Kafka's ``TopicNameExtractor``)."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from millrace.topic_names import is_topic_name
from millrace_streams.graph import TopicSinkNode
from millrace_streams.processors import RecordContext
from millrace_streams.steps.batch import TOPIC, Batch
from millrace_streams.steps.flow import ROOT, Flow, Origin


def with_topics(node: TopicSinkNode, flow: Flow, origin: Callable[[int], Origin]) -> Flow:
    """Add the column ``__topic`` to the rows of a sink whose topics a function names.

    Raises ``UserFunctionError`` with the record's position if the function fails or returns no valid topic.
    """
    assert node.extractor is not None
    batch, topics = flow.batch, list[str]()
    rows = zip(batch.keys, batch.values, batch.times, flow.marks[:, ROOT].tolist(), strict=True)
    for row, (key, value, time_ms, root) in enumerate(rows):
        place = origin(root) if root >= 0 else None  # None: a wall-clock punctuation
        context = (
            RecordContext(None, -1, -1, time_ms)
            if place is None
            else RecordContext(place.topic, place.partition, place.offset, time_ms, place.headers)
        )
        try:
            topic = node.extractor.call(key, value, context)
        except Exception as error:
            text = f"{node.extractor} raised {type(error).__name__}: {error}"
            raise flow.failure(node.name, text, row, origin) from error
        if not (isinstance(topic, str) and is_topic_name(topic)):
            text = f"{node.extractor} returned {topic!r}, which cannot be the name of a topic"
            raise flow.failure(node.name, text, row, origin)
        topics.append(topic)
    named = batch.frame.with_columns(pl.Series(TOPIC, topics, dtype=pl.String))
    return Flow(Batch.of_frame(batch.layout, named), flow.marks)
