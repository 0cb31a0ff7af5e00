"""Which brokers and which group a stream's offsets belong to, told in progress reports under the name ``@origin``.

A ``StreamingQueryListener`` sees offsets and none of the options. Secrets are not among what is told: reports are
logged, and shown in Spark's web interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_ORIGIN: Final = "@origin"


@dataclass(frozen=True, slots=True)
class QueryOrigin:
    """Where the offsets of one source count. ``group_id`` wins over ``group_id_prefix``, as in Kafka's connector."""

    bootstrap_servers: str
    group_id: str | None = None
    group_id_prefix: str | None = None

    def group_of(self, query_id: str) -> str | None:
        """The group that is told how far the query is; None where nobody asked for one."""
        if self.group_id is not None or self.group_id_prefix is None:
            return self.group_id
        return f"{self.group_id_prefix}-{query_id}"


def with_origin(report: Mapping[str, Any], origin: QueryOrigin) -> dict[str, Any]:
    """Offsets in JSON for a progress report, with their origin."""
    told = {
        "servers": origin.bootstrap_servers,
        "group": origin.group_id,
        "groupIdPrefix": origin.group_id_prefix,
    }
    return {**report, _ORIGIN: {name: value for name, value in told.items() if value is not None}}


def origin_of(report: Mapping[str, Any]) -> QueryOrigin | None:
    """What ``with_origin`` put there."""
    told = report.get(_ORIGIN)
    return None if told is None else QueryOrigin(told["servers"], told.get("group"), told.get("groupIdPrefix"))
