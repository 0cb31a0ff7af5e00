"""Tests of the subscriptions of a foreign-key join.

The subscriptions are in memory and in pages, and each is an entry of its own.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from millrace_streams.layout import ASKING, Layout
from millrace_streams.state.rows import LIMITS, KeptRows, Limits
from millrace_streams.state.variables import MemoryVariables
from millrace_streams.steps.packed_state import kept_rows, store_over
from millrace_streams.stores import StoreSpec, SubscriptionStore
from millrace_streams.stores.base import Stored
from millrace_streams.stores.below import packed, rows_of

from .test_state_packed import InPages

ASKED = Layout(
    schema=pa.schema([("key", pa.string()), (f"{ASKING}key", pa.int64())]), key=("key",), bucket_columns=None
)
SUBSCRIPTIONS = StoreSpec(name="s", kind="subscriptions", form="subscriptions", layout=ASKED)
LIMITED = pytest.mark.parametrize("limits", [InPages.limits, LIMITS], ids=["in pages", "in the log"])


class Kept:
    """A store's rows, which each batch opens anew."""

    def __init__(self, limits: Limits) -> None:
        self.variables, self.limits = MemoryVariables(), limits
        self.open()

    def open(self) -> None:
        self.rows = kept_rows(SUBSCRIPTIONS, self.variables, self.limits)
        store = store_over(SUBSCRIPTIONS, self.rows)
        assert isinstance(store, SubscriptionStore)
        self.store = store

    def save(self) -> int:
        """End the batch; returns the number of its changes."""
        change = self.store.commit()
        self.rows.save(packed(SUBSCRIPTIONS, change.entries.items()), change.numbers, self.store.kept_from_ms)
        self.open()
        return len(change.entries)


@LIMITED
def test_a_subscription_is_changed_without_the_others_of_its_key(limits: Limits) -> None:
    kept = Kept(limits)
    for left_key in range(300):
        kept.store.put("x", left_key, f"digest {left_key}", 5)
        kept.store.put("y", left_key, "other", 5)
    assert kept.save() == 600
    assert bool(kept.variables.pages) == (limits is not LIMITS)
    kept.store.put("x", 7, "new", 6)
    kept.store.put("x", 8, None, 6)
    kept.store.put("x", 300, "more", 6)
    kept.store.put("y", 301, "short", 6)
    kept.store.put("y", 301, None, 6)
    assert kept.rows.reads == 0
    expected = [(each, "new" if each == 7 else f"digest {each}") for each in range(300) if each != 8] + [(300, "more")]
    assert kept.store.of("x") == expected
    assert kept.save() == 4
    assert kept.store.of("x") == expected
    assert kept.store.of("y") == [(each, "other") for each in range(300)]
    assert kept.store.of("z") == []


def test_loaded_subscriptions_do_not_overwrite_changes_of_an_earlier_batch() -> None:
    kept = Kept(LIMITS)
    for left_key in (1, 2):
        kept.store.put("x", left_key, "old", 5)
    kept.save()
    kept.store.put("x", 1, None, 6)
    kept.store.put("x", 3, "new", 6)
    kept.store.commit()
    assert kept.store.of("x") == [(2, "old"), (3, "new")]
    assert [identity for identity, _ in kept.store.entries()] == [("x", 2), ("x", 3)]


@LIMITED
def test_subscriptions_that_an_earlier_version_kept_by_key_are_read(limits: Limits) -> None:
    earlier, kept = rows_of(SUBSCRIPTIONS).earlier, Kept(limits)
    assert earlier is not None
    batches: list[list[tuple[str, list[int]]]] = [
        [("x", list(range(100))), ("y", [1, 2]), ("gone", [3])],
        # The newest rows of a key replace all of its rows in the page.
        [("y", [2]), ("gone", [])],
        [("z", [4])],
    ]
    for batch in batches:
        rows: list[Any] = [((key, each), Stored("digest", 5)) for key, left_keys in batch for each in left_keys]
        gone = [((key, None), None) for key, left_keys in batch if not left_keys]
        KeptRows.read(earlier, kept.variables, limits).save(packed(SUBSCRIPTIONS, [*rows, *gone]), {}, -(2**63))
    assert bool(kept.variables.pages) == (limits is not LIMITS)
    for _ in range(3):
        kept.open()
        assert [len(kept.store.of(key)) for key in ("x", "y", "z", "gone")] == [100, 1, 1, 0]
        kept.store.put("w", 1, "digest", 6)
        kept.store.put("x", 1, "digest", 6)
        kept.save()
    kept.store.put("y", 2, None, 7)
    kept.save()
    assert [len(kept.store.of(key)) for key in ("w", "x", "y", "z", "gone")] == [1, 100, 0, 1, 0]
