"""JSON encoding of nodes, and their decoding into classes."""

from __future__ import annotations

import json
from typing import Any, Self

from millrace.errors import StorageError


def dump_json(value: dict[str, Any]) -> bytes:
    """Encode a value as compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


class JsonNode:
    """Base of node classes; any decoding error becomes a ``StorageError``."""

    __slots__ = ()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a node's bytes. Raises ``StorageError``."""
        try:
            return cls._from_json(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(f"metadata node is not a valid {cls.__name__} ({error!r}): {data[:200]!r}") from error

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        raise NotImplementedError
