"""Authorization of calls by ``access_rules.RULES``.

Kafka does this in ``KafkaApis`` with ``AuthHelper``, in each call. Here a rule is data, and ``enforced`` applies it
around the handler. A handler never sees an item of a request that its client may not use. Without an authorizer the
handler is called at once.

Invariants

- A call without a rule stops the start of a broker, because each handler's rule is looked up at its import.
- Checks of a whole request come first, then those of items, then the handler, then the parts of the response that are
  left out.
- An item that is denied gets its error at its own place in the response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from typing import Any, Final, NamedTuple, TypeVar

from millrace.acls import CLUSTER_NAME, WILDCARD, AclOperation, ResourceType
from millrace.errors import (
    AuthorizationError,
    ClusterAuthorizationError,
    DelegationTokenAuthorizationError,
    GroupAuthorizationError,
    OperationNotAttemptedError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.broker_calls import check_is_broker
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker

_ERRORS: Final[dict[ResourceType, type[AuthorizationError]]] = {
    ResourceType.TOPIC: TopicAuthorizationError,
    ResourceType.GROUP: GroupAuthorizationError,
    ResourceType.CLUSTER: ClusterAuthorizationError,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdAuthorizationError,
    ResourceType.DELEGATION_TOKEN: DelegationTokenAuthorizationError,
}


class Denial(Enum):
    """Effect of a denied check."""

    REQUEST = "the whole request gets the error"
    ITEM = "the item gets the error"
    HIDDEN = "the item is left out of the response"


class Right(NamedTuple):
    """Operation on resources of a type."""

    operation: AclOperation
    resource_type: ResourceType


class Need(NamedTuple):
    """Operation on one resource."""

    operation: AclOperation
    resource_type: ResourceType
    name: str = CLUSTER_NAME


CLUSTER_ACTION: Final = Need(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)
"""The right that brokers need for their own calls."""


class Access:
    """Decisions for one request."""

    def __init__(self, broker: Broker, context: RequestContext) -> None:
        assert broker.authorizer is not None
        self.broker: Final = broker
        self._authorizer: Final = broker.authorizer
        self._audit: Final = broker.audit
        self._context: Final = context

    def allows(self, need: Need, *, is_logged: bool = True) -> bool:
        """Return whether the client may do this, and record it in the audit.

        A denial that is not logged only leaves the resource out of an answer, and is not recorded.
        """
        is_allowed = self._authorizer.authorize(self._context, *need, is_logged=is_logged)
        if self._audit is not None and (is_logged or is_allowed):
            self._audit.record(self._context, *need, is_allowed=is_allowed)
        return is_allowed

    def would_allow(self, need: Need) -> bool:
        """Return whether the client has a right that its request does not use. The audit gets no entry."""
        return self._authorizer.authorize(self._context, *need, is_logged=False)

    def allows_any(self, right: Right) -> bool:
        """Return whether the client may do this to some resource of the type, and record it in the audit."""
        is_allowed = self._authorizer.authorize_by_resource_type(self._context, *right)
        if self._audit is not None:
            self._audit.record(self._context, *right, WILDCARD, is_allowed=is_allowed)
        return is_allowed

    def check(self, need: Need) -> None:
        """Raise the error of the resource's type if the client may not do this."""
        if not self.allows(need):
            raise self.denied(need)

    def denied(self, need: Need) -> AuthorizationError:
        """Return the error for a denied operation."""
        kind, context = need.resource_type, self._context
        resource = f"{kind.title} {need.name}"
        return _ERRORS[kind](
            f"{context.principal} may not {need.operation.name} {resource} from {context.client_address.host}: ask an "
            f"administrator for an ACL ('millrace acls add --allow-principal {context.principal} --operation "
            f"{need.operation.title} {_option_of(need)}')"
        )


def access_for(broker: Broker, context: RequestContext) -> Access | None:
    """Return the decisions for a request; None without an authorizer, and for a request of a known broker."""
    return None if broker.authorizer is None or context.is_broker else Access(broker, context)


def _option_of(need: Need) -> str:
    if need.resource_type is ResourceType.CLUSTER:
        return "--cluster"
    return f"--{need.resource_type.name.lower().replace('_', '-')} {need.name}"


Names = Callable[[Broker, Any], Iterable[str]]
"""Names of resources in a request."""
Answer = Callable[[Any, pb.Error], Any]
"""Maker of the item of a response for an item of the request that failed."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Check of a request as a whole. Each of ``instead`` also suffices, for all of it."""

    right: Right
    names: Names
    instead: tuple[Right, ...] = ()
    """Rights on the cluster, or to any resource of another type."""

    denial = Denial.REQUEST

    @property
    def rights(self) -> tuple[Right, ...]:
        """All rights that can be asked for."""
        return (self.right, *self.instead)

    def enforce(self, access: Access, request: Any) -> None:
        """Raise the error of the first resource that is denied."""
        for name in self.names(access.broker, request):
            need = Need(*self.right, name)
            if not access.allows(need, is_logged=not self.instead) and not any(
                _suffices(access, right) for right in self.instead
            ):
                raise access.denied(need)


def _suffices(access: Access, right: Right) -> bool:
    return access.allows(Need(*right)) if right.resource_type is ResourceType.CLUSTER else access.allows_any(right)


NeedOf = Callable[[Broker, Any, Any], Need | None]
"""Returns the right that an item of a request needs, from the request and the item; None if it needs none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """Check of each item in a field of a request."""

    field: str
    """Field of the request with the items."""
    need: NeedOf
    rights: tuple[Right, ...]
    """All rights that ``need`` can ask for, and ``instead``."""
    answers: str
    """Field of the response with the answers, in the order of the items."""
    answer: Answer
    response: Callable[[], Any]
    """Maker of the response if all items are denied."""
    instead: Right | None = None
    """Right on the cluster that suffices for all items."""
    is_all_or_none: bool = False
    """True if one denied item prevents the others."""
    none: str = ""
    """Flag of a request for no items, because the handler is needed for more than the items."""
    is_answered: Callable[[Any], bool] = lambda request: True
    """Returns whether the response has answers of the items."""

    denial = Denial.ITEM

    def denied(self, access: Access, request: Any) -> dict[int, AuthorizationError]:
        """Return the errors of the denied items by their places."""
        items = enumerate(getattr(request, self.field))
        needs = {place: need for place, item in items if (need := self.need(access.broker, request, item)) is not None}
        if self.instead is not None and needs and access.allows(Need(*self.instead), is_logged=False):
            return {}
        return {place: access.denied(need) for place, need in needs.items() if not access.allows(need)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Check of each item in a response.

    Denied items are left out of the response.
    """

    rights: tuple[Right, ...]
    hide: Callable[[Access, Any, Any], None]
    """Remover of the items that the client may not see, from the request and the response."""

    denial = Denial.HIDDEN


@dataclass(frozen=True, slots=True)
class Asked:
    """Check that the handler makes itself, for each item of a request.

    The handler uses ``Access``.
    """

    rights: tuple[Right, ...]

    denial = Denial.ITEM


Check = Whole | Items | Hidden | Asked


@dataclass(frozen=True, slots=True)
class Rule:
    """Checks of a call."""

    checks: tuple[Check, ...] = ()
    by_brokers: Callable[[Any], bool] | None = None
    """Returns whether a request is a broker's own. Its sender must be a broker, and needs ``CLUSTER_ACTION`` alone."""

    @property
    def is_open(self) -> bool:
        """True if every client may make the call, and see all of its response."""
        return not self.checks

    def enforce(self, access: Access, request: Any) -> dict[int, AuthorizationError]:
        """Check a request. Return the errors of its denied items by their places.

        Raises ``AuthorizationError`` if it is denied as a whole.
        """
        errors: dict[int, AuthorizationError] = {}
        for check in self.checks:
            if isinstance(check, Whole):
                check.enforce(access, request)
            elif isinstance(check, Items):
                errors = {**check.denied(access, request), **errors}
        return errors


Handler = TypeVar("Handler", bound=Callable[[Broker, Any, RequestContext], Any])


def enforced(rule: Rule) -> Callable[[Handler], Handler]:
    """Decorate the handler of a call with a rule."""

    def decorate(handler: Handler) -> Handler:
        if rule.is_open:
            return handler

        @wraps(handler)
        def checked(broker: Broker, request: Any, context: RequestContext) -> Any:
            access = access_for(broker, context)
            if access is None:
                return handler(broker, request, context)
            if rule.by_brokers is not None and rule.by_brokers(request):
                access.check(CLUSTER_ACTION)
                check_is_broker(broker, context)  # because everybody may have the right
                return handler(broker, request, context)
            errors = rule.enforce(access, request)
            hidden = [each for each in rule.checks if isinstance(each, Hidden)]
            if not errors and not hidden:
                return handler(broker, request, context)
            return _partly(rule, handler, access, request, context, errors)

        return checked  # type: ignore[return-value]  # the same signature

    return decorate


async def _partly(
    rule: Rule,
    handler: Callable[[Broker, Any, RequestContext], Any],
    access: Access,
    request: Any,
    context: RequestContext,
    errors: Mapping[int, AuthorizationError],
) -> Any:
    """Handle the allowed items, and answer the denied ones."""
    check = next((each for each in rule.checks if isinstance(each, Items)), None)
    if not errors or check is None:
        return _without_hidden(rule, access, request, await handler(access.broker, request, context))
    items = list(getattr(request, check.field))
    failed: dict[int, Exception] = dict(errors)
    if check.is_all_or_none:
        skipped = OperationNotAttemptedError("not done, because another item of the request was denied")
        failed = {place: errors.get(place, skipped) for place in range(len(items))}
    if len(failed) == len(items) and not check.none:
        response = check.response()
    else:
        reduced = _reduced(request, check, [each for place, each in enumerate(items) if place not in failed])
        response = _without_hidden(rule, access, reduced, await handler(access.broker, reduced, context))
    if check.is_answered(request):
        _add_answers(response, check, items, failed)
    return response


def _without_hidden(rule: Rule, access: Access, request: Any, response: Any) -> Any:
    for check in rule.checks:
        if isinstance(check, Hidden):
            check.hide(access, request, response)
    return response


def _reduced(request: Any, check: Items, allowed: Sequence[Any]) -> Any:
    reduced = type(request)()
    reduced.CopyFrom(request)
    reduced.ClearField(check.field)
    getattr(reduced, check.field).extend(allowed)
    if not allowed and check.none:
        setattr(reduced, check.none, True)
    return reduced


def _add_answers(response: Any, check: Items, items: Sequence[Any], failed: Mapping[int, Exception]) -> None:
    """Put the answers of denied items between those of the others."""
    answers = getattr(response, check.answers)
    handled = iter(list(answers))
    merged = [
        check.answer(item, error_message(failed[place])) if place in failed else next(handled)
        for place, item in enumerate(items)
    ]
    del answers[:]
    answers.extend(merged)


def keep(items: Any, is_kept: Callable[[Any], bool]) -> None:
    """Remove items from a repeated field."""
    kept = [each for each in items if is_kept(each)]
    if len(kept) < len(items):
        del items[:]
        items.extend(kept)
