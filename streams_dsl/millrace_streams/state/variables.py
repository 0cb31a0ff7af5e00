"""Storage of a store's state: a log of chunks, and pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from millrace_streams.state.pages import Page


class StateVariables(Protocol):
    """The state of one store, as chunks of bytes."""

    def read_log(self) -> list[bytes]:
        """Return the log's chunks, in order."""
        ...

    def append_to_log(self, chunk: bytes) -> None:
        """Append a chunk to the log."""
        ...

    def replace_log(self, chunk: bytes) -> None:
        """Replace the whole log by one chunk."""
        ...

    def read_page(self, page: Page) -> bytes | None:
        """Return a page; None if it is empty."""
        ...

    def write_page(self, page: Page, chunk: bytes) -> None:
        """Write a page."""
        ...

    def remove_page(self, page: Page) -> None:
        """Remove a page, if it exists."""
        ...


@dataclass(slots=True)
class MemoryVariables:
    """State of a store in memory, for example read from a checkpoint."""

    log: list[bytes] = field(default_factory=list)
    pages: dict[Page, bytes] = field(default_factory=dict)

    def read_log(self) -> list[bytes]:
        """Return the log's chunks, in order."""
        return list(self.log)

    def append_to_log(self, chunk: bytes) -> None:
        """Append a chunk to the log."""
        self.log.append(chunk)

    def replace_log(self, chunk: bytes) -> None:
        """Replace the whole log by one chunk."""
        self.log = [chunk]

    def read_page(self, page: Page) -> bytes | None:
        """Return a page; None if it is empty."""
        return self.pages.get(page)

    def write_page(self, page: Page, chunk: bytes) -> None:
        """Write a page."""
        self.pages[page] = chunk

    def remove_page(self, page: Page) -> None:
        """Remove a page, if it exists."""
        self.pages.pop(page, None)
