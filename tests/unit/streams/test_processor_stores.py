"""Tests of the methods of processors' stores against those of Kafka Streams."""

from __future__ import annotations

from typing import Any

import pytest

from millrace_streams import (
    StreamsBuilder,
    TopologyTestDriver,
    key_value_store,
    session_store,
    versioned_store,
    window_store,
)
from millrace_streams.stores import VersionedRecord
from millrace_streams.windows import Windowed

TYPES = {"key": "string", "value": "long"}


class Idle:
    """A processor that does nothing."""

    def process(self, record: Any) -> None:
        pass


def view(store: Any) -> Any:
    builder = StreamsBuilder()
    builder.stream("in", **TYPES).process(Idle, stores=[store]).to("out")
    return TopologyTestDriver(builder.build()).view(store.name)


def test_a_key_value_store_is_read_forwards_and_backwards_and_by_prefix() -> None:
    store = view(key_value_store("st", **TYPES))
    store.put_all([("b", 2), ("ab", 1), ("c", 3), ("a", 0), ("c", None)])
    assert list(store.all()) == [("a", 0), ("ab", 1), ("b", 2)]
    assert list(store.reverse_all()) == [("b", 2), ("ab", 1), ("a", 0)]
    assert list(store.reverse_range("ab", "c")) == [("b", 2), ("ab", 1)]
    assert list(store.reverse_range(high="ab")) == [("ab", 1), ("a", 0)]
    assert list(store.prefix_scan("a")) == list(store.prefix_scan(b"a")) == [("a", 0), ("ab", 1)]
    assert store.approximate_num_entries() == 3
    numbers = view(key_value_store("numbers", key="long", value="long"))
    numbers.put(1, 1)
    with pytest.raises(ValueError, match="the store numbers: a prefix is of keys that are text or bytes, not of 1"):
        numbers.prefix_scan(b"\0")


def test_a_window_store_is_read_by_time_forwards_and_backwards() -> None:
    store = view(window_store("st", **TYPES, retention=1000))
    for key, start in (("b", 0), ("a", 10), ("a", 5), ("b", 10)):
        store.put(key, start, start)
    assert list(store.backward_fetch("a", 0, 10)) == [(10, 10), (5, 5)]
    assert list(store.all()) == [("a", 5, 5), ("a", 10, 10), ("b", 0, 0), ("b", 10, 10)]
    assert list(store.backward_all()) == list(store.all())[::-1]
    assert list(store.fetch_all(5, 10)) == [("a", 5, 5), ("a", 10, 10), ("b", 10, 10)]
    assert list(store.backward_fetch_all(5, 9)) == [("a", 5, 5)]


def test_all_windows_are_in_the_order_of_the_segments_of_kafkas_store() -> None:
    store = view(window_store("st", **TYPES, retention=200_000))
    for key, start in (("a", 0), ("a", 100_000), ("b", 99_999)):
        store.put(key, 1, start)
    assert [window[:2] for window in store.all()] == [("a", 0), ("b", 99_999), ("a", 100_000)]


def test_sessions_are_found_by_end_forwards_and_backwards() -> None:
    store = view(session_store("st", **TYPES, retention=1000))
    store.put(Windowed("k", 0, 100), 1)
    store.put(Windowed("k", 10, 20), 2)
    assert [session[1:] for session, _ in store.fetch("k")] == [(10, 20), (0, 100)]
    assert [session[1:] for session, _ in store.backward_fetch("k")] == [(0, 100), (10, 20)]
    assert [value for _, value in store.backward_find_sessions("k", 0, 5)] == [1]
    assert (store.fetch_session("k", 10, 20), store.fetch_session("k", 10, 21)) == (2, None)
    store.put(Windowed("other", 0, 1020), 3)
    assert store.fetch_session("k", 10, 20) is None, "the session has expired"


def test_a_deletion_from_before_the_history_deletes_nothing_and_returns_nothing() -> None:
    store = view(versioned_store("st", **TYPES, history=100))
    store.put("k", 7, 10)
    store.put("j", 8, 1000)
    assert store.delete("k", 50) is None
    assert store.get("k") == VersionedRecord(7, 10)
    assert store.delete("k", 900) == VersionedRecord(7, 10)
    assert store.get("k") is None


@pytest.mark.parametrize(
    ("store", "write"),
    [
        (window_store("st", **TYPES, retention=50), lambda store: store.put(None, 1, 0)),
        (session_store("st", **TYPES, retention=50), lambda store: store.put(Windowed(None, 0, 1), 1)),
        (session_store("st", **TYPES, retention=50), lambda store: store.remove(Windowed(None, 0, 1))),
        (versioned_store("st", **TYPES, history=50), lambda store: store.put(None, 1, 0)),
        (versioned_store("st", **TYPES, history=50), lambda store: store.delete(None, 0)),
        (key_value_store("st", **TYPES), lambda store: store.put_all([(None, 1)])),
    ],
)
def test_no_store_takes_a_key_of_none(store: Any, write: Any) -> None:
    with pytest.raises(ValueError, match="the store st cannot hold a key of None: leave such records out"):
        write(view(store))
