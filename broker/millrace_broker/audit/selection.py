"""Decisions that the audit records."""

from __future__ import annotations

from typing import Final

from millrace.acls import AclOperation, ResourceType
from millrace.config.authorization_options import AuditedDecisions, AuthorizationOptions
from millrace.coordinator_records import AUDIT_TOPIC

_ADMIN: Final = frozenset(
    (
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.ALTER_CONFIGS,
        AclOperation.CREATE_TOKENS,
    )
)
_WRITES: Final = _ADMIN | {AclOperation.WRITE, AclOperation.IDEMPOTENT_WRITE}
_ALLOWED: Final[dict[AuditedDecisions, frozenset[AclOperation]]] = {
    "none": frozenset(),
    "denied": frozenset(),
    "admin": _ADMIN,
    "writes": _WRITES,
    # Calls between brokers are excluded, because a write of the audit can be such a call and would cause the next one.
    "all": frozenset(AclOperation) - {AclOperation.CLUSTER_ACTION},
}


class Selection:
    """Choice of ``audit.decisions``, without those of ``audit.exclude.*``."""

    def __init__(self, options: AuthorizationOptions) -> None:
        self._allowed: Final = _ALLOWED[options.audit_decisions]
        self._principals: Final = frozenset(filter(None, map(str.strip, options.audit_exclude_principals.split(";"))))
        names = [name for each in options.audit_exclude_topics.split(",") if (name := each.strip())]
        self._topics: Final = frozenset(name for name in names if not name.endswith("*"))
        self._prefixes: Final = tuple(name[:-1] for name in names if name.endswith("*"))

    def includes(
        self, principal: object, operation: AclOperation, resource_type: ResourceType, name: str, *, is_allowed: bool
    ) -> bool:
        """Return whether a decision is recorded. ``principal`` has the form ``User:name`` as text."""
        is_topic = resource_type is ResourceType.TOPIC
        is_own = is_topic and name == AUDIT_TOPIC
        if is_allowed and operation not in self._allowed and not (is_own and operation is AclOperation.READ):
            return False
        if is_topic and not is_own and (name in self._topics or name.startswith(self._prefixes)):
            return False
        return self.includes_principal(principal)

    def includes_principal(self, principal: object) -> bool:
        """Return whether ``audit.exclude.principals`` leaves a principal in."""
        return not self._principals or str(principal) not in self._principals
