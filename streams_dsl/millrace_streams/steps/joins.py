"""What joins have in common: the joiner, and a table's rows as they were at each record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from millrace_streams.steps.flow import Inputs
from millrace_streams.steps.operator import State
from millrace_streams.stores import VersionedStore
from millrace_streams.stores.base import Stored
from millrace_streams.stores.versioned import Versions


@dataclass(slots=True)
class TableView:
    """The rows of another operator's table: those before the batch, rolled forward with its changes."""

    rows: dict[Any, Stored]

    @classmethod
    def of(cls, state: State, store: str, keys: Iterable[Any]) -> TableView:
        """Fetch the rows of these keys at once."""
        return cls(state.rows_before(store, keys))

    def get(self, key: Any, as_of_ms: int) -> Stored | None:
        """The row of a key at this point of the batch."""
        return self.rows.get(key)

    def roll(self, key: Any, value: Any, time_ms: int) -> None:
        """Take over a change."""
        if value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = Stored(value, time_ms)


@dataclass(slots=True)
class VersionsView(TableView):
    """The same of a table of versions, which can be asked for the past."""

    versions: dict[Any, Versions] = field(default_factory=dict)
    newest_ms: int = -1
    history_ms: int = 0

    @classmethod
    def of_store(cls, store: VersionedStore, keys: Iterable[Any]) -> VersionsView:
        """Fetch the versions of these keys at once."""
        found = {key: store.before(key) for key in keys}
        versions = {key: each for key, each in found.items() if each is not None}
        return cls({}, versions, store.number_before("newest_time"), store.spec.retention_ms)

    def get(self, key: Any, as_of_ms: int) -> Stored | None:
        """The version of a key that was valid at a time."""
        versions = self.versions.get(key)
        return None if versions is None else versions.get(as_of_ms, self.newest_ms - self.history_ms)

    def roll(self, key: Any, value: Any, time_ms: int) -> None:
        """Take over a change."""
        self.newest_ms = max(self.newest_ms, time_ms)
        versions = self.versions.setdefault(key, Versions())
        versions.put(time_ms, value)
        versions.prune(self.newest_ms - self.history_ms)


def keys_of_side(inputs: Inputs, side: int) -> set[Any]:
    """The keys of one input."""
    return {key for key in inputs.batches[side].keys if key is not None}
