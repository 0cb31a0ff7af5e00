"""What all stores have in common: a spec, the entries of the current batch's beginning, a few numbers, a commit.

Invariants:

* entries change only through the store's operator, between two commits of one batch;
* ``before`` gives an entry as it was at the last commit, whatever the batch has changed since;
* ``numbers`` (stream times and the like) belong to the operator and are kept with its entries.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from millrace_streams.layout import Layout

StoreKind: TypeAlias = Literal["key_value", "window", "session", "versioned", "buffer"]
EntryForm: TypeAlias = Literal["row", "records", "subscriptions", "held", "waiting_for_partner", "waiting_for_table"]
"""What an entry is: a value with its time (of versions: all of them), or what an operator of ours keeps for itself."""


class Stored(NamedTuple):
    """A value with the timestamp that it is stored under."""

    value: Any
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec:
    """What a store holds. ``layout`` gives the columns of its keys and values, ``other`` those of a second input.

    ``retention_ms``: how long a window's entry, a session or an old version is kept, counted from the newest one.
    """

    name: str
    kind: StoreKind
    layout: Layout
    retention_ms: int = 0
    form: EntryForm = "row"
    other: Layout | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a batch changed in a store: entries by their identity (None: deleted), and the operator's numbers.

    ``touched`` says whether it changed anything.
    """

    entries: dict[Hashable, Any]
    numbers: dict[str, int]
    touched: bool

    def followed_by(self, later: Change) -> Change:
        """Both changes as one."""
        entries = {**self.entries, **later.entries}
        return Change(entries=entries, numbers=later.numbers, touched=self.touched or later.touched)


@dataclass(slots=True)
class ObjectStore:
    """Base of the stores; entries are Python's objects under hashable identities."""

    spec: StoreSpec
    numbers: dict[str, int] = field(default_factory=dict)
    _undo: dict[Hashable, Any] = field(default_factory=dict)
    _numbers_before: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the store."""
        return self.spec.name

    def number(self, name: str, default: int = -1) -> int:
        """One of the operator's numbers."""
        return self.numbers.get(name, default)

    def number_before(self, name: str, default: int = -1) -> int:
        """One of the operator's numbers as it was when the batch began."""
        return self._numbers_before.get(name, default)

    def before(self, identity: Hashable) -> Any:
        """An entry as it was when the batch began; None if there was none."""
        if identity in self._undo:
            return self._undo[identity]
        return self.entry(identity)

    def changed(self, identity: Hashable) -> bool:
        """Whether the batch has changed an entry: what it holds now is the batch's own, and may be changed in place."""
        return identity in self._undo

    def commit(self) -> Change:
        """End a batch: what it changed."""
        entries = {identity: self.entry(identity) for identity in self._undo}
        touched = bool(entries) or self.numbers != self._numbers_before
        self._undo.clear()
        self._numbers_before = dict(self.numbers)
        return Change(entries=entries, numbers=dict(self.numbers), touched=touched)

    def entry(self, identity: Hashable) -> Any:
        """The entry as it is now; None if there is none."""
        raise NotImplementedError

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """All entries that may still be read, in the order of their keys' bytes."""
        raise NotImplementedError

    def packed_entries(self) -> Iterator[tuple[Hashable, Any]]:
        """All entries that must be kept, by identity."""
        return self.entries()

    def restore(self, identity: Hashable, entry: Any) -> None:
        """Put an entry back as it was packed (None: it is gone); no change of the batch."""
        raise NotImplementedError

    def _remember(self, identity: Hashable, entry: Any) -> None:
        """Keep what an entry was before the batch, at its first change."""
        if identity not in self._undo:
            self._undo[identity] = entry
