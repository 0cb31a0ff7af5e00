"""What became of a write whose answer got lost, judged by what can be seen of it.

Kafka does the same in ``KafkaZkClient``: an ephemeral node that belongs to the own session was created by the lost
request, a node of the next version with the own data was written by it. Nobody can tell for a sequential node.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from millrace.coordination.interface import (
    ANY_VERSION,
    Check,
    ConnectionLossError,
    Coordination,
    Create,
    NodeStat,
    NoNodeError,
    Operation,
    Write,
)


class Outcome(StrEnum):
    """What became of a transaction."""

    APPLIED = "applied"
    NOT_APPLIED = "not applied"
    UNKNOWN = "unknown"
    """The nodes were changed since, or a sequential one was to be created."""


def find_out(coordination: Coordination, operations: Sequence[Operation]) -> Outcome:
    """What became of a transaction that this session sent, as far as its nodes show.

    It is all or nothing, so one node without its effect is enough to deny it. Checks have no effect: a transaction of
    nothing else counts as not applied.
    """
    coordination.sync()  # behind what may be under way to the leader, and with what other servers know
    last = {each.path: each for each in operations if not isinstance(each, Check)}
    verdicts = {judge(each, _read(coordination, each.path), coordination.session_id) for each in last.values()}
    if Outcome.NOT_APPLIED in verdicts or not verdicts:
        return Outcome.NOT_APPLIED
    return Outcome.UNKNOWN if Outcome.UNKNOWN in verdicts else Outcome.APPLIED


def judge(operation: Operation, found: tuple[bytes, NodeStat] | None, session_id: int) -> Outcome:
    """What ``found``, the node as it is now, says of the last operation on it."""
    match operation:
        case Create(sequential=True):
            return Outcome.UNKNOWN
        case Create(ephemeral=True):
            mine = found is not None and found[1].ephemeral_owner == session_id
            return Outcome.APPLIED if mine else Outcome.NOT_APPLIED
        case Create():
            return _judge_write(operation.data, 0, found)
        case Write():
            if operation.version == ANY_VERSION:
                same = found is not None and found[0] == operation.data
                return Outcome.APPLIED if same else Outcome.NOT_APPLIED
            return _judge_write(operation.data, operation.version + 1, found)
        case _:
            return Outcome.APPLIED if found is None else Outcome.NOT_APPLIED


def _judge_write(data: bytes, version: int, found: tuple[bytes, NodeStat] | None) -> Outcome:
    if found is None or found[1].version < version:
        return Outcome.NOT_APPLIED
    if found[1].version > version:
        return Outcome.UNKNOWN
    return Outcome.APPLIED if found[0] == data else Outcome.NOT_APPLIED


def settle(coordination: Coordination, operations: Sequence[Operation]) -> None:
    """Apply a transaction, and when its answer gets lost find out and send it again if it was not applied.

    Raises what ``multi`` raises; ``ConnectionLossError`` when its outcome cannot be known, or the store is out of
    reach.
    """
    while True:
        try:
            coordination.multi(operations)
            return
        except ConnectionLossError as error:
            if not error.maybe_applied:
                raise
            match find_out(coordination, operations):
                case Outcome.APPLIED:
                    return
                case Outcome.UNKNOWN:
                    raise


def _read(coordination: Coordination, path: str) -> tuple[bytes, NodeStat] | None:
    try:
        return coordination.get(path)
    except NoNodeError:
        return None
