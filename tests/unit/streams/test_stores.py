"""Tests of object stores.

The stores are compared with a model that is sorted for every query, and with themselves over stored rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_streams.layout import WINDOW_TYPE, Layout
from millrace_streams.serdes import sort_key
from millrace_streams.state.rows import Limits
from millrace_streams.state.variables import MemoryVariables
from millrace_streams.steps.packed_state import kept_rows, store_over
from millrace_streams.stores import (
    KeyValueStore,
    ObjectStore,
    RecordStore,
    SessionStore,
    StoreSpec,
    TimeBuffer,
    WindowStore,
    new_store,
)
from millrace_streams.stores.base import Change, Stored
from millrace_streams.stores.below import packed
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
    over = sorted((each for each in model if each.end <= closed_ms), key=lambda s: (s.end, s.start, sort_key(s.key)))
    assert store.ended(0, closed_ms) == [(session, model[session]) for session in over]
    assert store.ended(closed_ms + 1, 99) == sorted(
        ((each, value) for each, value in model.items() if each.end > closed_ms),
        key=lambda item: (item[0].end, item[0].start, sort_key(item[0].key)),
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


WINDOWED = Layout(
    schema=pa.schema(
        [("key", pa.string()), ("window_start", WINDOW_TYPE), ("window_end", WINDOW_TYPE), ("value", pa.int64())]
    ),
    key=("key",),
    bucket_columns=None,
    value="value",
    windowed=True,
)
SPECS = {
    "key_value": StoreSpec(name="s", kind="key_value", layout=LAYOUT),
    "window": StoreSpec(name="s", kind="window", layout=WINDOWED, retention_ms=30),
    "session": StoreSpec(name="s", kind="session", layout=WINDOWED, retention_ms=30),
    "versioned": StoreSpec(name="s", kind="versioned", layout=LAYOUT, retention_ms=30),
    "records": StoreSpec(name="s", kind="records", form="records", layout=LAYOUT, retention_ms=30),
    "held": StoreSpec(name="s", kind="buffer", form="held", layout=LAYOUT),
    "final": StoreSpec(name="s", kind="buffer", form="final", layout=WINDOWED),
}
Call = tuple[str, Any, int, int, int | None]


def called(store: Any, closed_ms: int, call: Call) -> Any:
    """Do to a store what its operator does, and return what the operator would see."""
    what, key, first_ms, more_ms, value = call
    last_ms, until_ms = first_ms + more_ms, closed_ms + more_ms
    match store:
        case KeyValueStore():
            calls: dict[str, Callable[[], Any]] = {
                "put": lambda: store.put(key, value, first_ms),
                "get": lambda: store.get(key),
                "before": lambda: store.before(key),
                "range": lambda: list(store.range(key, None if value is None else "abcdefghij"[value])),
            }
        case WindowStore():
            calls = {
                "put": lambda: first_ms < store.kept_from_ms or store.put(key, first_ms, value, last_ms),
                "get": lambda: store.fetch(key, first_ms),
                "before": lambda: store.before((key, first_ms)),
                "range": lambda: store.fetch_range(key, first_ms, last_ms),
                "next": lambda: list(store.started(closed_ms + 1, until_ms)),
                "expire": lambda: store.expire(until_ms=None if value is None else until_ms),
            }
        case SessionStore():
            calls = {
                "put": lambda: last_ms < store.kept_from_ms or store.put(Windowed(key, first_ms, last_ms), value),
                "get": lambda: store.entry(Windowed(key, first_ms, last_ms)),
                "before": lambda: store.before(Windowed(key, first_ms, last_ms)),
                "range": lambda: store.find(key, first_ms, last_ms),
                "next": lambda: store.ended(closed_ms + 1, until_ms),
                "expire": lambda: store.expire(until_ms=None if value is None else until_ms),
            }
        case RecordStore():
            calls = {
                "put": lambda: store.put(key, first_ms, last_ms),
                "get": lambda: store.between(key, first_ms, first_ms),
                "before": lambda: store.before((key, first_ms)),
                "range": lambda: store.between(key, first_ms, last_ms),
                "next": lambda: store.want_records("abc", [(key, last_ms)], first_ms, last_ms),
                "expire": lambda: store.expire(),
            }
        case TimeBuffer():
            row = Windowed(key, first_ms, last_ms) if store.spec.form == "final" else key
            calls = {
                "put": lambda: hold(store, row, value, last_ms),
                "get": lambda: store.entry(row),
                "before": lambda: store.before(row),
                "remove": lambda: store.remove(row),
                "next": lambda: list(popped(store, until_ms)),
                "range": lambda: len(store),
            }
        case _:
            calls = {
                "put": lambda: store.put(key, value, first_ms),
                "get": lambda: store.get(key, first_ms),
                "before": lambda: store.before(key),
            }
    return calls.get(what, lambda: list(store.entries()))()


def hold(buffer: TimeBuffer, row: Any, value: int | None, due_ms: int) -> None:
    """Hold a change; a row that is held already keeps its place."""
    held = buffer.entry(row)
    buffer.put(row, Held(row, value, due_ms, None, due_ms if held is None else held.due))


def popped(buffer: TimeBuffer, until_ms: int) -> Iterator[tuple[Any, Any]]:
    while (oldest_ms := buffer.oldest_ms(until_ms)) is not None and oldest_ms <= until_ms:
        yield buffer.pop_oldest()


calls = st.tuples(
    st.sampled_from(["put", "put", "put", "get", "before", "range", "next", "expire", "remove", "entries"]),
    st.sampled_from("abc"),
    # Few times, so that calls often meet the same entry.
    st.sampled_from([0, 3, 8, 16, 24, 40, 60]),
    st.sampled_from([0, 3, 9]),
    st.none() | st.integers(0, 9),
)


@pytest.mark.parametrize("kind", SPECS)
@settings(max_examples=20)
@given(script=st.lists(st.lists(calls, max_size=8), max_size=4))
def test_a_store_over_stored_rows_answers_like_one_in_memory(kind: str, script: list[list[Call]]) -> None:
    spec, limits, variables = SPECS[kind], Limits(log_bytes=1, page_bytes=700, slot_ms=4), MemoryVariables()
    whole, closed_ms = new_store(spec), -1
    for batch in script:
        kept = kept_rows(spec, variables, limits)
        over = store_over(spec, kept)
        assert isinstance(over, ObjectStore)
        for call in batch:
            assert called(over, closed_ms, call) == called(whole, closed_ms, call)
            closed_ms += call[3] if call[0] == "next" else 0
        change = over.commit()
        assert change == whole.commit()
        kept.save(packed(spec, change.entries.items()), change.numbers, over.kept_from_ms)
    again = store_over(spec, kept_rows(spec, variables, limits))
    assert isinstance(again, ObjectStore)
    assert sorted(again.packed_entries(), key=repr) == sorted(whole.packed_entries(), key=repr)


@pytest.mark.parametrize(
    ("until_ms", "left"),
    [(None, [11, 12, 20]), (9, [9, 10, 11, 12, 20]), (10, [10, 11, 12, 20]), (11, [11, 12, 20]), (15, [11, 12, 20])],
)
@pytest.mark.parametrize("kind", ["window", "session"])
def test_entries_expire_if_they_are_older_than_the_retention_and_the_limit(
    kind: str, until_ms: int | None, left: list[int]
) -> None:
    store = new_store(StoreSpec(name="s", kind=kind, layout=WINDOWED, retention_ms=10))  # type: ignore[arg-type]
    assert isinstance(store, WindowStore | SessionStore)
    for time_ms in (12, 9, 20, 11, 10):
        for key in "ab":
            if isinstance(store, WindowStore):
                store.put(key, time_ms, time_ms, time_ms)
            else:
                store.put(Windowed(key, time_ms - 5, time_ms), time_ms)
    store.expire(until_ms=until_ms)
    assert store.oldest_ms == 11
    assert store.kept_from_ms == left[0]
    kept = [value.value if isinstance(value, Stored) else value for _, value in store.packed_entries()]
    assert sorted(kept) == sorted(left * 2)
    found = [value.value if isinstance(value, Stored) else value for _, value in store.entries()]
    assert found == [11, 12, 20] * 2, "only what is within the retention is readable"
    store.expire(until_ms=0)
    assert len(list(store.packed_entries())) == len(kept)
    assert store.kept_from_ms >= min(until_ms or 11, 11), "what has expired stays expired"


def test_many_sessions_that_were_replaced_hide_no_others() -> None:
    store = SessionStore(StoreSpec(name="s", kind="session", layout=WINDOWED, retention_ms=1000))
    for number in range(1500):
        store.put(Windowed("a", number, number + 3), None)
        store.put(Windowed("a", number + 1, number + 4), number)
        if number % 500 == 0:
            store.put(Windowed("b", number + 1, number + 2), -number)
    assert [session for session, _ in store.ended(0, 1400)] == [Windowed("b", at + 1, at + 2) for at in (0, 500, 1000)]
    assert [session for session, _ in store.ended(1401, 2000)] == [Windowed("a", 1500, 1503)]
    store.expire()
    assert {session for session, _ in store.packed_entries()} == {Windowed("a", 1500, 1503), Windowed("b", 1001, 1002)}


def test_sessions_of_a_key_are_found_by_end_and_by_start() -> None:
    store = SessionStore(StoreSpec(name="s", kind="session", layout=WINDOWED, retention_ms=100))
    for start, end in ((0, 30), (10, 20), (25, 30)):
        store.put(Windowed("a", start, end), start)
    assert [value for _, value in store.find("a", 0, 99)] == [10, 0, 25]
    assert [value for _, value in store.find("a", 20, 25)] == [10, 0, 25]
    assert [value for _, value in store.find("a", 21, 24)] == [0]
    assert store.find("a", 31, 99) == store.find("b", 0, 99) == []


def test_two_changes_as_one_have_the_newer_entries_and_are_touched_if_either_is() -> None:
    first = Change(entries={"a": 1, "b": 2}, numbers={"n": 1}, touched=True)
    later = Change(entries={"b": None}, numbers={"n": 2}, touched=False)
    assert first.followed_by(later) == Change(entries={"a": 1, "b": None}, numbers={"n": 2}, touched=True)
    assert later.followed_by(first) == Change(entries={"a": 1, "b": 2}, numbers={"n": 1}, touched=True)
    assert not later.followed_by(later).touched


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("asked", ["get", "before", "range", "entries"])
def test_an_entry_of_an_earlier_batch_is_loaded_when_it_is_asked_for(kind: str, asked: str) -> None:
    spec, variables = SPECS[kind], MemoryVariables()
    whole = new_store(spec)
    called(whole, -1, ("put", "a", 40, 3, 7))
    change = whole.commit()
    kept_rows(spec, variables).save(packed(spec, change.entries.items()), change.numbers, whole.kept_from_ms)
    expected = called(whole, -1, (asked, "a", 40, 3, 7))
    assert expected
    assert called(store_over(spec, kept_rows(spec, variables)), -1, (asked, "a", 40, 3, 7)) == expected
    changed = store_over(spec, kept_rows(spec, variables))
    called(changed, -1, ("put", "a", 40, 3, 8))
    assert called(changed, -1, ("before", "a", 40, 3, 7)) == called(whole, -1, ("before", "a", 40, 3, 7))


class Bound(int):
    """A bound that counts its comparisons."""

    compared = 0

    def _counting(self, name: str, other: Any) -> Any:
        Bound.compared += 1
        return getattr(int, name)(self, other)

    def __lt__(self, other: Any) -> Any:
        return self._counting("__lt__", other)

    def __le__(self, other: Any) -> Any:
        return self._counting("__le__", other)

    def __gt__(self, other: Any) -> Any:
        return self._counting("__gt__", other)

    def __ge__(self, other: Any) -> Any:
        return self._counting("__ge__", other)


def test_a_look_up_does_not_read_the_earlier_windows_and_sessions_of_its_key() -> None:
    windows = new_store(StoreSpec(name="w", kind="window", layout=LAYOUT, retention_ms=10_000))
    found = new_store(StoreSpec(name="s", kind="session", layout=LAYOUT, retention_ms=10_000))
    assert isinstance(windows, WindowStore)
    assert isinstance(found, SessionStore)
    for start in (*range(0, 1000, 2), *range(1, 1000, 2)):
        windows.put("a", start, start, 5)
        found.put(Windowed("a", start * 5, start * 5 + 3), start)
    windows.put("a", 998, None, 5)
    found.put(Windowed("a", 4990, 4993), None)
    Bound.compared = 0
    assert [start for start, _ in windows.fetch_range("a", Bound(996), 999)] == [996, 997, 999]
    assert [value for _, value in found.find("a", Bound(4983), 9999)] == [996, 997, 999]
    assert 0 < Bound.compared < 60
