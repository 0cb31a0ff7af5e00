"""What operators of ours keep for themselves: entries of buffers, and the subscriptions of foreign keys."""

from __future__ import annotations

from typing import Any, NamedTuple

from millrace_streams.serdes import sort_key


class Held(NamedTuple):
    """A change that is held back: the newest of its key, the value that it replaced, the time that it waits for."""

    key: Any
    value: Any
    timestamp: int
    before: Any
    due: int

    @property
    def place(self) -> tuple[Any, ...]:
        """By time, then key."""
        return (self.due, sort_key(self.key))


class WaitingForPartner(NamedTuple):
    """Records of one side, key and time that have found no partner yet."""

    left: bool
    key: Any
    timestamp: int
    values: tuple[Any, ...]

    @property
    def place(self) -> tuple[Any, ...]:
        """By time; at equal times the right side's come first, then by key."""
        return (self.timestamp, self.left, sort_key(self.key))


class WaitingForTable(NamedTuple):
    """A record that waits for older changes of the table that it is joined with, by ``table_key``."""

    number: int
    key: Any
    value: Any
    timestamp: int
    table_key: Any

    @property
    def place(self) -> tuple[Any, ...]:
        """By time, then key, then arrival."""
        return (self.timestamp, self.key is not None, sort_key(self.key), self.number)
