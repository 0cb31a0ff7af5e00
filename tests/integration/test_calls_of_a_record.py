"""Tests of a record's calls against the list in ARCHITECTURE.md."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import millrace
import millrace_broker
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.testing import EmbeddedBroker

from .conftest import FOREVER, Calls
from .frame_calls import Frames
from .waiting import AN_HOUR_MS

PRODUCT = tuple(str(Path(package.__path__[0])) for package in (millrace, millrace_broker))
PAGE = Path(__file__).parents[2] / "broker" / "ARCHITECTURE.md"


def listed(name: str) -> list[str]:
    """Return the functions in the page's block ``name``, in order."""
    [block] = re.findall(rf"```text {name}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [line.split()[0] for line in block.splitlines()]


class Chains:
    """An observer of calls in the broker's thread.

    It keeps the callers of the wanted function at its last call.
    """

    def __init__(self) -> None:
        self.wanted = ""
        self.found: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and self.wanted == frame.f_code.co_qualname:
            self.found = list(reversed([each.f_code.co_qualname for each in self._product(frame)]))

    @staticmethod
    def _product(frame: FrameType | None) -> Iterator[FrameType]:
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(PRODUCT) and "testing" not in code.co_filename:
                yield frame
            frame = frame.f_back


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch) -> Iterator[Chains]:
    monkeypatch.setattr("millrace_broker.runtime.small_work.SLOW_S", float("inf"))  # the machine may be slow
    observed = Chains()
    before = sys.getprofile()
    threading.setprofile(observed)
    try:
        yield observed
    finally:
        threading.setprofile(before)


def test_a_record_takes_the_listed_calls(tmp_path: Path, chains: Chains) -> None:
    data = pb.ProduceRequest.PartitionData(partition=0, records=Calls.batch(b"v"))
    sent = pb.ProduceRequest(acks=-1, topics=[pb.ProduceRequest.TopicData(name="t", partitions=[data])])
    topic = pb.NewTopic(name="t", num_partitions=1, replication_factor=1, configs=FOREVER)
    with EmbeddedBroker(tmp_path / "data") as broker, Frames(broker) as connection:
        connection.greet()
        connection.call("CreateTopics", pb.CreateTopicsRequest(topics=[topic], timeout_ms=AN_HOUR_MS))
        connection.call("Produce", sent)  # makes files, in a thread
        for call, request, wanted in (
            ("Produce", sent, "OsFile.write"),
            ("Fetch", Calls.fetch_request({"t": {0: 1}}), "OsFile.read"),
        ):
            chains.wanted = wanted
            connection.call(call, request)
            assert chains.found == listed(call.lower())
