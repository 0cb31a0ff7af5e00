"""Outcome of a write whose response was lost, determined from its effects.

Kafka does the same in ``KafkaZkClient``. An ephemeral node of the own session was created by the lost request. A node
with the next version and the own data was written by it. For a sequential node the outcome cannot be determined.
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
    """Outcome of a transaction."""

    APPLIED = "applied"
    NOT_APPLIED = "not applied"
    UNKNOWN = "unknown"
    """The nodes have changed since, or a sequential node was to be created."""


def find_out(coordination: Coordination, operations: Sequence[Operation]) -> Outcome:
    """Determine the outcome of a transaction of this session from its nodes.

    A transaction is all or nothing, so one node without its effect shows that it was not applied. Checks have no
    effect, so a transaction of checks only counts as not applied.
    """
    coordination.sync()  # wait for requests on the way to the leader, and for the state of other servers
    last = {each.path: each for each in operations if not isinstance(each, Check)}
    verdicts = {judge(each, _read(coordination, each.path), coordination.session_id) for each in last.values()}
    if Outcome.NOT_APPLIED in verdicts or not verdicts:
        return Outcome.NOT_APPLIED
    return Outcome.UNKNOWN if Outcome.UNKNOWN in verdicts else Outcome.APPLIED


def judge(operation: Operation, found: tuple[bytes, NodeStat] | None, session_id: int) -> Outcome:
    """Judge the last operation on a node by ``found``, the node's current state."""
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
    """Apply a transaction; if its response is lost, determine the outcome and retry if it was not applied.

    Raises the errors of ``multi``, and ``ConnectionLossError`` if the outcome cannot be determined, or the store is
    not reachable.
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
