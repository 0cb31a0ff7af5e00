"""Tests of the processor that starts its real processor when rows come."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from pyspark.sql.streaming import StatefulProcessor

from pyspark_millrace.late_processor import LateProcessor


class Client:
    """A connection to Spark, and the messages sent over it."""

    def __init__(self) -> None:
        self.handle_state = "open"
        self.said: list[str] = []

    def set_handle_state(self, state: str) -> None:
        self.said.append(state)


class Handle:
    """A handle that opens states, which are the arguments of the request."""

    def __init__(self) -> None:
        self._statefulProcessorApiClient = Client()
        self.opened: list[tuple[Any, ...]] = []

    def getListState(self, name: str, schema: str) -> tuple[Any, ...]:  # noqa: N802 - as Spark calls it
        self.opened.append(("list", name, schema))
        return self.opened[-1]

    def getValueState(self, name: str, *, schema: str) -> tuple[Any, ...]:  # noqa: N802 - as Spark calls it
        self.opened.append(("value", name, schema))
        return self.opened[-1]


class Real(StatefulProcessor):  # type: ignore[misc]
    """A real processor that returns its opened states for each row.

    It records its loading and closing.
    """

    events: ClassVar[list[str]] = []

    def __init__(self, name: str = "real") -> None:
        self.name = name

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.events.append("loaded")
        self.__dict__ |= state

    def init(self, handle: Any) -> None:
        self.rows = handle.getListState("rows", "row BINARY")
        self.number = handle.getValueState("number", schema="number INT")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        for row in rows:
            yield self.name, key, row, self.rows, self.number

    def close(self) -> None:
        self.events.append("closed")


@pytest.fixture
def late() -> LateProcessor:
    Real.events.clear()
    found: LateProcessor = pickle.loads(pickle.dumps(LateProcessor(Real())))
    return found


def test_a_request_for_the_states_alone_loads_nothing(late: LateProcessor) -> None:
    handle = Handle()
    late.init(handle)
    late.close()
    assert handle.opened == [("list", "rows", "row BINARY"), ("value", "number", "number INT")]
    assert Real.events == []


def test_rows_go_to_the_processor_with_the_states_that_were_opened(late: LateProcessor) -> None:
    handle = Handle()
    late.init(handle)
    found = [each for key in ("a", "b") for each in late.handleInputRows(key, iter([1, 2]), None)]
    late.close()
    assert found == [("real", key, row, *handle.opened) for key in ("a", "b") for row in (1, 2)]
    assert len(handle.opened) == 2
    assert Real.events == ["loaded", "closed"]


class Changing(Real):
    """A processor whose requested state changes when it is loaded."""

    def init(self, handle: Any) -> None:
        handle.getListState("first" if "loaded" not in self.events else "other", "row BINARY")


def test_a_processor_that_asks_for_other_states_than_before_is_refused() -> None:
    Real.events.clear()
    late = LateProcessor(Changing())
    late.init(Handle())
    with pytest.raises(AssertionError, match="getListState"):
        late.handleInputRows("a", iter([1]), None)


def test_the_end_sends_nothing_and_leaves_the_connection_open_for_some_tasks(late: LateProcessor) -> None:
    clients = []
    for _ in range(100):
        handle = Handle()
        late.init(handle)
        late.close()
        client = handle._statefulProcessorApiClient
        client.set_handle_state("closed")  # as Spark's side of the worker then does
        assert (client.handle_state, client.said) == ("closed", [])
        clients.append(weakref.ref(client))
    del handle, client, late
    gc.collect()
    assert [ref() is not None for ref in clients] == [False] * 68 + [True] * 32
