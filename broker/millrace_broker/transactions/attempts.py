"""Attempts to commit an epoch of an external id.

A driver that commits many producers under an external id may fail during an epoch and run it again. It may also still
be running although it seems to have failed. Each execution of an epoch is an *attempt* with its own name. A new attempt
takes over from the earlier ones. Their open transactions are aborted at once, so that they block no reader, and they
can neither add producers nor commit. An external id may have an *owner*. Another owner is refused, because its epochs
would be taken for committed epochs.

Invariants

- One attempt of one epoch may commit at any time.
- A fenced attempt begins no epoch that has begun, and no earlier one.

The functions are pure, as in ``states``. A returned state counts after its record is in the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from millrace.errors import CommitOwnerError, InvalidRequestError, ProducerFencedError
from millrace_broker.transactions.metadata import ExternalCommit

FORMER_ATTEMPTS_MAX: Final = 16
"""The number of fenced attempts of one epoch that are remembered. An older one is unlikely to come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Execution of an epoch of an external id.

    ``retention_ms`` is the time after which the unused external id expires, 0 for never.
    """

    external_id: str
    external_epoch: int
    name: str
    owner: str = ""
    retention_ms: int = 0


def was_committed(last: ExternalCommit | None, external_epoch: int) -> bool:
    """Return whether an epoch is committed, so that its records need not be written again."""
    return last is not None and external_epoch <= last.external_epoch


def begin(last: ExternalCommit | None, attempt: Attempt, now_ms: int) -> ExternalCommit | None:
    """Let an attempt add producers to an epoch that is not committed; ``None`` if it has begun before.

    A result other than ``None`` means that the attempt takes over. All other open transactions of the external id are
    to be aborted.

    Raises ``CommitOwnerError``, ``InvalidRequestError``, and ``ProducerFencedError`` for an attempt that was replaced
    or an epoch before the begun one.
    """
    if not (attempt.external_id and attempt.name) or attempt.external_epoch < 0 or attempt.retention_ms < 0:
        raise InvalidRequestError(
            f"{attempt} is incomplete: expected an external id, the name of an attempt, and numbers of 0 or more"
        )
    check_owner(last, attempt.external_id, attempt.owner)
    last = last or ExternalCommit(external_id=attempt.external_id)
    former: tuple[str, ...] = ()
    if attempt.external_epoch < last.begun_epoch:
        raise ProducerFencedError(
            f"epoch {attempt.external_epoch} of {attempt.external_id} cannot begin, because epoch {last.begun_epoch} "
            "has begun: stop this driver, another one continues"
        )
    if attempt.external_epoch == last.begun_epoch:
        if attempt.name == last.attempt:
            return None
        if attempt.name in last.former_attempts:
            raise fenced(last, attempt.name)
        former = abandoned(last, now_ms).former_attempts if last.attempt else last.former_attempts
    return replace(
        last,
        owner=attempt.owner or last.owner,
        begun_epoch=attempt.external_epoch,
        attempt=attempt.name,
        former_attempts=former,
        updated_ms=now_ms,
        retention_ms=attempt.retention_ms,
    )


def abandoned(last: ExternalCommit, now_ms: int) -> ExternalCommit:
    """Return the state after the present attempt has ended without a commit."""
    former = (last.attempt, *last.former_attempts)[:FORMER_ATTEMPTS_MAX]
    return replace(last, attempt="", former_attempts=former, updated_ms=now_ms)


def check_owner(last: ExternalCommit | None, external_id: str, owner: str) -> None:
    """Raise ``CommitOwnerError`` if the external id has another owner."""
    if last is not None and last.owner and owner and owner != last.owner:
        raise CommitOwnerError(
            f"external id {external_id} belongs to {last.owner}, which has committed {last.external_epoch} last: "
            f"choose another external id for {owner}"
        )


def check_is_current(last: ExternalCommit | None, external_id: str, external_epoch: int, name: str) -> None:
    """Raise ``ProducerFencedError`` unless the attempt is the one that may commit the epoch."""
    if last is None or last.begun_epoch != external_epoch:
        raise ProducerFencedError(
            f"attempt {name} has not begun epoch {external_epoch} of {external_id}: join the commit first"
        )
    if last.attempt != name:
        raise fenced(last, name)


def fenced(last: ExternalCommit, name: str) -> ProducerFencedError:
    """Return the error for an attempt that was replaced or aborted."""
    why = f"attempt {last.attempt} has taken over" if last.attempt else "it was aborted"
    return ProducerFencedError(f"attempt {name} at epoch {last.begun_epoch} of {last.external_id} is fenced: {why}")


def is_expired(commit: ExternalCommit, now_ms: int) -> bool:
    """Return whether an external id has been unused for its retention time."""
    return 0 < commit.retention_ms <= now_ms - commit.updated_ms
