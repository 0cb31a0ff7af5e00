"""Use of quotas in tests, as the broker counts it."""

from __future__ import annotations

from typing import Final

from millrace_broker.quotas import QuotaUse
from millrace_broker.testing import EmbeddedBroker

RATE: Final = 2**20
RECORD: Final = b"x" * 65_536


def use_of(broker: EmbeddedBroker, client_id: str, key: str) -> QuotaUse:
    (found,) = [
        each
        for each in broker.server.broker.client_quotas.statistics()
        if (each.client_id, each.key) == (client_id, key)
    ]
    return found


def check_rate(sent_bytes: int, began: float, ended: float, *, unwaited_bytes: int = 2 * len(RECORD)) -> None:
    """Check that no more was let through than the rate and its burst allow, within 5 %.

    Nobody waits for ``unwaited_bytes``, those of the last answers.
    """
    assert sent_bytes <= 1.05 * RATE * (ended - began + 1.0) + unwaited_bytes
