"""Limits on the rates of new connections (KIP-612).

The broker, each listener and each address have a rate. Kafka's class is ``ConnectionQuotas``. This code runs in the
event loop's thread. ``connections`` bounds the number of open connections instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from millrace.config.broker import BrokerConfig
from millrace_broker.quotas.quota_table import QuotaTable
from millrace_broker.quotas.token_bucket import TokenBucket
from millrace_broker.security.acl_index import canonical_host

_UNLIMITED: Final = 2**31 - 1
_WAIT_S_MAX: Final = 5.0
"""Longest wait of a new connection for its listener or broker. A connection says nothing for ten seconds at most."""
_ADDRESSES_MAX: Final = 10_000
"""Number of buckets from which on full ones are removed, because a full bucket is equal to a new one."""


class Delay(NamedTuple):
    """Wait of a new connection, in seconds.

    If ``is_refused`` is true, the connection is closed after the wait.
    """

    wait_s: float
    is_refused: bool


_NONE: Final = Delay(0.0, is_refused=False)


class ConnectionRates:
    """Rates of new connections. A listener asks once for each connection that it accepts."""

    def __init__(self, config: BrokerConfig, monotonic: Callable[[], float]) -> None:
        self._monotonic: Final = monotonic
        self._window_s: Final = float(config.quota_window_size_seconds)
        self._table = QuotaTable({})
        self._of_broker: Final = self._bucket(config.max_connection_creation_rate, monotonic())
        self._of_listeners: dict[str, TokenBucket | None] = {}
        self._rates: Mapping[str, int] = {}
        self._of_addresses: Final[dict[str, TokenBucket]] = {}
        self._exempt = ""
        """Listener between brokers if there are others, which does not count for the broker's rate."""
        self.is_active = False
        """True if any connection may have to wait."""
        self.take_config(config)
        self.delayed = 0
        self.refused = 0

    def _bucket(self, rate: float, now: float) -> TokenBucket | None:
        return None if rate >= _UNLIMITED else TokenBucket(rate, self._window_s, now)

    def take_config(self, config: BrokerConfig) -> None:
        """Apply the listeners and their rates. A listener whose rate is as before keeps its bucket."""
        self._exempt = config.inter_broker_listener if len(config.listener_addresses) > 1 else ""
        rates, now = config.connection_creation_rates, self._monotonic()
        self._of_listeners = {
            name: self._of_listeners[name] if self._rates.get(name) == rate else self._bucket(rate, now)
            for name, rate in rates.items()
        }
        self._rates = rates
        self._renew_activity()

    def take(self, table: QuotaTable) -> None:
        """Apply the configured quotas of addresses. Debts stay, and are paid at the new rates."""
        self._table = table
        now = self._monotonic()
        for host, bucket in list(self._of_addresses.items()):
            rate = table.connection_rate(host)
            if rate is None:
                del self._of_addresses[host]
            else:
                bucket.set_rate(rate, now)
        self._renew_activity()

    def _renew_activity(self) -> None:
        is_limited = self._of_broker is not None or any(self._of_listeners.values())
        self.is_active = is_limited or self._table.has_ips

    def opened(self, listener: str, host: str) -> Delay:
        """Count a new connection.

        One beyond its address's rate is refused, after the time until the address may connect again. One beyond the
        listener's or the broker's rate waits. One that would wait too long is refused at once, so that a burst of
        connections delays no later ones. The listener between brokers does not count for the broker's rate.
        """
        now = self._monotonic()
        address = self._bucket_of(canonical_host(host), now)
        if address is not None:
            wait_s = address.debt_s(now)
            if wait_s > 0:
                self.refused += 1
                return Delay(wait_s, is_refused=True)
        either = (self._of_listeners.get(listener), None if listener == self._exempt else self._of_broker)
        buckets = [bucket for bucket in either if bucket is not None]
        if max((bucket.debt_s(now) for bucket in buckets), default=0.0) >= _WAIT_S_MAX:
            self.refused += 1
            return Delay(0.0, is_refused=True)
        if address is not None:
            address.take(1, now)
        wait_s = max((bucket.take(1, now) for bucket in buckets), default=0.0)
        if wait_s > 0:
            self.delayed += 1
            return Delay(wait_s, is_refused=False)
        return _NONE

    def _bucket_of(self, host: str, now: float) -> TokenBucket | None:
        bucket = self._of_addresses.get(host)
        if bucket is None:
            rate = self._table.connection_rate(host)
            if rate is None:
                return None
            if len(self._of_addresses) >= _ADDRESSES_MAX:
                for name in [name for name, each in self._of_addresses.items() if each.is_full(now)]:
                    del self._of_addresses[name]
            bucket = self._of_addresses[host] = TokenBucket(rate, self._window_s, now)
        return bucket
