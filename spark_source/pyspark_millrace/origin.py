"""Brokers and group of a stream's offsets, in progress reports as ``@origin``.

A ``StreamingQueryListener`` sees offsets but no options. The origin contains no secrets, because reports are logged and
shown in Spark's web interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_ORIGIN: Final = "@origin"


@dataclass(frozen=True, slots=True)
class QueryOrigin:
    """Origin of one source's offsets. ``group_id`` has priority over ``group_id_prefix``, as in the Kafka connector."""

    bootstrap_servers: str
    group_id: str | None = None
    group_id_prefix: str | None = None

    def group_of(self, query_id: str) -> str | None:
        """Return the group for the query's commits; None if no group is set."""
        if self.group_id is not None or self.group_id_prefix is None:
            return self.group_id
        return f"{self.group_id_prefix}-{query_id}"


def with_origin(report: Mapping[str, Any], origin: QueryOrigin) -> dict[str, Any]:
    """Add the origin to the offsets of a progress report."""
    told = {
        "servers": origin.bootstrap_servers,
        "group": origin.group_id,
        "groupIdPrefix": origin.group_id_prefix,
    }
    return {**report, _ORIGIN: {name: value for name, value in told.items() if value is not None}}


def origin_of(report: Mapping[str, Any]) -> QueryOrigin | None:
    """Return the origin in a progress report, None if it has none."""
    told = report.get(_ORIGIN)
    return None if told is None else QueryOrigin(told["servers"], told.get("group"), told.get("groupIdPrefix"))
