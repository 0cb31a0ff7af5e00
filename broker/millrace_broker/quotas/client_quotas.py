"""Quotas of clients, Kafka's ``ClientQuotaManager``.

This code counts the clients' use of their quotas, and decides for how long clients are throttled. It also has the part
of Kafka's ``ClientRequestQuotaManager`` and ``ControllerMutationQuotaManager``. It runs in the event loop's thread, and
is separate from admission, which bounds the broker's own resources for all clients together.

Invariants

- A call is counted once, after its work. Its client is throttled until the debt of the quotas it used is paid.
- A call that begins during a debt waits, on whatever connection, so that a new connection does not end a throttle.
- All clients that share a quota (``quota_table``) share one bucket.
- A full bucket is equal to a new one. Full buckets may therefore be removed, which bounds their number.
- Without any quota, the only cost of a call is that the listener reads ``is_active`` once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from millrace.config.broker import BrokerConfig
from millrace.errors import ThrottledError
from millrace.quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER_KEYS,
)
from millrace_broker.quotas.connection_rates import ConnectionRates
from millrace_broker.quotas.measured_work import MeasuredWork
from millrace_broker.quotas.quota_table import Limit, QuotaTable
from millrace_broker.quotas.token_bucket import TokenBucket

_T = TypeVar("_T")

CONSUMING_CALLS: Final = frozenset(("Fetch", "ShareFetch", "ReadRange", "ReadRangeChunk"))
"""Calls whose responses count for ``consumer_byte_rate``."""
_PRODUCING_CALL: Final = "Produce"
_EXEMPT_CALLS: Final = frozenset(("SaslHandshake", "SaslAuthenticate"))
_BUDGETS_MAX: Final = 10_000
"""Number of buckets from which on full ones are removed."""
_RATE_S: Final = 10.0
"""Time constant of the measured rates."""
_PERCENT: Final = 100.0
_BYTES_DEBT_S_MAX: Final = 300.0
"""Longest debt of bytes. A longer one is forgotten, because a wait of hours looks like a broken broker."""


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """Use of one quota. An empty user or client id stands for all."""

    key: str
    user: str
    client_id: str
    rate: float
    """Use per second over the last seconds, in the unit of the quota."""
    throttled_s: float
    """Sum of the times for which clients were throttled."""


class _Budget:
    """One quota in use."""

    __slots__ = ("_rate", "_used_at", "bucket", "limit", "throttled_s", "unit")

    def __init__(self, limit: Limit, unit: float, bucket: TokenBucket, now: float) -> None:
        """``unit`` is one unit of the quota in tokens."""
        self.limit = limit
        self.unit = unit
        self.bucket = bucket
        self.throttled_s = 0.0
        self._rate = 0.0
        self._used_at = now

    def use(self, tokens: float, now: float) -> float:
        """Count tokens. Return the seconds until the debt is paid."""
        self._rate = self.rate(now) + tokens / self.unit / _RATE_S
        self._used_at = now
        return self.bucket.take(tokens, now)

    def rate(self, now: float) -> float:
        """Return the measured rate, which decays."""
        return self._rate * math.exp((self._used_at - now) / _RATE_S)


class Usage:
    """Use of its client's quotas by one call.

    A handler's context has the usage, unless no quota applies.
    """

    __slots__ = (
        "_budgets",
        "_monotonic",
        "_slowest",
        "_until",
        "has_mutations",
        "is_settled",
        "is_strict",
        "request_bytes",
        "throttle_s",
        "work_s",
    )

    def __init__(
        self,
        budgets: Mapping[str, _Budget],
        request_bytes: int,
        monotonic: Callable[[], float],
    ) -> None:
        """Create the usage for ``ClientQuotas.usage``."""
        self._budgets: Final = budgets
        self.request_bytes = request_bytes
        """Size of the request, for listeners that learn it later."""
        self._monotonic: Final = monotonic
        self._slowest: _Budget | None = None
        self._until = 0.0
        self.throttle_s = 0.0
        """Seconds for which the client is throttled after the call."""
        self.work_s: Callable[[], float] | None = None
        self.has_mutations = False
        self.is_settled = False
        self.is_strict = False
        """True if mutations beyond the quota are refused. Otherwise their client is throttled (KIP-599)."""

    def measured(self, work: Coroutine[Any, Any, _T]) -> Coroutine[Any, Any, _T]:
        """Return ``work``, with its processor time measured if that is limited."""
        if REQUEST_PERCENTAGE not in self._budgets:
            return work
        measured = MeasuredWork(work, time.thread_time)
        self.work_s = measured.spent_s
        return measured

    @property
    def fetch_bytes_max(self) -> float:
        """Most bytes that one response should have, so that no client is throttled for longer than a burst."""
        budget = self._budgets.get(CONSUMER_BYTE_RATE)
        return math.inf if budget is None else max(1, budget.bucket.rate * budget.bucket.burst_s)

    def check_mutation(self) -> None:
        """Raise ``ThrottledError`` if the client has used up its mutations, and understands this error."""
        budget = self._budgets.get(CONTROLLER_MUTATION_RATE)
        if budget is None:
            return
        self.has_mutations = True
        wait_s = budget.bucket.debt_s(self._monotonic())
        if self.is_strict and wait_s > 0:
            raise ThrottledError(
                f"the quota {CONTROLLER_MUTATION_RATE}={budget.limit.rate:g} is used up: try again in {wait_s:.1f} s"
            )

    def mutated(self, partitions: int) -> None:
        """Count created or deleted partitions."""
        budget = self._budgets.get(CONTROLLER_MUTATION_RATE)
        if budget is not None:
            budget.use(partitions, self._monotonic())

    def wait_s(self, call: str) -> float:
        """Return the seconds until the client has paid its debt for calls such as this one."""
        now = self._monotonic()
        used = [REQUEST_PERCENTAGE, *_keys_of(call), *((CONTROLLER_MUTATION_RATE,) if call in _MUTATING_CALLS else ())]
        return max((self._budgets[key].bucket.debt_s(now) for key in used if key in self._budgets), default=0.0)

    def settle(self, call: str, response_bytes: int) -> int:
        """Count the call. Return the milliseconds for which its client is throttled.

        A stream settles each of its responses. The request is counted with the first.
        """
        if call in _EXEMPT_CALLS:
            return 0
        now = self._monotonic()
        waits: list[tuple[float, _Budget]] = []
        for key in _keys_of(call):
            if (budget := self._budgets.get(key)) is not None:
                used = response_bytes if key == CONSUMER_BYTE_RATE else 0 if self.is_settled else self.request_bytes
                waits.append((budget.use(used, now), budget))
        budget = self._budgets.get(REQUEST_PERCENTAGE)
        if budget is not None and self.work_s is not None:
            waits.append((budget.use(self.work_s(), now), budget))
        budget = self._budgets.get(CONTROLLER_MUTATION_RATE)
        if budget is not None and self.has_mutations:
            waits.append((budget.bucket.debt_s(now), budget))
        self.is_settled = True
        self.throttle_s, self._slowest = max(waits, key=lambda each: each[0], default=(0.0, None))
        self._until = now + self.throttle_s
        if self._slowest is not None:
            self._slowest.throttled_s += self.throttle_s
        return math.ceil(self.throttle_s * 1000)

    def hold(self, call: str) -> None:
        """Let ``left_s`` be the wait of a new call for the present debt, which later calls do not prolong.

        Mutations do not wait. They are refused, or throttle their client after the call.
        """
        now = self._monotonic()
        used = [self._budgets[key] for key in (REQUEST_PERCENTAGE, *_keys_of(call)) if key in self._budgets]
        waits = [(budget.bucket.debt_s(now), budget) for budget in used if call not in _EXEMPT_CALLS]
        wait_s, self._slowest = max(waits, key=lambda each: each[0], default=(0.0, None))
        self._until = now + wait_s

    def left_s(self) -> float:
        """Return the seconds for which the client is still throttled. A raised quota makes it shorter."""
        if self._slowest is None:
            return 0.0
        now = self._monotonic()
        return min(self._until - now, self._slowest.bucket.debt_s(now))


_MUTATING_CALLS: Final = frozenset(("CreateTopics", "DeleteTopics", "CreatePartitions"))


def _keys_of(call: str) -> tuple[str, ...]:
    """Return the keys of bytes that a call uses."""
    if call == _PRODUCING_CALL:
        return (PRODUCER_BYTE_RATE,)
    return (CONSUMER_BYTE_RATE,) if call in CONSUMING_CALLS else ()


class ClientQuotas:
    """Quotas of all clients of this broker. Other brokers have buckets of their own, as in Kafka."""

    def __init__(self, config: BrokerConfig, monotonic: Callable[[], float]) -> None:
        self.is_active = False
        """True if any user or client id has a quota."""
        self.connections: Final = ConnectionRates(config, monotonic)
        self._monotonic: Final = monotonic
        self._window_s: Final = float(config.quota_window_size_seconds)
        self._mutation_burst_s: Final = float(
            config.controller_quota_window_num * config.controller_quota_window_size_seconds
        )
        self._table = QuotaTable({})
        self._budgets: Final[dict[tuple[str, str, str], _Budget]] = {}
        self._clients: Final[dict[tuple[str, str], Mapping[str, _Budget]]] = {}

    def take(self, table: QuotaTable) -> None:
        """Apply the configured quotas. Debts stay, and are paid at the new rates. Those of removed quotas are over."""
        self._table = table
        self.is_active = table.has_clients
        self._clients.clear()
        now = self._monotonic()
        for (key, user, client_id), budget in list(self._budgets.items()):
            limit = table.limit(key, user, client_id)
            if limit is None or (limit.user, limit.client_id) != (user, client_id):
                del self._budgets[key, user, client_id]
                budget.bucket.forgive()
            else:
                budget.limit = limit
                budget.bucket.set_rate(limit.rate * budget.unit, now)
        self.connections.take(table)

    def usage(self, user: str, client_id: str, request_bytes: int) -> Usage | None:
        """Return what a call of a client may use; None if the client has no quota."""
        budgets = self._clients.get((user, client_id))
        if budgets is None:
            budgets = self._budgets_of(user, client_id)
        if not budgets:
            return None
        return Usage(budgets, request_bytes, self._monotonic)

    def _budgets_of(self, user: str, client_id: str) -> Mapping[str, _Budget]:
        now = self._monotonic()
        if max(len(self._budgets), len(self._clients)) >= _BUDGETS_MAX:
            self._forget_full(now)
        found = {}
        for key in USER_KEYS:
            limit = self._table.limit(key, user, client_id)
            if limit is None:
                continue
            place = (key, limit.user, limit.client_id)
            budget = self._budgets.get(place)
            if budget is None:
                budget = self._budgets[place] = self._new_budget(key, limit, now)
            found[key] = budget
        self._clients[user, client_id] = found
        return found

    def _new_budget(self, key: str, limit: Limit, now: float) -> _Budget:
        if key == REQUEST_PERCENTAGE:  # as in Kafka, no call is throttled for more than a window because of its time
            unit = 1 / _PERCENT
            return _Budget(limit, unit, TokenBucket(limit.rate * unit, self._window_s, now, self._window_s), now)
        if key == CONTROLLER_MUTATION_RATE:
            return _Budget(limit, 1.0, TokenBucket(limit.rate, self._mutation_burst_s, now), now)
        return _Budget(limit, 1.0, TokenBucket(limit.rate, self._window_s, now, _BYTES_DEBT_S_MAX), now)

    def _forget_full(self, now: float) -> None:
        self._clients.clear()
        for place, budget in list(self._budgets.items()):
            if budget.bucket.is_full(now):
                del self._budgets[place]

    def statistics(self) -> tuple[QuotaUse, ...]:
        """Return the use of all quotas in use."""
        now = self._monotonic()
        return tuple(
            QuotaUse(key, user, client_id, budget.rate(now), budget.throttled_s)
            for (key, user, client_id), budget in self._budgets.items()
        )
