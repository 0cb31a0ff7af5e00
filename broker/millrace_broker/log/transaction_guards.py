"""The check of a verified transaction just before an append (KIP-890).

The transaction's coordinator verifies the transaction first. Kafka's counterpart is ``VerificationGuard``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from millrace.errors import InvalidTxnStateError
from millrace_broker.log.partition_log import PartitionLog


def guard_transaction(log: PartitionLog, producer_id: int, epoch: int) -> Callable[[], None]:
    """Return a check for just before the append. Call this before the verification.

    The transaction may end after its verification. The check then raises ``InvalidTxnStateError``, because the end
    marker has changed the producer's entry. Without the check, records of a producer that keeps its epoch would stay
    open in the partition. The producer's next transaction there would then commit or abort them.
    """
    before = log.find_producer(producer_id)

    def check() -> None:
        now = log.find_producer(producer_id)
        if now is not before and not (now is not None and now.has_open_transaction(epoch)):
            raise InvalidTxnStateError(
                f"the transaction of producer {producer_id} with epoch {epoch} ended before these records for "
                f"{log.name} were appended: begin another transaction"
            )

    return check


async def verified(
    log: PartitionLog, producer_id: int, epoch: int, verify: Callable[[], Awaitable[None]], *, begins: bool
) -> Callable[[], None]:
    """Verify a transaction at its coordinator, and return the check for just before the append.

    With ``begins`` the verification may begin the transaction (KIP-890, part 2). The coordinator then waits until the
    producer's last transaction is complete, whose end marker changes the entry too. In that case the transaction is
    verified again, which is safe because its epoch names it. A producer that keeps its epoch gets the error, because
    the records may be late records of the last transaction. Raises the errors of ``verify``.
    """
    check = guard_transaction(log, producer_id, epoch)
    await verify()
    if not begins:
        return check
    try:
        check()
    except InvalidTxnStateError:
        check = guard_transaction(log, producer_id, epoch)
        await verify()
    return check
