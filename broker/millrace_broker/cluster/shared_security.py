"""One broker's view of the cluster's ACLs and delegation tokens.

The broker follows changes by other brokers with the notices of ``notifications``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Self

from millrace.config.broker import BrokerConfig
from millrace.coordination import Coordination, Watch
from millrace_broker.cluster.notifications import acl_notice, acl_notifications, token_notifications
from millrace_broker.security import AclStore, DelegationTokens


class SharedSecurity:
    """ACLs and delegation tokens of one broker. Its methods are for the administration thread."""

    def __init__(self, acls: AclStore | None, tokens: DelegationTokens) -> None:
        self.acls: Final = acls
        """None without an authorizer."""
        self.tokens: Final = tokens
        self._acl_notifications: Final = acl_notifications()
        self._token_notifications: Final = token_notifications()

    @classmethod
    def of(cls, config: BrokerConfig, coordination: Coordination, now_ms: Callable[[], int]) -> Self:
        """Read the ACLs and the tokens."""
        acls = AclStore.of(config, coordination, lambda pattern: [acl_notice(pattern)])
        return cls(acls, DelegationTokens.of(config, coordination, now_ms))

    def take(self, session: Coordination, watch: Watch) -> None:
        """Read what the new notices name, and set ``watch`` for the next one."""
        if self.acls is not None:
            for notifications in self._acl_notifications:
                notifications.take(session, watch, self.acls.reload)
        if self.tokens.is_enabled:
            self._token_notifications.take(session, watch, self.tokens.reload)

    def take_all(self) -> None:
        """Read everything, because notices may have been missed."""
        if self.acls is not None:
            self.acls.reload_all()
        self.tokens.reload_all()
