"""Tests of the precedence between quotas, which is that of Kafka's ``DefaultQuotaCallback``."""

from __future__ import annotations

from itertools import combinations

import pytest

from millrace.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    QuotaEntity,
)
from millrace_broker.quotas import QuotaTable

ORDER = [
    ([("user", "alice"), ("client-id", "app")], ("alice", "app")),
    ([("user", "alice"), ("client-id", None)], ("alice", "app")),
    ([("user", "alice")], ("alice", "")),
    ([("user", None), ("client-id", "app")], ("alice", "app")),
    ([("user", None), ("client-id", None)], ("alice", "app")),
    ([("user", None)], ("alice", "")),
    ([("client-id", "app")], ("", "app")),
    ([("client-id", None)], ("", "app")),
]
"""Entities that apply to alice's app, the one that wins first, with those who share its quota."""


def table(places: tuple[int, ...], key: str = PRODUCER_BYTE_RATE) -> QuotaTable:
    return QuotaTable({QuotaEntity.of(ORDER[place][0]): {key: 100.0 + place} for place in places})


@pytest.mark.parametrize("size", [1, 2, 8])
def test_the_most_specific_entity_wins(size: int) -> None:
    for places in combinations(range(len(ORDER)), size):
        limit = table(places).limit(PRODUCER_BYTE_RATE, "alice", "app")
        assert limit is not None
        assert (limit.rate, (limit.user, limit.client_id)) == (100.0 + places[0], ORDER[places[0]][1])


def test_quotas_of_others_do_not_apply() -> None:
    quotas = QuotaTable(
        {
            QuotaEntity.of([("user", "bob")]): {PRODUCER_BYTE_RATE: 1.0},
            QuotaEntity.of([("user", "bob"), ("client-id", "app")]): {PRODUCER_BYTE_RATE: 1.0},
            QuotaEntity.of([("client-id", "other")]): {PRODUCER_BYTE_RATE: 1.0},
        }
    )
    assert quotas.limit(PRODUCER_BYTE_RATE, "alice", "app") is None


def test_each_key_has_its_own_precedence() -> None:
    quotas = QuotaTable(
        {
            QuotaEntity.of([("user", "alice")]): {PRODUCER_BYTE_RATE: 1.0},
            QuotaEntity.of([("client-id", "app")]): {PRODUCER_BYTE_RATE: 2.0, CONSUMER_BYTE_RATE: 3.0},
        }
    )
    found = [quotas.limit(key, "alice", "app") for key in (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)]
    assert [each and each.rate for each in found] == [1.0, 3.0]


def test_an_address_has_its_own_rate_or_the_default() -> None:
    quotas = QuotaTable(
        {
            QuotaEntity.of([("ip", None)]): {CONNECTION_CREATION_RATE: 10.0},
            QuotaEntity.of([("ip", "10.0.0.1")]): {CONNECTION_CREATION_RATE: 2.0},
        }
    )
    assert [quotas.connection_rate(host) for host in ("10.0.0.1", "10.0.0.2")] == [2.0, 10.0]
    assert quotas.has_ips
    assert not quotas.has_clients
