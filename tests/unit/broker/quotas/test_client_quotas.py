"""Tests of the quotas of clients, on a virtual clock."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.config.broker import BrokerConfig
from millrace.errors import ThrottledError
from millrace.quotas import Match, QuotaEntity, QuotaFilter
from millrace_broker.quotas import ClientQuotas, QuotaTable
from millrace_broker.quotas.measured_work import MeasuredWork

MIB = 2**20
CALLS = ("Produce", "Fetch")
KEYS = {"Produce": "producer_byte_rate", "Fetch": "consumer_byte_rate"}


class VirtualClock:
    """A clock that tests drive."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def quotas_of(clock: VirtualClock, quotas: dict[str, dict[str, float]], **options: str) -> ClientQuotas:
    named = {name.replace("_", "."): value for name, value in options.items()}
    found = ClientQuotas(BrokerConfig.load(named), clock)
    found.take(table_of(quotas))
    return found


def table_of(quotas: dict[str, dict[str, float]]) -> QuotaTable:
    """Return the quotas of entities such as ``user alice``, or ``user`` (the default)."""
    entities = {}
    for text, values in quotas.items():
        kind, _, name = text.partition(" ")
        entities[QuotaEntity.of([(kind, name or None)])] = values
    return QuotaTable(entities)


def call(quotas: ClientQuotas, name: str, size_bytes: int, user: str = "alice", client_id: str = "app") -> float:
    """Make a call. Return the seconds for which its client is throttled."""
    usage = quotas.usage(user, client_id, size_bytes if name == "Produce" else 0)
    if usage is None:
        return 0.0
    usage.settle(name, size_bytes)
    return usage.throttle_s


@settings(max_examples=50)
@given(
    st.sampled_from(CALLS),
    st.floats(30_000, 100 * MIB),  # so that no debt is longer than the longest
    st.lists(st.integers(1, MIB), min_size=1, max_size=5),
    st.integers(1, 8),
)
def test_the_rate_is_held_within_5_percent_by_any_number_of_connections(
    name: str, rate: float, sizes: list[int], connections: int
) -> None:
    clock = VirtualClock()
    quotas = quotas_of(clock, {"user alice": {KEYS[name]: rate}})
    free_at = [clock.now] * connections
    done: list[tuple[float, int]] = []
    seconds = 40 * max(max(sizes) * connections / rate, 1.0)  # long enough for the last calls not to matter
    end = clock.now + seconds
    number = 0
    while number < 2_000:
        which = min(range(connections), key=lambda each: free_at[each])
        clock.now = free_at[which]
        if clock.now >= end:
            break
        size = sizes[number % len(sizes)]
        done.append((clock.now, size))
        number += 1
        free_at[which] = clock.now + call(quotas, name, size)
    begun, last = done[0][0], clock.now
    allowed = rate * (last - begun + 1.0)  # with the burst of a second
    used = sum(size for _, size in done)
    margin = connections * max(sizes)
    assert used <= 1.001 * allowed + margin
    if last >= end:
        assert used >= 0.95 * rate * seconds - margin


def test_a_client_without_a_quota_is_not_counted() -> None:
    quotas = quotas_of(VirtualClock(), {"user bob": {"producer_byte_rate": 1.0}})
    assert quotas.usage("alice", "app", 10) is None
    assert quotas.statistics() == ()


def test_without_quotas_nothing_is_active() -> None:
    quotas = quotas_of(VirtualClock(), {})
    assert not quotas.is_active
    assert not quotas.connections.is_active


def test_a_quota_of_the_default_user_is_one_of_each_user() -> None:
    quotas = quotas_of(VirtualClock(), {"user": {"producer_byte_rate": 1000.0}})
    assert call(quotas, "Produce", 2000, user="alice") == 1.0
    assert call(quotas, "Produce", 1000, user="bob") == 0.0
    assert call(quotas, "Produce", 500, user="alice", client_id="another") == 1.5


def test_calls_without_records_use_no_bytes() -> None:
    quotas = quotas_of(VirtualClock(), {"user": {"producer_byte_rate": 1000.0, "consumer_byte_rate": 1000.0}})
    assert call(quotas, "Metadata", 10_000) == 0.0
    assert call(quotas, "ReadRangeChunk", 3000) == 2.0


def test_a_raised_quota_ends_the_wait_of_a_client_earlier() -> None:
    clock = VirtualClock()
    quotas = quotas_of(clock, {"user": {"producer_byte_rate": 1000.0}})
    usage = quotas.usage("alice", "", 201_000)
    assert usage is not None
    assert usage.settle("Produce", 0) == 200_000
    quotas.take(table_of({"user": {"producer_byte_rate": 200_000.0}}))
    assert usage.left_s() == pytest.approx(1.0)
    clock.now += 1.0
    assert usage.left_s() == pytest.approx(0.0)


def test_a_removed_quota_no_longer_counts() -> None:
    quotas = quotas_of(VirtualClock(), {"user": {"producer_byte_rate": 1.0}})
    assert call(quotas, "Produce", 1000) > 0
    quotas.take(table_of({}))
    assert not quotas.is_active
    quotas.take(table_of({"user": {"producer_byte_rate": 1000.0}}))
    assert call(quotas, "Produce", 1000) == 0.0


def test_a_removed_quota_ends_the_wait_of_its_clients() -> None:
    quotas = quotas_of(VirtualClock(), {"user": {"producer_byte_rate": 1000.0}})
    usage = quotas.usage("alice", "", 201_000)
    assert usage is not None
    usage.settle("Produce", 0)
    assert usage.left_s() == 200
    quotas.take(table_of({}))
    assert usage.left_s() == 0.0
    assert usage.wait_s("Produce") == 0.0


def test_a_debt_of_bytes_ends_after_five_minutes() -> None:
    clock = VirtualClock()
    quotas = quotas_of(clock, {"user": {"producer_byte_rate": 1.0, "consumer_byte_rate": 1.0}})
    assert [call(quotas, name, MIB) for name in CALLS] == [300.0, 300.0]
    clock.now += 300.0
    assert call(quotas, "Produce", 0) == 0.0


def test_a_held_call_waits_for_the_debt_at_its_arrival_and_for_no_later_one() -> None:
    clock = VirtualClock()
    quotas = quotas_of(clock, {"user": {"producer_byte_rate": 1000.0, "controller_mutation_rate": 1.0}})
    call(quotas, "Produce", 3000)
    usage = quotas.usage("alice", "", 10)
    assert usage is not None
    usage.hold("Metadata")
    assert usage.left_s() == 0.0
    usage.hold("Produce")
    assert usage.left_s() == 2.0
    call(quotas, "Produce", 5000)
    clock.now += 2.0
    assert usage.left_s() == 0.0


def test_calls_that_each_have_a_new_connection_are_held_to_their_rate_and_not_longer() -> None:
    clock = VirtualClock()
    quotas = quotas_of(clock, {"user": {"consumer_byte_rate": float(MIB)}})
    began, count = clock.now, 40
    for _ in range(count):
        usage = quotas.usage("alice", "", 10)
        assert usage is not None
        usage.hold("Fetch")
        clock.now += usage.left_s()
        call(quotas, "Fetch", MIB)
    assert clock.now - began == pytest.approx(count - 2)  # neither the burst nor the last call is waited for


def test_mutations_have_the_burst_of_all_windows_and_are_refused_to_clients_that_know_the_error() -> None:
    clock = VirtualClock()
    options = {"controller_quota_window_num": "5", "controller_quota_window_size_seconds": "2"}
    quotas = quotas_of(clock, {"user": {"controller_mutation_rate": 1.0}}, **options)

    def create(partitions: int, *, is_strict: bool) -> float:
        usage = quotas.usage("alice", "", 0)
        assert usage is not None
        usage.is_strict = is_strict
        usage.check_mutation()
        usage.mutated(partitions)
        usage.settle("CreateTopics", 0)
        return usage.throttle_s

    assert create(10, is_strict=True) == 0.0
    assert create(3, is_strict=True) == 3.0  # the last one that has any token left goes into debt
    with pytest.raises(ThrottledError, match=r"controller_mutation_rate=1 is used up: try again in 3\.0 s"):
        create(1, is_strict=True)
    assert create(1, is_strict=False) == 4.0
    clock.now += 4.0
    assert create(1, is_strict=True) == 1.0


async def _work() -> str:
    return "done"


def test_processor_time_counts_in_percent_of_one_processor() -> None:
    clock = VirtualClock()
    quotas = quotas_of(clock, {"user": {"request_percentage": 50.0}})
    usage = quotas.usage("alice", "", 0)
    assert usage is not None
    assert isinstance(usage.measured(_work_once()), MeasuredWork)
    usage.work_s = lambda: 0.6  # 0.5 s is the burst of one second
    usage.settle("Metadata", 0)
    assert usage.throttle_s == pytest.approx(0.2)
    usage.work_s = lambda: 1000.0
    usage.settle("Metadata", 0)
    assert usage.throttle_s == 1.0  # at most a window, as in Kafka
    clock.now += 1.0
    assert usage.wait_s("Metadata") == 0.0, "the rest of the debt is forgotten, as in Kafka after its windows"


def _work_once() -> Coroutine[Any, Any, str]:
    work = _work()
    work.close()
    return work


def test_full_buckets_are_forgotten_so_that_client_ids_cannot_fill_the_memory() -> None:
    clock = VirtualClock()
    quotas = quotas_of(clock, {"client-id": {"producer_byte_rate": 1000.0}})
    call(quotas, "Produce", 3000, client_id="in debt")
    for number in range(11_000):
        call(quotas, "Produce", 1, client_id=f"client {number}")
        clock.now += 0.001
    assert len(quotas.statistics()) <= 10_000
    assert call(quotas, "Produce", 1, client_id="in debt") == 0.0  # its debt was paid meanwhile


def test_the_use_of_a_quota_is_measured() -> None:
    clock = VirtualClock()
    quotas = quotas_of(clock, {"user alice": {"producer_byte_rate": 1000.0}})
    for _ in range(600):
        clock.now += max(0.5, call(quotas, "Produce", 500))
    (use,) = quotas.statistics()
    assert (use.key, use.user, use.client_id) == ("producer_byte_rate", "alice", "")
    assert use.rate == pytest.approx(1000.0, rel=0.06)
    call(quotas, "Produce", 3000)
    assert quotas.statistics()[0].throttled_s == pytest.approx(2.5, abs=0.6)


def test_connections_beyond_an_addresss_rate_are_refused_and_beyond_a_listeners_rate_wait() -> None:
    clock = VirtualClock()
    options = {"max_connection_creation_rate": "4"}
    rates = quotas_of(clock, {"ip 10.0.0.1": {"connection_creation_rate": 1.0}}, **options).connections
    assert [rates.opened("KAFKA", "10.0.0.1") for _ in range(3)] == [(0.0, False), (0.0, False), (1.0, True)]
    assert [rates.opened("KAFKA", "10.0.0.2").wait_s for _ in range(4)] == [0.0, 0.0, 0.25, 0.5]
    clock.now += 10.0
    assert rates.opened("KAFKA", "10.0.0.1") == (0.0, False)
    assert (rates.refused, rates.delayed) == (1, 2)


def test_a_change_of_another_quota_lets_no_address_connect_sooner() -> None:
    clock = VirtualClock()
    ips = {"ip 10.0.0.1": {"connection_creation_rate": 1.0}, "ip": {"connection_creation_rate": 2.0}}
    quotas = quotas_of(clock, ips)
    rates = quotas.connections
    for host, wait_s in (("10.0.0.1", 1.0), ("10.0.0.2", 0.5)):
        while not (delay := rates.opened("KAFKA", host)).is_refused:
            pass
        assert delay.wait_s == wait_s
    quotas.take(table_of({**ips, "user bob": {"producer_byte_rate": 1.0}}))
    assert rates.opened("KAFKA", "10.0.0.1") == (1.0, True)
    quotas.take(table_of({"ip": {"connection_creation_rate": 4.0}}))
    assert rates.opened("KAFKA", "10.0.0.1") == (0.25, True)
    assert rates.opened("KAFKA", "10.0.0.2") == (0.25, True)
    quotas.take(table_of({}))
    assert rates.opened("KAFKA", "10.0.0.1") == (0.0, False)


@pytest.mark.parametrize("name", ["10.0.0.5", "::ffff:10.0.0.5", "::FFFF:A00:5"])
def test_a_quota_of_an_ipv4_address_may_be_written_as_one_of_ipv6(name: str) -> None:
    rates = quotas_of(VirtualClock(), {f"ip {name}": {"connection_creation_rate": 1.0}}).connections
    assert [rates.opened("KAFKA", "::ffff:10.0.0.5").is_refused for _ in range(3)] == [False, False, True]
    assert rates.opened("KAFKA", "10.0.0.5").is_refused
    assert QuotaFilter("ip", Match.EXACT, name).selects(QuotaEntity.of([("ip", "10.0.0.5")]))


def test_a_burst_of_connections_does_not_delay_later_ones_for_long() -> None:
    clock = VirtualClock()
    rates = quotas_of(clock, {}, max_connection_creation_rate="10").connections
    burst = [rates.opened("KAFKA", f"10.0.{number % 200}.1") for number in range(10_000)]
    assert max(each.wait_s for each in burst) == pytest.approx(5.0)
    assert burst[-1] == (0.0, True)
    clock.now += 5.2
    assert rates.opened("KAFKA", "10.1.0.1") == (0.0, False)


def test_a_listener_has_a_rate_of_its_own() -> None:
    clock = VirtualClock()
    config = BrokerConfig.load(
        {
            "listeners": "IN://127.0.0.1:0,OUT://127.0.0.1:0",
            "listener.name.out.max.connection.creation.rate": "1",
            "inter.broker.listener.name": "IN",
        }
    )
    rates = ClientQuotas(config, clock).connections
    assert rates.is_active
    assert [rates.opened("OUT", "10.0.0.1").wait_s for _ in range(3)] == [0.0, 1.0, 2.0]
    assert [rates.opened("IN", "10.0.0.1").wait_s for _ in range(3)] == [0.0, 0.0, 0.0]


def test_the_listener_between_brokers_does_not_count_for_the_brokers_rate() -> None:
    config = BrokerConfig.load(
        {
            "listeners": "IN://127.0.0.1:0,OUT://127.0.0.1:0",
            "max.connection.creation.rate": "1",
            "inter.broker.listener.name": "IN",
        }
    )
    rates = ClientQuotas(config, VirtualClock()).connections
    assert [rates.opened("IN", "10.0.0.1").wait_s for _ in range(3)] == [0.0, 0.0, 0.0]
    assert [rates.opened("OUT", "10.0.0.1").wait_s for _ in range(3)] == [0.0, 1.0, 2.0]
