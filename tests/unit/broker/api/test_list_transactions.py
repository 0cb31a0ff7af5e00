"""Tests of the filters of ListTransactions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.coordinator_records import TransactionState
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api import list_transactions
from millrace_broker.transactions.metadata import TransactionMetadata

NOW_MS = 1_000_000
NEVER_BEGUN = TransactionMetadata(transactional_id="new", producer_id=1, epoch=0, timeout_ms=1, updated_ms=NOW_MS)
OPEN = replace(NEVER_BEGUN, transactional_id="open", state=TransactionState.ONGOING, started_ms=NOW_MS - 100)
ENDED = replace(NEVER_BEGUN, transactional_id="ended", state=TransactionState.COMPLETE_COMMIT, started_ms=NOW_MS - 500)


def listed(**filters: Any) -> list[str]:
    broker: Any = SimpleNamespace(
        authorizer=None,
        clock=SimpleNamespace(now_ms=lambda: NOW_MS),
        transactions=SimpleNamespace(transactions=lambda: iter([NEVER_BEGUN, OPEN, ENDED])),
    )
    context: Any = SimpleNamespace(is_broker=False)
    answer = asyncio.run(list_transactions.handle(broker, pb.ListTransactionsRequest(**filters), context))
    return [each.transactional_id for each in answer.transactions]


@pytest.mark.parametrize(
    ("duration_ms_min", "names"),
    [
        (0, ["new", "open", "ended"]),
        (99, ["new", "open", "ended"]),
        (100, ["new", "ended"]),
        (499, ["new", "ended"]),
        (500, ["new"]),
        (3_600_000_000, []),
    ],
)
def test_the_duration_begins_with_the_last_transaction_and_an_id_without_one_passes(
    duration_ms_min: int, names: list[str]
) -> None:
    """As in Kafka, an id without a transaction has begun at -1, which is before the test's time by ``NOW_MS``."""
    assert listed(duration_ms_min=duration_ms_min) == names
