"""Tests of object stores against a model sorted for every query."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millrace_streams.layout import Layout
from millrace_streams.serdes import sort_key
from millrace_streams.stores import KeyValueStore, SessionStore, StoreSpec, TimeBuffer
from millrace_streams.stores.base import Stored
from millrace_streams.stores.entries import Held
from millrace_streams.windows import Windowed

LAYOUT = Layout(
    schema=pa.schema([("key", pa.string()), ("value", pa.int64())]), key=("key",), bucket_columns=None, value="value"
)

keys = st.sampled_from("abcdef")


@given(st.lists(st.tuples(st.sampled_from(["put", "remove", "pop", "commit"]), keys, st.integers(0, 9)), max_size=300))
def test_a_buffer_keeps_its_entries_in_the_order_of_their_first_places(script: list[tuple[str, str, int]]) -> None:
    buffer = TimeBuffer(StoreSpec(name="b", kind="buffer", layout=LAYOUT, form="held"))
    model: dict[str, tuple[Any, Held]] = {}
    for what, key, number in script:
        in_order = sorted(model.items(), key=lambda item: item[1][0])
        if what == "put":
            entry = Held(key, number, number, None, number)
            buffer.put(key, entry)
            model[key] = (model[key][0] if key in model else entry.place, entry)
        elif what == "remove":
            assert buffer.remove(key) == model.pop(key, (None, None))[1]
        elif what == "pop" and model:
            first = in_order[0][0]
            assert buffer.pop_oldest() == (first, model.pop(first)[1])
        elif what == "commit":
            buffer.commit()
        in_order = sorted(model.items(), key=lambda item: item[1][0])
        assert list(buffer.entries()) == [(key, entry) for key, (_, entry) in in_order]
        assert len(buffer) == len(model)
        assert buffer.oldest_ms() == (in_order[0][1][0][0] if model else None)


def test_an_entry_that_left_and_came_back_is_restored_in_its_new_place() -> None:
    buffer = TimeBuffer(StoreSpec(name="b", kind="buffer", layout=LAYOUT, form="held"))
    buffer.restore("a", Held("a", 1, 0, None, 0))
    buffer.restore("b", Held("b", 1, 30, None, 30))
    buffer.restore("a", Held("a", None, 60, 1, 60))
    assert [key for key, _ in buffer.entries()] == ["b", "a"]
    assert buffer.oldest_ms() == 30


def test_a_buffer_from_which_much_was_taken_closes_its_gaps() -> None:
    buffer = TimeBuffer(StoreSpec(name="b", kind="buffer", layout=LAYOUT, form="held"))
    for number in range(5000):
        buffer.put(number, Held(number, 1, number, None, number))
        if number >= 10:
            buffer.remove(number - 5)
    assert [key for key, _ in buffer.entries()] == [*range(5), *range(4995, 5000)]
    assert len(buffer._order) < 200


sessions = st.tuples(keys, st.integers(0, 30), st.integers(0, 5)).map(lambda s: Windowed(s[0], s[1], s[1] + s[2]))


@given(st.lists(st.tuples(sessions, st.none() | st.integers(0, 9)), max_size=40), st.integers(0, 40))
def test_sessions_end_and_expire_in_order(script: list[tuple[Windowed, int | None]], closed_ms: int) -> None:
    store = SessionStore(StoreSpec(name="s", kind="session", layout=LAYOUT, retention_ms=10))
    model: dict[Windowed, int] = {}
    for session, value in script:
        store.put(session, value)
        model.pop(session, None)
        if value is not None:
            model[session] = value
    over = sorted((each for each in model if each.end <= closed_ms), key=lambda s: (s.end, sort_key(s.key), s.start))
    assert store.ended(0, closed_ms) == [(session, model[session]) for session in over]
    assert store.ended(closed_ms + 1, 99) == sorted(
        ((each, value) for each, value in model.items() if each.end > closed_ms),
        key=lambda item: (item[0].end, sort_key(item[0].key), item[0].start),
    )
    store.expire()
    oldest = max((session.end for session, _ in script), default=-1) - 10 + 1
    assert dict(store.packed_entries()) == {session: v for session, v in model.items() if session.end >= oldest}


def test_a_session_that_grows_leaves_little_behind() -> None:
    store = SessionStore(StoreSpec(name="s", kind="session", layout=LAYOUT, retention_ms=10**9))
    for end in range(20_000):
        store.put(Windowed("a", 0, end - 1), None)
        store.put(Windowed("a", 0, end), end)
    assert len(store._to_expire) < 2000
    assert len(store._to_end) < 2000
    assert store.ended(0, 10**9) == [(Windowed("a", 0, 19_999), 19_999)]


@given(st.lists(st.tuples(keys, st.none() | st.integers(0, 9), st.integers(0, 99)), max_size=20), st.integers(0, 20))
def test_values_are_set_at_once_as_one_by_one(script: list[tuple[str, int | None, int]], before: int) -> None:
    one, other = (KeyValueStore(StoreSpec(name="k", kind="key_value", layout=LAYOUT)) for _ in range(2))
    replaced = []
    for key, value, time_ms in script:
        stored: Stored | None = one.get(key)
        replaced.append(None if stored is None else stored.value)
        one.put(key, value, time_ms)
    parts = [script[:before], script[before:]]
    given = [list(zip(*part, strict=True)) if part else [(), (), ()] for part in parts]
    assert [old for cells in given for old in other.put_all(*cells)] == replaced
    assert one.commit() == other.commit()
    assert dict(one.entries()) == dict(other.entries())
