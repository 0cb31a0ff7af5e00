"""Interface of authorizers, and the authorizer that decides by ACLs.

Kafka's interfaces are ``Authorizer`` and ``AuthorizableRequestContext``; its implementations are ``AclAuthorizer`` and
``StandardAuthorizer``. ``authorizer.class.name`` chooses the implementation.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from millrace.acls import AclBinding, AclBindingFilter, AclOperation, ResourceType
from millrace.config.broker import BrokerConfig
from millrace.coordinator_records import AUDIT_TOPIC
from millrace.errors import InvalidConfigError, MillraceError
from millrace_broker.security.acl_index import canonical_host
from millrace_broker.security.acl_store import AclStore
from millrace_broker.security.principal import KafkaPrincipal

_decisions = logging.getLogger("millrace.authorizer")
"""Kafka's ``kafka.authorizer.logger``: denials at INFO, permissions at DEBUG."""

ACL_AUTHORIZER: Final = "millrace_broker.security.AclAuthorizer"
_KAFKA_NAMES: Final = (
    "kafka.security.authorizer.AclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)
"""Kafka's authorizers by ACLs, which the same options configure."""


class ClientHost(Protocol):
    """Address of a client."""

    @property
    def host(self) -> str:
        """IP address."""
        ...


class AuthorizableRequest(Protocol):
    """Kafka's ``AuthorizableRequestContext``: the request that a decision is for."""

    @property
    def api_name(self) -> str:
        """Name of the call."""
        ...

    @property
    def listener_name(self) -> str:
        """Listener by which the request came."""
        ...

    @property
    def principal(self) -> KafkaPrincipal:
        """Identity of the client."""
        ...

    @property
    def client_id(self) -> str:
        """Name that the client claims."""
        ...

    @property
    def client_address(self) -> ClientHost:
        """Address of the client."""
        ...


class Authorizer(Protocol):
    """Kafka's ``Authorizer``. A class of this kind is called with the broker's configuration and its ``AclStore``.

    Decisions are asked for in the event loop and must not wait. Changes of ACLs run in the administration thread.
    """

    def authorize(
        self,
        request: AuthorizableRequest,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        is_logged: bool = True,
    ) -> bool:
        """Return whether the request's client may do an operation on a resource.

        ``is_logged`` is False if a denial only leaves the resource out of an answer.
        """
        ...

    def authorize_by_resource_type(
        self, request: AuthorizableRequest, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Return whether the client may do an operation on some resource of a type (KIP-679)."""
        ...

    def acls(self, wanted: AclBindingFilter) -> list[AclBinding]:
        """Return the ACLs that match a filter."""
        ...

    def create_acls(self, bindings: Sequence[AclBinding]) -> list[MillraceError | None]:
        """Add ACLs, and return the error of each. It blocks."""
        ...

    def delete_acls(self, filters: Sequence[AclBindingFilter]) -> list[list[AclBinding] | MillraceError]:
        """Delete the ACLs that match filters, and return those of each, or its error. It blocks."""
        ...


class AclAuthorizer:
    """Authorizer that decides by the ACLs in the metadata store. Kafka's class of ZooKeeper is ``AclAuthorizer``."""

    def __init__(self, store: AclStore, *, super_users: Iterable[str] = (), allow_if_no_acl: bool = False) -> None:
        """``super_users`` may do everything. ``allow_if_no_acl`` allows a resource that no ACL is for."""
        self._store: Final = store
        self._super_users: Final = frozenset(super_users)
        self._allow_if_no_acl: Final = allow_if_no_acl

    def authorize(
        self,
        request: AuthorizableRequest,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        is_logged: bool = True,
    ) -> bool:
        """See ``Authorizer``."""
        principal = str(request.principal)
        index = self._store.index
        is_allowed = principal in self._super_users
        if not is_allowed:
            host = canonical_host(request.client_address.host)
            allowed, denied = index.bits(principal, host, resource_type, name)
            bit = 1 << operation
            is_allowed = not denied & bit and (
                bool(allowed & bit)
                or (self._allow_if_no_acl and may_be_open(name) and not index.has_any(resource_type, name))
            )
        if _decisions.isEnabledFor(logging.DEBUG if is_allowed else logging.INFO) and (is_logged or is_allowed):
            _log(request, principal, operation, f"{resource_type.title}:{name}", is_allowed=is_allowed)
        return is_allowed

    def authorize_by_resource_type(
        self, request: AuthorizableRequest, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """See ``Authorizer``."""
        principal = str(request.principal)
        is_allowed = principal in self._super_users or self._store.index.is_allowed_somewhere(
            principal,
            canonical_host(request.client_address.host),
            resource_type,
            operation,
            by_default=self._allow_if_no_acl,
        )
        if _decisions.isEnabledFor(logging.DEBUG if is_allowed else logging.INFO):
            _log(request, principal, operation, f"any {resource_type.title}", is_allowed=is_allowed)
        return is_allowed

    def acls(self, wanted: AclBindingFilter) -> list[AclBinding]:
        """See ``Authorizer``."""
        return self._store.index.find(wanted)

    def create_acls(self, bindings: Sequence[AclBinding]) -> list[MillraceError | None]:
        """See ``Authorizer``."""
        return self._store.create(bindings)

    def delete_acls(self, filters: Sequence[AclBindingFilter]) -> list[list[AclBinding] | MillraceError]:
        """See ``Authorizer``."""
        return self._store.delete(filters)


def decides_by_acls(class_name: str) -> bool:
    """Return whether ``authorizer.class.name`` is ``AclAuthorizer``, also by one of Kafka's names."""
    return class_name in (ACL_AUTHORIZER, *_KAFKA_NAMES)


def may_be_open(name: str) -> bool:
    """Return whether ``allow.everyone.if.no.acl.found`` applies to a resource. The audit always needs an ACL."""
    return name != AUDIT_TOPIC


def _log(
    request: AuthorizableRequest, principal: str, operation: AclOperation, resource: str, *, is_allowed: bool
) -> None:
    """Log a decision in the words of Kafka's authorizer log.

    Clients choose the names of resources, also of those that do not exist. No name may add a line to the log.
    """
    resource, principal = (each if each.isprintable() else repr(each)[1:-1] for each in (resource, principal))
    _decisions.log(
        logging.DEBUG if is_allowed else logging.INFO,
        "Principal = %s is %s operation = %s from host = %s on resource = %s for request = %s by listener = %s",
        principal,
        "Allowed" if is_allowed else "Denied",
        operation.name,
        request.client_address.host,
        resource,
        request.api_name,
        request.listener_name,
    )


def open_authorizer(config: BrokerConfig, store: AclStore | None) -> Authorizer | None:
    """Make the authorizer of a broker. Return None without a store; ``authorizer.class.name`` decides if there is one.

    A class that is not ``AclAuthorizer`` is called with the configuration and the store. Raises ``InvalidConfigError``
    if there is no such class.
    """
    if store is None:
        return None
    class_name = config.authorizer_class_name
    if decides_by_acls(class_name):
        return AclAuthorizer(
            store,
            super_users=config.super_user_principals,
            allow_if_no_acl=config.allow_everyone_if_no_acl_found,
        )
    module, _, name = class_name.rpartition(".")
    try:
        made: Authorizer = getattr(importlib.import_module(module), name)(config, store)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfigError(
            f"authorizer.class.name={class_name}: there is no such class ({error}). Give module.Class of an installed "
            f"package, or {ACL_AUTHORIZER}"
        ) from error
    return made
