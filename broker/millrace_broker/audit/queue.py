"""Rows of the audit in memory, for the event loop's thread.

Invariants

- There are at most ``max_rows`` rows. A decision that needs one more is counted in ``dropped``.
- Equal decisions between two calls of ``drain`` share one row, which has their number.
- Permissions to read ``__audit`` are recorded once in ``OWN_INTERVAL_S`` for each client and call. Otherwise each row
  about a read would be a new record for the same reader, without end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from millrace.acls import AclOperation, ResourceType
from millrace.coordinator_records import AUDIT_TOPIC
from millrace_broker.audit.events import AuditRow
from millrace_broker.audit.selection import Selection
from millrace_broker.security import AuthorizableRequest, KafkaPrincipal

AUTHENTICATE: Final = "AUTHENTICATE"
"""Operation of a row for a client that failed to authenticate as a user. Kafka's ACLs have no such operation."""

OWN_INTERVAL_S: Final = 3600.0
"""Time within which the same read of the audit is recorded once."""
_OWN_MAX: Final = 10_000
"""Maximum of reads of the audit that are remembered."""
_TEXT_MAX: Final = 256
"""Longest text of a client in a row, in characters. Principals may be as long as a provider's tokens."""


class _Key(NamedTuple):
    """Fields that are the same in equal decisions."""

    principal: KafkaPrincipal
    host: str
    listener: str
    client_id: str
    call: str
    operation: AclOperation | None
    """None for an authentication."""
    resource_type: ResourceType
    resource: str
    allowed: bool


class AuditQueue:
    """Rows that wait for the next write; see the module."""

    def __init__(
        self,
        selection: Selection,
        *,
        max_rows: int,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self._selection: Final = selection
        self._max_rows: Final = max_rows
        self._now_ms: Final = now_ms
        self._monotonic: Final = monotonic
        self._rows: dict[_Key, list[int]] = {}
        """First time, last time and count of each row."""
        self._own: Final[dict[_Key, float]] = {}
        """Recorded reads of the audit, with the times at which they are forgotten."""
        self._readers: Final[dict[Any, float]] = {}
        """Clients that read the audit, with the times at which they are forgotten."""
        self.recorded = 0
        """Decisions in rows, since the start."""
        self.dropped = 0
        """Decisions that were lost because the queue was full, since the start."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def record(
        self,
        request: AuthorizableRequest,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        is_allowed: bool,
    ) -> None:
        """Record a decision if it is selected."""
        if self._selection.includes(request.principal, operation, resource_type, name, is_allowed=is_allowed):
            key = _key(request, operation, resource_type, name, is_allowed)
            row = self._rows.get(key)
            if row is not None or not (is_allowed and self._is_repeated(key)):
                self._count(key, row)

    def record_refused_login(self, request: AuthorizableRequest, user: str) -> None:
        """Record that a client failed to authenticate as a user.

        ``user`` is empty if there is no such user. Strangers choose such names, so that each of them could fill a row
        of the queue. Also, it may be a password that was typed for the name.
        """
        if self._selection.includes_principal(request.principal):
            key = _key(request, None, ResourceType.USER, user, False)
            self._count(key, self._rows.get(key))

    def _count(self, key: _Key, row: list[int] | None) -> None:
        """Count a decision in its row, or make the row if there is none."""
        now_ms = self._now_ms()
        if row is not None:
            row[1] = now_ms
            row[2] += 1
        elif len(self._rows) < self._max_rows:
            self._rows[key] = [now_ms, now_ms, 1]
        else:
            self.dropped += 1
            return
        self.recorded += 1

    def drain(self) -> list[AuditRow]:
        """Remove all rows and return them, in the order of their first decisions."""
        now = self._monotonic()
        for remembered in (self._own, self._readers):
            for each in [each for each, until in remembered.items() if until <= now]:
                del remembered[each]
        rows, self._rows = self._rows, {}
        return [
            AuditRow(
                first_ms,
                last_ms,
                str(key.principal)[:_TEXT_MAX],
                key.host,
                key.listener,
                key.client_id,
                key.call,
                AUTHENTICATE if key.operation is None else key.operation.name,
                key.resource_type.name,
                key.resource,
                key.allowed,
                count,
            )
            for key, (first_ms, last_ms, count) in rows.items()
        ]

    def _is_repeated(self, key: _Key) -> bool:
        """Return whether a permission belongs to a read of the audit that is recorded already.

        The group of a client that reads the audit counts too, because it commits an offset for each new row.
        """
        is_topic = key.resource_type is ResourceType.TOPIC and key.resource == AUDIT_TOPIC
        client = (key.principal, key.host, key.client_id)
        until = self._monotonic() + OWN_INTERVAL_S
        if is_topic:
            self._remember(self._readers, client, until)
        elif key.resource_type is not ResourceType.GROUP or client not in self._readers:
            return False
        if key in self._own:
            return True
        self._remember(self._own, key, until)
        return False

    def _remember(self, remembered: dict[Any, float], each: Any, until: float) -> None:
        if each not in remembered and len(remembered) >= _OWN_MAX:
            del remembered[next(iter(remembered))]
        remembered[each] = until


def _key(
    request: AuthorizableRequest,
    operation: AclOperation | None,
    resource_type: ResourceType,
    name: str,
    is_allowed: bool,
) -> _Key:
    return _Key(
        request.principal,
        request.client_address.host,
        request.listener_name,
        request.client_id[:_TEXT_MAX],
        request.api_name,
        operation,
        resource_type,
        name[:_TEXT_MAX],
        is_allowed,
    )
