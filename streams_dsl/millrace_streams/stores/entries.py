"""Private entries of operators: those of buffers."""

from __future__ import annotations

from typing import Any, NamedTuple

from millrace_streams.serdes import sort_key


class Held(NamedTuple):
    """Newest change of a suppressed key.

    ``before`` is the value that the suppressed change replaced. ``due`` is the change's time, or for final results its
    window's end; the wait begins then.
    """

    key: Any
    value: Any
    timestamp: int
    before: Any
    due: int

    @property
    def place(self) -> tuple[Any, ...]:
        """Order by time, then key."""
        return (self.due, sort_key(self.key))


class WaitingForPartner(NamedTuple):
    """Records of one side, key and time that wait for a match."""

    left: bool
    key: Any
    timestamp: int
    values: tuple[Any, ...]

    @property
    def place(self) -> tuple[Any, ...]:
        """Order by time; at equal times the right side first, then by key."""
        return (self.timestamp, self.left, sort_key(self.key))


class WaitingForTable(NamedTuple):
    """A record that waits for older changes of its table, with ``table_key``."""

    number: int
    key: Any
    value: Any
    timestamp: int
    table_key: Any

    @property
    def place(self) -> tuple[Any, ...]:
        """Order by time, then key, then arrival."""
        return (self.timestamp, self.key is not None, sort_key(self.key), self.number)
