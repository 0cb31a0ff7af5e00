"""Tests of Ctrl-C in calls of clients.

The client stays usable, and no record is lost.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from millrace.clients import Admin, Consumer, ConsumerRecords, Producer
from millrace_broker.testing import EmbeddedBroker

from .waiting import STALL_S, Stall

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Python ignores an interrupt in the end of a generator, and the garbage collector closes some connections."""


@pytest.fixture(autouse=True)
def garbage() -> Iterator[None]:
    """Collect the garbage of a test in the test."""
    yield
    gc.collect()


@contextmanager
def interrupt_after(calls: int) -> Iterator[None]:
    """Press Ctrl-C in this thread, after so many calls of functions of the clients."""
    left = calls

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        # ``leave`` is the end of a call. The caller cannot tell whether it has the result, and neither can the client.
        if event == "call" and "/millrace/" in frame.f_code.co_filename and frame.f_code.co_name != "leave":
            left -= 1
            if not left:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGINT, before)


def _fill(broker: EmbeddedBroker, topic: str, records: int) -> None:
    with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
        admin.create_topic(topic, partitions=1)
        for first in range(0, records, 10):
            producer.send_batch(topic, [b"%d" % n for n in range(first, first + 10)])
            producer.flush(STALL_S)


def _offsets(polled: ConsumerRecords | pa.Table) -> list[int]:
    if isinstance(polled, pa.Table):
        return polled["__offset"].to_pylist()
    return [record.offset for record in polled]


@pytest.mark.parametrize("form", ["records", "table"])
@pytest.mark.parametrize("direct_reads", ["auto", "never"])
def test_a_poll_that_was_interrupted_loses_no_record(
    module_broker: EmbeddedBroker, form: str, direct_reads: str
) -> None:
    topic = f"interrupted-{form}-{direct_reads}"
    _fill(module_broker, topic, 100)
    options = {
        "bootstrap.servers": module_broker.bootstrap_servers,
        "auto.offset.reset": "earliest",
        "direct.reads": direct_reads,
        "group.id": topic,
    }
    offsets: list[int] = []
    calls = polls = interrupts = 0
    with Consumer(options) as consumer:
        consumer.assign([(topic, 0)])
        poll = partial(consumer.poll_table, metadata=["__offset"]) if form == "table" else consumer.poll
        stall = Stall("all records")
        while len(offsets) < 100:
            stall.check(len(offsets))
            try:
                with interrupt_after(calls):
                    polled = poll(10, max_records=7)
                offsets += _offsets(polled)
                polls += 1
                calls = polls
            except KeyboardInterrupt:
                interrupts += 1
                calls += 7
    assert offsets == list(range(100))
    assert interrupts > 100


@pytest.mark.parametrize("form", ["record", "list", "table"])
def test_a_send_that_was_interrupted_blocks_no_later_one(module_broker: EmbeddedBroker, form: str) -> None:
    topic = f"sent-{form}"
    _fill(module_broker, topic, 0)
    sent, interrupts = [], 0
    with Producer(module_broker.bootstrap_servers) as producer:
        send = {
            "record": lambda value: producer.send(topic, value),
            "list": lambda value: producer.send_batch(topic, [value]),
            "table": lambda value: producer.send_table(topic, {"value": [value]}),
        }[form]
        for calls in range(1, 150):
            value = b"%d" % calls
            try:
                with interrupt_after(calls):
                    future = send(value)
                    sent.append((future, value))
                    future.result(STALL_S)
            except KeyboardInterrupt:
                interrupts += 1
            producer.flush(STALL_S)
        assert interrupts > 20
        assert all(future.done() for future, _ in sent)
        acknowledged = [value for future, value in sent if future.exception() is None]
    with Consumer({"bootstrap.servers": module_broker.bootstrap_servers, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([(topic, 0)])
        values: list[bytes] = []
        while len(values) < consumer.end_offsets([(topic, 0)])[(topic, 0)]:
            values += [record.value for record in consumer.poll(1000)]
    assert len(set(values)) == len(values)
    assert [value for value in values if value in set(acknowledged)] == acknowledged
