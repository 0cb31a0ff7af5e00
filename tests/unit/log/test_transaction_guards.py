"""Tests of the guard of transactional appends.

The guard lies between the verification of a transaction and an append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from millrace.errors import InvalidTxnStateError
from millrace.records import ControlType, EndTransactionMarker
from millrace_broker.log import PartitionLog
from millrace_broker.log.transaction_guards import verified

Open = Callable[..., PartitionLog]
Batch = Callable[..., bytes]
COMMIT = EndTransactionMarker(type=ControlType.COMMIT, coordinator_epoch=0)


class _Coordinator:
    """Counts the verifications, each of which succeeds after ``meanwhile``."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self._meanwhile = meanwhile
        self.calls = 0

    async def verify(self) -> None:
        self.calls += 1
        self._meanwhile()


def _begun(open_log: Open, batch: Batch) -> PartitionLog:
    """Return a log with the first batch of a producer's transaction."""
    log = open_log()
    sent = batch(producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append(sent, in_transaction=True)
    return log


def test_the_end_of_the_last_transaction_during_a_verification_does_not_count(open_log: Open, batch: Batch) -> None:
    log = _begun(open_log, batch)
    verified_at: list[int] = []

    async def verify() -> None:
        if not verified_at:  # the coordinator waits until the markers are written
            log.append_end_marker_unsynced(9, 1, COMMIT, is_epoch_raised=True)
        verified_at.append(log.log_end_offset)

    check = asyncio.run(verified(log, 9, 1, verify, begins=True))
    check()
    assert verified_at == [2, 2]


def test_an_end_after_the_verification_counts(open_log: Open, batch: Batch) -> None:
    log, coordinator = _begun(open_log, batch), _Coordinator()
    check = asyncio.run(verified(log, 9, 0, coordinator.verify, begins=True))
    check()
    log.append_end_marker_unsynced(9, 0, COMMIT)
    with pytest.raises(InvalidTxnStateError, match="ended before these records"):
        check()
    assert coordinator.calls == 1


def test_a_producer_that_keeps_its_epoch_is_not_verified_again(open_log: Open, batch: Batch) -> None:
    """Its next transaction may be open by then, and the records may be late ones of the last."""
    log = _begun(open_log, batch)
    coordinator = _Coordinator(lambda: log.append_end_marker_unsynced(9, 0, COMMIT))
    check = asyncio.run(verified(log, 9, 0, coordinator.verify, begins=False))
    with pytest.raises(InvalidTxnStateError):
        check()
    assert coordinator.calls == 1
