"""Tests of the stored forms of entries.

Each entry is read back as it was written.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from millrace_streams.layout import ASKING, WINDOW_TYPE, Layout
from millrace_streams.state.rows import DELETED
from millrace_streams.stores import StoreSpec
from millrace_streams.stores.base import Stored
from millrace_streams.stores.below import rows_of
from millrace_streams.stores.entries import Held, WaitingForPartner, WaitingForTable
from millrace_streams.stores.forms import form_of
from millrace_streams.stores.versioned import Versions
from millrace_streams.windows import FOREVER_MS, Windowed

WINDOW = {"window_start": WINDOW_TYPE, "window_end": WINDOW_TYPE}


def layout(columns: dict[str, pa.DataType], **options: Any) -> Layout:
    return Layout(schema=pa.schema(list(columns.items())), key=("key",), bucket_columns=None, **options)


LONGS = layout({"key": pa.string(), "value": pa.int64()}, value="value")
TEXTS = layout({"key": pa.string(), "value": pa.string()}, value="value")
ROWS = layout({"key": pa.string(), "n": pa.int64()})
WINDOWED = layout({"key": pa.string(), **WINDOW, "value": pa.int64()}, value="value", windowed=True)
ASKED = layout({"key": pa.string(), f"{ASKING}key": pa.int64()})
ASKED_BY_WINDOWS = layout(
    {"key": pa.string(), f"{ASKING}key": pa.int64(), **{f"{ASKING}{name}": each for name, each in WINDOW.items()}}
)
FOREVER = Windowed("b", 7, FOREVER_MS)


def spec(kind: Any, given: Layout, form: Any = "row", other: Layout | None = None) -> StoreSpec:
    return StoreSpec(name="s", kind=kind, layout=given, form=form, other=other)


FORMS: dict[str, tuple[StoreSpec, dict[Any, Any]]] = {
    "value": (spec("key_value", LONGS), {"a": Stored(1, 5), "b": Stored(2, 3)}),
    "row": (spec("key_value", ROWS), {"a": Stored({"key": "a", "n": 1}, 5)}),
    "window": (spec("window", WINDOWED), {("a", 0): Stored(1, 5), ("a", 10): Stored(2, 12), ("b", 0): Stored(3, 9)}),
    "session": (spec("session", WINDOWED), {Windowed("a", 0, 5): 1, Windowed("a", 20, 20): 2, FOREVER: 3}),
    "versions": (spec("versioned", LONGS), {"a": Versions([1, 5, 7], [1, None, 2]), "b": Versions([9], [4])}),
    "records": (
        spec("records", LONGS, "records"),
        {("a", 1): (7, 8), ("a", 5): (9,), ("b", 2): (3,)},
    ),
    "subscriptions": (
        spec("subscriptions", ASKED, "subscriptions"),
        {("x", 1): Stored("one", 5), ("x", 2): Stored("two", 5), ("y", 1): Stored("other", 6)},
    ),
    "subscriptions of windows": (
        spec("subscriptions", ASKED_BY_WINDOWS, "subscriptions"),
        {("x", Windowed(1, 0, 10)): Stored("one", 5), ("x", Windowed(1, 10, 20)): Stored("two", 5)},
    ),
    "held": (
        spec("buffer", LONGS, "held"),
        {"a": Held("a", 1, 5, None, 4), "b": Held("b", None, 6, 2, 6)},
    ),
    "final": (
        spec("buffer", WINDOWED, "final"),
        {key: Held(key, 1, 5, 0, key.end) for key in (Windowed("a", 0, 10), Windowed("b", 0, 10), FOREVER)},
    ),
    "waiting for a partner": (
        spec("buffer", LONGS, "waiting_for_partner", TEXTS),
        {
            (0, "a", 5): WaitingForPartner(True, "a", 5, (1, 2)),
            (1, "a", 5): WaitingForPartner(False, "a", 5, ("x", "y")),
            (1, "a", 6): WaitingForPartner(False, "a", 6, ("z",)),
        },
    ),
    "waiting for a table": (
        spec("buffer", LONGS, "waiting_for_table", TEXTS),
        {1: WaitingForTable(1, "a", 7, 5, "x"), 2: WaitingForTable(2, None, 8, 6, None)},
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_entries_are_read_back_as_they_were(name: str) -> None:
    described, entries = FORMS[name]
    form = form_of(described)
    frame = form.frame(entries.items())
    assert dict(form.entries(frame.drop(DELETED))) == entries
    assert not frame[DELETED].any()
    assert dict(form.entries(form.frame([]))) == {}


@pytest.mark.parametrize("name", FORMS)
def test_a_deleted_entry_is_one_row_with_its_identity_alone(name: str) -> None:
    described, entries = FORMS[name]
    form, identity = form_of(described), list(rows_of(described).identity)
    whole, deleted = form.frame(entries.items()), form.frame((key, None) for key in entries)
    assert deleted.schema == whole.schema
    assert deleted[DELETED].to_list() == [True] * len(entries)
    assert deleted.select(identity).equals(whole.select(identity).unique(maintain_order=True))
