"""Single-node calls of a session, implemented with ``multi``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from millrace.coordination.interface import (
    ANY_VERSION,
    Create,
    Delete,
    NodeStat,
    NoNodeError,
    Operation,
    Watch,
    Write,
)


class SingleCalls(ABC):
    """Part of a ``Coordination``, which documents each method."""

    @abstractmethod
    def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]:
        """Read a node."""

    @abstractmethod
    def multi(self, operations: Sequence[Operation]) -> list[str | NodeStat | None]:
        """Apply all operations or none."""

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """Create a node; returns its path."""
        return str(self.multi([Create(path, data, ephemeral=ephemeral, sequential=sequential)])[0])

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, NodeStat] | None]:
        """Read nodes; None for those that do not exist."""
        return [self._get_or_none(path) for path in paths]

    def _get_or_none(self, path: str) -> tuple[bytes, NodeStat] | None:
        try:
            return self.get(path)
        except NoNodeError:
            return None

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> NodeStat:
        """Write a node."""
        result = self.multi([Write(path, data, version)])[0]
        assert isinstance(result, NodeStat)
        return result

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node."""
        self.multi([Delete(path, version)])
