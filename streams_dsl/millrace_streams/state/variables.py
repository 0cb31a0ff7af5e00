"""Where the state of one store of one bucket lies: a log, which is a list of chunks, and pages by their numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from millrace_streams.state.pages import Page


class StateVariables(Protocol):
    """The state of one store, as chunks of bytes."""

    def read_log(self) -> list[bytes]:
        """The log's chunks, in order."""
        ...

    def append_to_log(self, chunk: bytes) -> None:
        """Add a chunk to the log."""
        ...

    def replace_log(self, chunk: bytes) -> None:
        """Put one chunk in the place of the whole log."""
        ...

    def read_page(self, page: Page) -> bytes | None:
        """A page; None if it holds nothing."""
        ...

    def write_page(self, page: Page, chunk: bytes) -> None:
        """Put a page in its place."""
        ...

    def remove_page(self, page: Page) -> None:
        """Remove a page, if it is there."""
        ...


@dataclass(slots=True)
class MemoryVariables:
    """The state of a store in memory, as it was read from a checkpoint, say."""

    log: list[bytes] = field(default_factory=list)
    pages: dict[Page, bytes] = field(default_factory=dict)

    def read_log(self) -> list[bytes]:
        """The log's chunks, in order."""
        return list(self.log)

    def append_to_log(self, chunk: bytes) -> None:
        """Add a chunk to the log."""
        self.log.append(chunk)

    def replace_log(self, chunk: bytes) -> None:
        """Put one chunk in the place of the whole log."""
        self.log = [chunk]

    def read_page(self, page: Page) -> bytes | None:
        """A page; None if it holds nothing."""
        return self.pages.get(page)

    def write_page(self, page: Page, chunk: bytes) -> None:
        """Put a page in its place."""
        self.pages[page] = chunk

    def remove_page(self, page: Page) -> None:
        """Remove a page, if it is there."""
        self.pages.pop(page, None)
